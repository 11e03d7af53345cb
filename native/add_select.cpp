// Adding in, exact top-k and packing in one pass over the vector; what is sent is taken out of it as it is found, and
// what turns out not to be among the k largest is put back.
#include <algorithm>

#include "addends.h"
#include "selection.h"
#include "sparse.h"

namespace {

void put_back(const Found& found, float* x) {
  for (int64_t i = 0; i < found.count; ++i) x[found.indices[i]] = found.values[i];
}

// One pass; `fits` becomes false, and nothing is taken out, where more pass the bound than there is room for.
bool add_and_take(const gw_addends& addends, int64_t n, float bound, Found& found, bool& fits) {
  Adding adding(addends);
  for (int64_t start = 0; start < n; start += TILE) {
    const int64_t width = std::min(TILE, n - start);
    float* const tile = adding.next(width);
    if (fits && found.room - found.count < TILE) {
      fits = false;
      put_back(found, addends.next);
    }
    if (fits) {
      found.count += kernels().take(tile, width, bound, static_cast<uint32_t>(start), found.indices + found.count,
                                    found.values + found.count, adding.ahead());
    }
  }
  return adding.finite();
}

void take_exactly(float* next, int64_t n, int64_t k, Found& found) {
  find_exactly(next, n, k, found);
  for (int64_t i = 0; i < found.count; ++i) next[found.indices[i]] = 0;
}

}  // namespace

GW_API int gw_add_select(const gw_addends* addends, const gw_layout* layout, uint8_t* payload, uint8_t* room) {
  const int64_t n = layout->n, k = layout->k;
  float* const next = addends->next;
  Found found = found_in(room, n, k);
  const float bound = sampled_bound(*addends, n, k, found.values);
  bool fits = true;
  const bool finite = add_and_take(*addends, n, bound, found, fits);
  if (fits && (found.count >= k || bound == float_of(TINY))) {
    keep_largest(found, k, next);
  } else {
    if (fits) put_back(found, next);
    take_exactly(next, n, k, found);
  }
  pack_found(*layout, found, payload, next);
  return finite;
}
