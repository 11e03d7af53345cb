// `Entries`: values (k,) float32, counts per block of 65,536 elements (blocks,) int32, low halves of the indices (k,).
#pragma once
#include "gradwire.h"
#include "numbers.h"

namespace {

struct Entries {
  const gw_layout& layout;

  int64_t blocks() const { return (layout.n + 0xffff) >> 16; }
  int64_t counts_at() const { return 4 * layout.k; }
  int64_t low_at() const { return counts_at() + 4 * blocks(); }
  int64_t bytes() const { return low_at() + 2 * (layout.k + layout.k % 2); }

  float value(const uint8_t* payload, int64_t j) const { return read<float>(payload + 4 * j); }
  int64_t count(const uint8_t* payload, int64_t block) const {
    return read<int32_t>(payload + counts_at() + 4 * block);
  }
  uint16_t low(const uint8_t* payload, int64_t j) const { return read<uint16_t>(payload + low_at() + 2 * j); }
};

}  // namespace

void pack_entries(const gw_layout& layout, const uint32_t* indices, const float* values, int64_t m, uint8_t* payload);
// How many entries there are; -1 where counts or indices are out of range.
int64_t check_entries(const gw_layout& layout, const uint8_t* payload);
