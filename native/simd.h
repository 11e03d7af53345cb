// The vector of a level: 4, 8 or 16 floats, by the compilers' vector extension, so that arithmetic is written once for
// SSE2, AVX2, AVX-512, NEON and anything else. Intrinsics stand only here, where the extension has no word for it.
//
// Everything is in an unnamed namespace: each level compiles its own copy with other instructions, and no linker may
// take one level's copy for another's.
#pragma once
#include "numbers.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define GW_INLINE inline __attribute__((always_inline))
#define GW_LAMBDA __attribute__((always_inline))

namespace {

#if defined(__AVX512BW__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Bits __attribute__((vector_size(4 * LANES)));
typedef int16_t Shorts __attribute__((vector_size(2 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
typedef int8_t Bytes __attribute__((vector_size(LANES)));
typedef uint16_t Pairs __attribute__((vector_size(4 * LANES)));  // of bytes, the first lower
typedef int8_t Numbers __attribute__((vector_size(4 * LANES)));
typedef uint8_t Octets __attribute__((vector_size(2 * LANES)));

template <class V> GW_INLINE V load(const void* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

template <class V> GW_INLINE void store(void* to, V v) { std::memcpy(to, &v, sizeof v); }

// All of a vector, or what is left of it at an end: zeros fill up what is not there.
struct Whole {
  static constexpr int count = LANES;
  template <class V> GW_INLINE V get(const void* from) const { return load<V>(from); }
  template <class V> GW_INLINE void put(void* to, V v) const { store(to, v); }
};

struct Part {
  int count;
  template <class V> GW_INLINE V get(const void* from) const {
    V v{};
    std::memcpy(&v, from, sizeof v / LANES * count);
    return v;
  }
  template <class V> GW_INLINE void put(void* to, V v) const { std::memcpy(to, &v, sizeof v / LANES * count); }
};

// Calls body(i, lanes) for each vector of n elements.
template <class Body> GW_INLINE void each_vector(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) body(i, Whole{});
  if (i < n) body(i, Part{static_cast<int>(n - i)});
}

GW_INLINE Floats splat(float value) { return value - Floats{}; }

GW_INLINE Floats magnitude(Floats v) { return (Floats)((Bits)v & MAGNITUDE); }

GW_INLINE Floats larger(Floats a, Floats b) {
#if defined(__AVX512BW__)
  return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

GW_INLINE Floats smaller(Floats a, Floats b) {
#if defined(__AVX512BW__)
  return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
  return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

// To the nearest whole number, ties to even; of at most 2^22 in magnitude.
GW_INLINE Ints nearest(Floats v) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_cvtps_epi32(v);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtps_epi32(v);
#elif defined(__SSE2__)
  return (Ints)_mm_cvtps_epi32(v);
#else
  const Floats whole = splat(12582912.0f);  // 1.5 * 2^23: its last bit counts ones
  return (Ints)((Bits)(v + whole) - (Bits)whole);
#endif
}

GW_INLINE Floats floats(Ints v) { return __builtin_convertvector(v, Floats); }

// GCC 12 takes the narrow vectors apart where it should extend them.
GW_INLINE Ints widen(Bytes v) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_cvtepi8_epi32((__m128i)v);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&v)));
#elif defined(__SSE2__)
  const __m128i four = _mm_cvtsi32_si128(read<int32_t>(&v)), twice = _mm_unpacklo_epi8(four, four);
  return (Ints)_mm_srai_epi32(_mm_unpacklo_epi16(twice, twice), 24);
#else
  return __builtin_convertvector(v, Ints);
#endif
}

GW_INLINE Ints widen(Shorts v) {
#if defined(__AVX512BW__)
  return (Ints)_mm512_cvtepi16_epi32((__m256i)v);
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepi16_epi32((__m128i)v);
#elif defined(__SSE2__)
  const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(&v));
  return (Ints)_mm_srai_epi32(_mm_unpacklo_epi16(four, four), 16);
#else
  return __builtin_convertvector(v, Ints);
#endif
}

GW_INLINE Bits widen(Halves v) { return (Bits)widen((Shorts)v) & 0xffff; }

