// Indices as Elias and Fano wrote them (Elias, J. ACM 1974, https://doi.org/10.1145/321812.321820), ascending, with
// room for k of n: index >> l, entry by entry, as the places of set bits, and the l lower bits beside.
//
//   upper   k + (n >> l) + 1 bits: bit (index >> l) + j is set for entry j; l = floor(log2(n / k))
//   lower   k * l bits
//
// Each part fills whole words of 4 bytes; the first element lowest. Fewer set bits than k mean fewer entries.
#pragma once
#include "gradwire.h"
#include "numbers.h"

namespace {

// The bytes of as many words of 32 bits as so many bits fill.
inline int64_t in_words(int64_t bits) { return (bits + 31) / 32 * 4; }

struct Places {
  int64_t n, k;
  int low_bits;

  Places(int64_t n, int64_t k) : n(n), k(k), low_bits(0) {
    while (n >> (low_bits + 1) >= k) ++low_bits;
  }

  int64_t upper_bytes() const { return in_words(k + (n >> low_bits) + 1); }
  int64_t bytes() const { return upper_bytes() + in_words(k * low_bits); }
};

// To zeros, one index after another.
class PlaceWriter {
 public:
  PlaceWriter(const Places& at, uint8_t* to) : low_bits_(at.low_bits), upper_(to), lower_(to + at.upper_bytes()) {}

  void put(uint32_t index) {
    const int64_t place = (index >> low_bits_) + count_++;
    upper_[place / 8] = static_cast<uint8_t>(upper_[place / 8] | 1 << place % 8);
    word_ |= static_cast<uint64_t>(index & ((1ull << low_bits_) - 1)) << filled_;
    filled_ += low_bits_;
    if (filled_ < 32) return;
    write(lower_, static_cast<uint32_t>(word_));
    lower_ += 4, word_ >>= 32, filled_ -= 32;
  }

  void finish() {
    if (filled_) write(lower_, static_cast<uint32_t>(word_));
  }

 private:
  int low_bits_, filled_ = 0;
  int64_t count_ = 0;
  uint64_t word_ = 0;
  uint8_t *upper_, *lower_;
};

class PlaceReader {
 public:
  PlaceReader(const Places& at, const uint8_t* from)
      : n_(at.n), k_(at.k), low_bits_(at.low_bits), upper_(from), end_(from + at.upper_bytes()), lower_(end_) {}

  // The next index; n behind the last one, and -1 where this is no payload: there are more than k, or one is n or more.
  int64_t next() {
    while (!word_) {
      if (upper_ == end_) return n_;
      word_ = read<uint32_t>(upper_);
      upper_ += 4, first_ += 32;
    }
    if (count_ == k_) return -1;
    const int64_t place = first_ + __builtin_ctz(word_);
    word_ &= word_ - 1;
    const int64_t index = (place - count_++) << low_bits_ | low();
    return index < n_ ? index : -1;
  }

  // How many there were.
  int64_t count() const { return count_; }

 private:
  uint32_t low() {
    if (left_ < low_bits_) {
      field_ |= static_cast<uint64_t>(read<uint32_t>(lower_)) << left_;
      lower_ += 4, left_ += 32;
    }
    const uint32_t low = static_cast<uint32_t>(field_ & ((1ull << low_bits_) - 1));
    field_ >>= low_bits_, left_ -= low_bits_;
    return low;
  }

  int64_t n_, k_, count_ = 0, first_ = -32;  // first_: the place of word_'s first bit
  int low_bits_, left_ = 0;
  uint32_t word_ = 0;
  uint64_t field_ = 0;
  const uint8_t *upper_, *end_, *lower_;
};

}  // namespace
