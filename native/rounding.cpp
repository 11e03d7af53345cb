// Rounding by itself.
#include "kernels.h"

GW_API void gw_round_stochastically(const float* x, int64_t n, uint16_t* out, uint64_t* noise) {
  kernels().round_stochastically(x, n, out, noise);
}
