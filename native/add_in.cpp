#include <algorithm>

#include "addends.h"

GW_API int gw_add_in(const gw_addends* addends, int64_t n) {
  Adding adding(*addends);
  for (int64_t start = 0; start < n; start += TILE) adding.next(std::min(TILE, n - start));
  return adding.finite();
}
