// One bit per sign, 64 at a time.
#pragma once
#include "simd.h"

namespace {

constexpr int WORD = 64;

GW_INLINE uint64_t low_bits(int count) { return count == WORD ? ~0ull : (1ull << count) - 1; }

// Calls body(i, values, count) for each 64 of n elements; the last are copied and zeros fill them up.
template <class Body> GW_INLINE void each_word(const float* x, int64_t n, Body body) {
  int64_t i = 0;
  for (; i + WORD <= n; i += WORD) body(i, x + i, WORD);
  if (i == n) return;
  float rest[WORD] = {};
  std::memcpy(rest, x + i, static_cast<size_t>(n - i) * 4);
  body(i, rest, static_cast<int>(n - i));
}

GW_INLINE void put_word(uint8_t* codes, int64_t i, uint64_t word, int count) {
  word &= low_bits(count);
  if (count == WORD) write(codes + i / 8, word);
  else std::memcpy(codes + i / 8, &word, static_cast<size_t>(count + 7) / 8);
}

// The bits of vector i, in the lowest places.
template <class Lanes> GW_INLINE uint32_t word_at(const uint8_t* codes, int64_t i, Lanes lanes) {
  uint32_t word = 0;
  std::memcpy(&word, codes + i / 8, static_cast<size_t>(lanes.count + 7) / 8);
  return LANES < 8 ? word >> i % 8 : word;
}

GW_INLINE uint64_t plus_word(const float* values) {
  uint64_t word = 0;
#pragma GCC unroll 16
  for (int j = 0; j < WORD; j += LANES)
    word |= static_cast<uint64_t>(at_least(load<Floats>(values + j), Floats{})) << j;
  return word;
}

GW_INLINE uint64_t minus_word(const float* values) {
  uint64_t word = 0;
#pragma GCC unroll 16
  for (int j = 0; j < WORD; j += LANES)
    word |= static_cast<uint64_t>(at_least(Floats{}, load<Floats>(values + j))) << j;
  return word;
}

void pack_signs(const float* x, int64_t n, bool zero_is_plus, uint8_t* codes) {
  each_word(x, n, [=](int64_t i, const float* values, int count) GW_LAMBDA {
    const uint64_t plus = plus_word(values);
    put_word(codes, i, zero_is_plus ? plus : plus & ~minus_word(values), count);
  });
}

void unpack_signs(const uint8_t* codes, int64_t n, float* out) {
  each_vector(n, [=](int64_t i, auto lanes)
                     GW_LAMBDA { lanes.put(out + i, choose(word_at(codes, i, lanes), splat(1), splat(-1))); });
}

}  // namespace
