// What each level does in its own way: work on tiles that lie in the first-level cache. The passes over whole vectors
// are the same for all levels and call these through a table.
#pragma once
#include "gradwire.h"

constexpr int64_t TILE = 4096;         // elements; 16 KB
constexpr int64_t SMALLEST_BLOCK = 8;  // elements that share a scale
constexpr int64_t SPARE = 16;          // what `pick` may write past its last candidate

// Where the next tile's elements lie, as addresses: a processor fetches by itself what lies one after another, but
// begins anew with each page, of which a tile is four. What does not exist may be asked for.
struct Ahead {
  uintptr_t next, old, gradient;
  int64_t gradient_bytes;  // of an element
};

namespace {  // one of its own for each level: the linker may take any one of those with external linkage

// Scales are bfloat16; else float32.
inline bool has_short_scales(const gw_code& code) {
  return code.kind == GW_NEAREST || code.kind == GW_SHARED_EXPONENT;
}

}  // namespace

struct Kernels {
  // next = decay * old + weight * gradient, and 0 where that is below `least`; false where a result is not finite.
  bool (*add)(float* next, const float* old, const void* gradient, int64_t dtype, int64_t n, float decay, float weight,
              float least);
  // Indices (`first` added) and values of |x| >= bound; `take` sets them to 0 in x, which is a tile.
  int64_t (*pick)(const float* x, int64_t n, float bound, uint32_t first, uint32_t* indices, float* values);
  int64_t (*take)(float* x, int64_t n, float bound, uint32_t first, uint32_t* indices, float* values,
                  const Ahead& ahead);
  // How many of n elements have |x| >= bound.
  int64_t (*count)(const float* x, int64_t n, float bound);
  // The largest magnitude of each of `groups` groups: elements j, j + groups, j + 2 * groups, ... of x, `each` of them.
  void (*group_maxima)(const float* x, int64_t groups, int64_t each, float* maxima);
  // The whole blocks of a tile, the last perhaps short: scales and codes, and where `keep`, x minus what they stand
  // for. False where a scale is not finite. Moves `scales`, `codes` and `noise` on.
  bool (*quantise)(float* x, int64_t n, const gw_code* code, uint8_t** scales, uint8_t** codes, uint64_t* noise,
                   bool keep, const Ahead& ahead);
  // What whole blocks stand for, written to out, or added to it; moves `scales` and `codes` on.
  void (*dequantise)(float* out, int64_t n, const gw_code* code, const uint8_t** scales, const uint8_t** codes,
                     bool add);
  void (*pack_signs)(const float* x, int64_t n, bool zero_is_plus, uint8_t* codes);
  void (*unpack_signs)(const uint8_t* codes, int64_t n, float* out);
  // Products of one matrix M (rows, columns) with thin factors P (rank, rows) and Q (rank, columns).
  void (*project_rows)(const float* m, const float* q, int64_t rows, int64_t columns, int64_t rank, float* p);
  void (*project_columns)(const float* m, const float* p, int64_t rows, int64_t columns, int64_t rank, float* q);
  void (*thin_product)(float* m, const float* p, const float* q, int64_t rows, int64_t columns, int64_t rank,
                       bool subtract);
  // bfloat16, rounded stochastically; moves `noise` on.
  void (*round_stochastically)(const float* x, int64_t n, uint16_t* out, uint64_t* noise);
};

const Kernels& kernels();

extern const Kernels baseline_kernels;
#if defined(GW_X86)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif
