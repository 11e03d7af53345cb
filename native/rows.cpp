// The k largest of every row of a matrix: a bound from the maxima of groups, then exactly k of what reaches it.
#include <algorithm>

#include "largest.h"
#include "subnormals.h"

namespace {

// Groups: four per element sought, for with fewer more elements pass the bound, and no fewer than fill vectors.
int64_t groups_of(int64_t length, int64_t k) {
  return length / std::max<int64_t>(1, length / std::max<int64_t>(4 * k, 64));
}

// A magnitude that at least k of `length` numbers reach, and few more; room for `length` floats.
float row_bound(const float* row, int64_t length, int64_t k, float* room) {
  const int64_t groups = groups_of(length, k), enough = k + k / 4;
  kernels().group_maxima(row, groups, length / groups, room);
  uint32_t low = 0, high = INFINITE + 1;  // k reach `low`, not so many reach `high`
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const int64_t count = kernels().count(room, groups, float_of(middle));
    (count >= k ? low : high) = middle;
    if (count >= k && count <= enough) break;
  }
  return float_of(low);
}

// Exactly k indices, the first of equals; the row holds no NaN.
void top_k_row(const float* row, int64_t length, int64_t k, uint32_t* indices, float* room) {
  float* const values = room;
  uint32_t* const places = reinterpret_cast<uint32_t*>(room + length + SPARE);
  const float bound = row_bound(row, length, k, room);
  const int64_t m = kernels().pick(row, length, bound, 0, places, values);
  if (m == k) {
    std::copy(places, places + k, indices);
    return;
  }
  Kth kth = kth_largest(values, m, k, 1);
  if (!kth.bits) kth.equals = k - (m - std::count(values, values + m, 0.0f));  // the first zeros join all others
  for (int64_t i = 0, kept = 0; kept < k && i < m; ++i) {
    if (kth.takes(values[i])) indices[kept++] = places[i];
  }
}

// The row, or a copy in which NaN counts as infinite.
const float* without_nan(const float* row, int64_t length, float* room) {
  if (kernels().count(row, length, 0) == length) return row;
  for (int64_t i = 0; i < length; ++i) room[i] = row[i] == row[i] ? row[i] : float_of(INFINITE);
  return room;
}

}  // namespace

GW_API void gw_top_k_rows(const float* x, int64_t rows, int64_t length, int64_t k, uint32_t* indices, float* room) {
  const Subnormals count;
  float* const sound = room + 2 * (length + SPARE);
  for (int64_t r = 0; r < rows; ++r, x += length, indices += k)
    top_k_row(without_nan(x, length, sound), length, k, indices, room);
}
