// Stochastic rounding to bfloat16, which is the upper half of a float32.
#pragma once
#include "noise.h"

namespace {

// The lower half says how far a number lies behind its neighbour towards zero: it carries over with such odds.
void round_stochastically(const float* x, int64_t n, uint16_t* out, uint64_t* state) {
  constexpr int64_t part = 256;
  uint64_t words[part / 4];
  uint16_t sixteen[part];
  uint32_t bits[part];
  Noise noise(state);
  for (int64_t i = 0; i < n; i += part) {
    const int64_t width = n - i < part ? n - i : part;
    noise.draw(words, (width + 3) / 4);
    std::memcpy(sixteen, words, static_cast<size_t>(width) * sizeof(uint16_t));
    std::memcpy(bits, x + i, static_cast<size_t>(width) * sizeof(float));
    for (int64_t j = 0; j < width; ++j) {
      out[i + j] = static_cast<uint16_t>((bits[j] + (sixteen[j] ^ 0x8000u)) >> 16);
    }
  }
}

}  // namespace
