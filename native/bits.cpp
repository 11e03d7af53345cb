// Packing of signs by itself, for payloads that are not blocks.
#include "kernels.h"

GW_API void gw_pack_signs(const float* x, int64_t n, int zero_is_plus, uint8_t* codes) {
  kernels().pack_signs(x, n, zero_is_plus != 0, codes);
}

GW_API void gw_unpack_signs(const uint8_t* codes, int64_t n, float* out) { kernels().unpack_signs(codes, n, out); }
