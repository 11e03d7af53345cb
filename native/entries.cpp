#include "entries.h"

void pack_entries(const gw_layout& layout, const uint32_t* indices, const float* values, int64_t m, uint8_t* payload) {
  const Entries at{layout};
  std::memset(payload + 4 * m, 0, static_cast<size_t>(at.low_at() - 4 * m));
  copy(payload, values, 4 * m);
  uint8_t* const low = payload + at.low_at();
  int64_t j = 0;
  for (int64_t block = 0; block < at.blocks(); ++block) {
    const int64_t first = j;
    for (; j < m && indices[j] >> 16 == block; ++j) write(low + 2 * j, static_cast<uint16_t>(indices[j]));
    write(payload + at.counts_at() + 4 * block, static_cast<int32_t>(j - first));
  }
  std::memset(low + 2 * m, 0, static_cast<size_t>(at.bytes() - at.low_at() - 2 * m));
}

int64_t check_entries(const gw_layout& layout, const uint8_t* payload) {
  const Entries at{layout};
  int64_t total = 0;
  for (int64_t block = 0; block < at.blocks(); ++block) {
    const int64_t count = at.count(payload, block);
    if (count < 0 || count > layout.k - total) return -1;
    total += count;
  }
  const int64_t last = at.blocks() - 1, width = layout.n - (last << 16);
  for (int64_t j = total - at.count(payload, last); j < total; ++j)
    if (at.low(payload, j) >= width) return -1;
  return total;
}
