// Small Fast Counting, 64 bits (Chris Doty-Humphrey, PractRand): the stream of numpy.random.SFC64.
#pragma once
#include "simd.h"

namespace {

// Its state (4,), three words and a counter, is read at first and written back at last.
class Noise {
 public:
  explicit Noise(uint64_t* state) : state_(state), a_(state[0]), b_(state[1]), c_(state[2]), counter_(state[3]) {}
  ~Noise() { state_[0] = a_, state_[1] = b_, state_[2] = c_, state_[3] = counter_; }

  GW_INLINE void draw(uint64_t* words, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t word = a_ + counter_++ + b_;
      a_ = b_ ^ b_ >> 11;
      b_ = c_ + (c_ << 3);
      c_ = (c_ << 24 | c_ >> 40) + word;
      words[i] = word;
    }
  }

 private:
  uint64_t* state_;
  uint64_t a_, b_, c_, counter_;
};

}  // namespace
