// Memory that is needed soon, asked for while there is other work to do.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace {

constexpr int64_t LINE = 16;    // elements; 64 bytes
constexpr int64_t ASKED = 256;  // elements at a time: a core has some 48 lines under way, and would wait for more

// Elements `from` and on of what comes after a tile.
GW_INLINE void fetch(const Ahead& ahead, int64_t from, int64_t count) {
  for (int64_t i = from; i < from + count; i += LINE) {
    __builtin_prefetch(reinterpret_cast<const void*>(ahead.old + 4 * i), 0, 2);
    __builtin_prefetch(reinterpret_cast<const void*>(ahead.gradient + ahead.gradient_bytes * i), 0, 2);
    __builtin_prefetch(reinterpret_cast<const void*>(ahead.next + 4 * i), 1, 2);
  }
}

}  // namespace
