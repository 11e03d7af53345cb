#include "addends.h"

GW_API int gw_add_in(const gw_addends* addends, int64_t n) {
  Adding adding(*addends);
  adding.next(n);
  return adding.finite();
}
