// The k-th largest magnitude, and lower bounds of it.
#pragma once
#include "kernels.h"
#include "numbers.h"

// Of numbers that are not NaN, chosen are all magnitudes above `bits`, and the first `equals` of those that equal it.
struct Kth {
  uint32_t bits;
  int64_t equals;

  bool takes(float value) {  // without branches: which way one goes, nobody can predict
    const uint32_t magnitude = magnitude_bits(value);
    const bool equal = magnitude == bits, tied = equal & (equals > 0);
    equals -= equal;
    return (magnitude > bits) | tied;
  }
};

// Of n numbers, k > 0 of at least `least`, fewer where fewer are; NaN is none of them.
Kth kth_largest(const float* x, int64_t n, int64_t k, uint32_t least);

// A magnitude that at least k of n elements reach, with near certainty; room for SAMPLE floats.
constexpr int64_t SAMPLE = 1 << 14;
float sampled_bound(const gw_addends& addends, int64_t n, int64_t k, float* room);
