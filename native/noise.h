// Small Fast Counting, 64 bits (Chris Doty-Humphrey, PractRand): the stream of numpy.random.SFC64.
#pragma once
#include <cstdint>

namespace {

// Writes `count` words; state (4,) holds three words and a counter.
inline void draw(uint64_t* state, uint64_t* words, int64_t count) {
  uint64_t a = state[0], b = state[1], c = state[2], counter = state[3];
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t word = a + b + counter++;
    a = b ^ b >> 11;
    b = c + (c << 3);
    c = (c << 24 | c >> 40) + word;
    words[i] = word;
  }
  state[0] = a, state[1] = b, state[2] = c, state[3] = counter;
}

}  // namespace
