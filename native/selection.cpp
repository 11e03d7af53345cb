#include "selection.h"

#include <algorithm>

namespace {

constexpr int64_t PIECE = 256;

}

void keep_largest(Found& found, int64_t k, float* x) {
  if (found.count <= k) return;
  Kth kth = kth_largest(found.values, found.count, k, TINY);
  int64_t kept = 0;
  for (int64_t start = 0; start < found.count; start += PIECE) {
    uint32_t lost_indices[PIECE];
    float lost_values[PIECE];
    int64_t lost = 0;
    for (int64_t i = start; i < std::min(start + PIECE, found.count); ++i) {
      const uint32_t index = lost_indices[lost] = found.indices[i];
      const float value = lost_values[lost] = found.values[i];
      const bool taken = kth.takes(value);
      found.indices[kept] = index, found.values[kept] = value;
      kept += taken, lost += !taken;
    }
    if (!x) continue;
    for (int64_t i = 0; i < lost; ++i) x[lost_indices[i]] = lost_values[i];
  }
  found.count = kept;
}

void find_exactly(const float* x, int64_t n, int64_t k, Found& found) {
  Kth kth = kth_largest(x, n, k, TINY);
  const float bound = float_of(std::max(kth.bits, TINY));
  found.count = 0;
  for (int64_t start = 0; start < n && found.count < k; start += TILE) {
    uint32_t* const indices = found.indices + found.count;
    float* const values = found.values + found.count;
    const int64_t m =
        kernels().pick(x + start, std::min(TILE, n - start), bound, static_cast<uint32_t>(start), indices, values);
    int64_t kept = 0;
    for (int64_t i = 0; i < m; ++i) {
      indices[kept] = indices[i], values[kept] = values[i];
      kept += kth.takes(values[i]);
    }
    found.count += kept;
  }
}

GW_API int64_t gw_select_room(int64_t n, int64_t k) { return 8 * (select_entries(n, k) + SPARE); }

GW_API int64_t gw_above(const float* x, int64_t n, float bound, int64_t most, uint32_t* indices, float* magnitudes) {
  int64_t m = 0;
  for (int64_t start = 0; start < n; start += TILE) {
    m += kernels().pick(x + start, std::min(TILE, n - start), bound, static_cast<uint32_t>(start), indices + m,
                        magnitudes + m);
    if (m > most) return -1;
  }
  for (int64_t i = 0; i < m; ++i) magnitudes[i] = float_of(magnitude_bits(magnitudes[i]));
  return m;
}

namespace {

// False where there is not room for all that pass.
bool pick_above(const float* x, int64_t n, float bound, Found& found) {
  for (int64_t start = 0; start < n; start += TILE) {
    if (found.room - found.count < TILE) return false;
    found.count += kernels().pick(x + start, std::min(TILE, n - start), bound, static_cast<uint32_t>(start),
                                  found.indices + found.count, found.values + found.count);
  }
  return true;
}

}  // namespace

GW_API int64_t gw_top_k(const float* x, int64_t n, int64_t k, uint32_t* indices, uint8_t* room) {
  const gw_segment all{nullptr, n, GW_ABSENT};
  const gw_addends addends{nullptr, x, &all, 1, 1, 0, GW_FLOAT32};
  Found found = found_in(room, n, k);
  const float bound = sampled_bound(addends, n, k, found.values);
  const bool fits = pick_above(x, n, bound, found);
  if (fits && (found.count >= k || bound == float_of(TINY))) keep_largest(found, k, nullptr);
  else find_exactly(x, n, k, found);
  std::copy(found.indices, found.indices + found.count, indices);
  return found.count;
}
