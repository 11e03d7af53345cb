// The k largest of a vector: candidates above a bound from a sample, then exactly k of them.
#pragma once
#include "largest.h"

// Entries found: indices, ascending, and values; room for SPARE more than `room`.
struct Found {
  uint32_t* indices;
  float* values;
  int64_t room;
  int64_t count;
};

constexpr int64_t select_entries(int64_t n, int64_t k) {
  const int64_t most = 4 * k + SAMPLE;  // what a good bound lets pass is 1.1 to 2 times k, or few in all
  return (most < n ? most : n) + TILE;
}

inline Found found_in(uint8_t* room, int64_t n, int64_t k) {
  const int64_t entries = select_entries(n, k);
  float* const values = reinterpret_cast<float*>(room);
  return {reinterpret_cast<uint32_t*>(values + entries + SPARE), values, entries, 0};
}

// The k largest of what was found; the others go back to x, where there is one.
void keep_largest(Found& found, int64_t k, float* x);

// The k largest of x, whatever its distribution; reads it some 30 times.
void find_exactly(const float* x, int64_t n, int64_t k, Found& found);
