// The C interface of Gradwire's kernels for CPUs. Plain C types only; nothing is allocated and nothing is thrown, and a
// call touches only what it is given. Vectors are float32 and dense; those that are encoded are shorter than 2^31
// elements, of which plans are checked. Payloads may lie at any address. `gradwire/ops/native` calls it through ctypes,
// `gradwire/ops/reference` says what each function means.
#pragma once
#include <stdint.h>

#if defined(__GNUC__)
#define GW_API extern "C" __attribute__((visibility("default")))
#else
#define GW_API extern "C"
#endif

// Changes whenever a function's meaning or a struct's layout does. The loader refuses any other.
#define GW_ABI 10

enum gw_dtype { GW_ABSENT, GW_FLOAT32, GW_BFLOAT16, GW_FLOAT16 };
enum gw_kind { GW_NEAREST, GW_STOCHASTIC, GW_SIGN, GW_ONE_BIT, GW_SHARED_EXPONENT };

// `length` elements of the vector, and their gradient: none where dtype is GW_ABSENT.
struct gw_segment {
  const void* gradient;
  int64_t length;
  int64_t dtype;
};

// What is added in: next = decay * old + weight * gradient. `old` is float32 or bfloat16; without it, zero. `next` may be
// `old`.
struct gw_addends {
  float* next;
  const void* old;
  const gw_segment* segments;
  int64_t count;
  float decay;
  float weight;
  int64_t old_dtype;
};

// A part of the output: the parts, one after another, are the whole vector.
struct gw_span {
  float* data;
  int64_t length;
};

// How blocks of `block` elements (a multiple of 8) become codes of `bits` bits, whole numbers up to `top`.
struct gw_code {
  int32_t kind;
  int32_t bits;
  int32_t top;
  int32_t block;
};

// Where a payload's scales and codes lie. Blocks begin anew with each of `count` segments of `lengths` elements.
struct gw_blocks {
  const int64_t* lengths;
  int64_t count;
  gw_code code;
};

// Room for k of n entries, whose values are float32 (32), or a sign and one of 8 levels (4); or for their places (0).
struct gw_layout {
  int64_t n;
  int64_t k;
  int64_t value_bits;
};

// `ranks` payloads, `stride` bytes apart.
struct gw_rows {
  const uint8_t* data;
  int64_t stride;
  int64_t ranks;
};

// `count` matrices M (rows, columns), each `stride` elements after the one before, and their thin factors P (rank, rows)
// and Q (rank, columns), which lie one after another.
struct gw_matrices {
  int64_t count;
  int64_t stride;
  int64_t rows;
  int64_t columns;
  int64_t rank;
};

GW_API int gw_abi(void);
// 1 baseline (SSE2, NEON or plain), 3 AVX2, 4 AVX-512: what is in use.
GW_API int gw_level(void);
// Uses `level`, 0 for the machine's best, and returns what is then in use: another one where the machine lacks it.
GW_API int gw_set_level(int level);

// These three return 1, or 0 where the result is not finite, or reaches 2^96: of so many and so large numbers no sum
// overflows below that.
GW_API int gw_add_in(const gw_addends* addends, int64_t n);
GW_API int gw_add_select(const gw_addends* addends, const gw_layout* layout, uint8_t* payload, uint8_t* room);
GW_API int gw_add_quantise(const gw_addends* addends, const gw_blocks* blocks, uint8_t* scales, uint8_t* codes,
                           uint64_t* noise, int keep);

// Bytes of `room` that selecting k of n elements takes.
GW_API int64_t gw_select_room(int64_t n, int64_t k);
// Indices, ascending, of the k largest; returns how many.
GW_API int64_t gw_top_k(const float* x, int64_t n, int64_t k, uint32_t* indices, uint8_t* room);
// Indices and magnitudes of what reaches the bound, in room for `most` + GW_SLACK; -1 where there are more than `most`.
GW_API int64_t gw_above(const float* x, int64_t n, float bound, int64_t most, uint32_t* indices, float* magnitudes);
#define GW_SLACK 4112
// Indices (rows, k), ascending, within each row of (rows, length); room for 3 * length + 64 floats.
GW_API void gw_top_k_rows(const float* x, int64_t rows, int64_t length, int64_t k, uint32_t* indices, float* room);

// The sum of all ranks' payloads. Parts end anywhere; `room` is gw_blocks_room() bytes.
GW_API void gw_decode_blocks(const gw_span* out, const gw_blocks* blocks, const gw_rows* rows, int64_t codes_at,
                             uint8_t* room);
GW_API int64_t gw_blocks_room(int64_t block);
// 0, or -1 where one of them is no payload: what is in the output then is unspecified.
GW_API int gw_decode_entries(const gw_span* out, const gw_layout* layout, const gw_rows* rows, uint8_t* room);
// Bytes of `room` that `gw_decode_entries` takes.
GW_API int64_t gw_entries_room(int64_t ranks);

// m entries to a payload; with levels `values` becomes what was sent, and zeros take no room.
GW_API void gw_pack_entries(const gw_layout* layout, const uint32_t* indices, float* values, int64_t m,
                            uint8_t* payload);
// The entries of a payload, and how many; -1 where it is no payload.
GW_API int64_t gw_unpack_entries(const gw_layout* layout, const uint8_t* payload, uint32_t* indices, float* values);

// One bit per sign, 1 for plus; the first element lowest.
GW_API void gw_pack_signs(const float* x, int64_t n, int zero_is_plus, uint8_t* codes);
GW_API void gw_unpack_signs(const uint8_t* codes, int64_t n, float* out);

// x rounded stochastically to bfloat16, with 16 bits of noise an element.
GW_API void gw_round_stochastically(const float* x, int64_t n, uint16_t* out, uint64_t* noise);

// P = Q Mᵀ and Q = P M.
GW_API void gw_project_rows(const float* m, const gw_matrices* shape, const float* q, float* p);
GW_API void gw_project_columns(const float* m, const gw_matrices* shape, const float* p, float* q);
// M = Pᵀ Q, or where `subtract`, M -= Pᵀ Q.
GW_API void gw_product(float* m, const gw_matrices* shape, const float* p, const float* q, int subtract);