// Those of LANES whole numbers that fit 8 bits.
GW_INLINE Bytes bytes(Ints v) {
#if defined(__AVX512BW__)
  return (Bytes)_mm512_cvtepi32_epi8((__m512i)v);
#elif defined(__AVX2__)
  const __m128i low = _mm256_castsi256_si128((__m256i)v), high = _mm256_extracti128_si256((__m256i)v, 1);
  const __m128i shorts = _mm_packs_epi32(low, high);
  return load<Bytes>(&(const __m128i&)_mm_packs_epi16(shorts, shorts));
#elif defined(__SSE2__)
  const __m128i shorts = _mm_packs_epi32((__m128i)v, (__m128i)v);
  const int32_t four = _mm_cvtsi128_si32(_mm_packs_epi16(shorts, shorts));
  return load<Bytes>(&four);
#else
  return __builtin_convertvector(v, Bytes);
#endif
}

GW_INLINE Pairs widen(Octets v) {
#if defined(__AVX512BW__)
  return (Pairs)_mm512_cvtepu8_epi16((__m256i)v);
#elif defined(__AVX2__)
  return (Pairs)_mm256_cvtepu8_epi16((__m128i)v);
#elif defined(__SSE2__)
  return (Pairs)_mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&v)), _mm_setzero_si128());
#else
  return __builtin_convertvector(v, Pairs);
#endif
}

// Those that fit 8 bits.
GW_INLINE Octets narrow(Pairs v) {
#if defined(__AVX512BW__)
  return (Octets)_mm512_cvtepi16_epi8((__m512i)v);
#elif defined(__AVX2__)
  return (Octets)_mm_packus_epi16(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
#elif defined(__SSE2__)
  return load<Octets>(&(const __m128i&)_mm_packus_epi16((__m128i)v, (__m128i)v));
#else
  return __builtin_convertvector(v, Octets);
#endif
}

GW_INLINE Bits lane_numbers() {
  Bits v;
  for (int i = 0; i < LANES; ++i) v[i] = static_cast<uint32_t>(i);
  return v;
}

// One bit per lane.
GW_INLINE uint32_t at_least(Floats v, Floats bound) {
#if defined(__AVX512BW__)
  return _mm512_cmp_ps_mask(v, bound, _CMP_GE_OQ);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(v, bound, _CMP_GE_OQ)));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps(_mm_cmpge_ps(v, bound)));
#else
  const Ints hits = v >= bound;
  return (hits[0] & 1) | (hits[1] & 2) | (hits[2] & 4) | (hits[3] & 8);
#endif
}

// Lanes of a whose bit is set, and of b where it is not.
GW_INLINE Floats choose(uint32_t mask, Floats a, Floats b) {
#if defined(__AVX512BW__)
  return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), b, a);
#else
  const Bits bit = 1u << lane_numbers();
  return ((mask - Bits{}) & bit) != 0 ? a : b;
#endif
}

// Writes the chosen lanes of v, and `first` plus their numbers, one after another; may write LANES of each.
GW_INLINE int emit(uint32_t mask, Floats v, uint32_t first, uint32_t* indices, float* values) {
#if defined(__AVX512BW__)
  const __mmask16 chosen = static_cast<__mmask16>(mask);  // in a register, then stored: Zen 4 is slow at both in one
  store(values, (Floats)_mm512_maskz_compress_ps(chosen, v));
  store(indices, (Bits)_mm512_maskz_compress_epi32(chosen, (__m512i)(lane_numbers() + first)));
  return __builtin_popcount(mask);
#else
  int count = 0;
  for (; mask; mask &= mask - 1) {
    const int lane = __builtin_ctz(mask);
    values[count] = v[lane];
    indices[count++] = first + static_cast<uint32_t>(lane);
  }
  return count;
#endif
}

GW_INLINE Floats from_bfloat16(Halves v) { return (Floats)(widen(v) << 16); }

GW_INLINE Floats from_float16(Halves v) {
#if defined(__AVX512BW__)
  return _mm512_cvtph_ps((__m256i)v);
#elif defined(__AVX2__)
  return _mm256_cvtph_ps((__m128i)v);
#else
  const Bits half = widen(v), exponent = half & 0x7c00, shifted = (half & 0x7fff) << 13;
  const Bits normal = shifted + (112u << 23);  // moves the exponent's bias
  const Bits subnormal = (Bits)((Floats)(shifted + (113u << 23)) - 0x1p-14f);  // by normal numbers alone
  const Bits finite = exponent == 0 ? subnormal : normal;
  const Bits number = exponent == 0x7c00 ? shifted | INFINITE : finite;
  return (Floats)(number | (half & 0x8000) << 16);
#endif
}

}  // namespace
