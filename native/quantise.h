// Blocks to scales and codes, and what is left of them.
#pragma once
#include "ahead.h"
#include "codes.h"
#include "gradwire.h"
#include "noise.h"
#include "signs.h"

namespace {

constexpr double BELOW_ONE = 1 - 0x1p-21;  // two roundings up and the most noise would make 128 of 127
constexpr int SUMS = 16 / LANES;           // sums are taken in 16 parts at every level: the same rounding

GW_INLINE float largest_lane(Floats v) {
#if defined(__AVX512BW__)
  return _mm512_reduce_max_ps(v);
#else
  float most = v[0];
  for (int lane = 1; lane < LANES; ++lane) most = v[lane] > most ? v[lane] : most;
  return most;
#endif
}

GW_INLINE float peak(const float* x, int64_t n) {
  Floats a{}, b{};
  int64_t i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {  // two at a time: `larger` takes four cycles
    a = larger(magnitude(load<Floats>(x + i)), a);
    b = larger(magnitude(load<Floats>(x + i + LANES)), b);
  }
  each_vector(
      n - i, [&](int64_t j, auto lanes) GW_LAMBDA { a = larger(magnitude(lanes.template get<Floats>(x + i + j)), a); });
  return largest_lane(larger(a, b));
}

// Calls body(block, i, width) for each block of n elements, which begins at element i.
template <class Body> GW_INLINE void each_block(int64_t n, int64_t width, Body body) {
  for (int64_t block = 0, i = 0; i < n; ++block, i += width) body(block, i, n - i < width ? n - i : width);
}

// A block's scale: codes are x * inverse, and stand for code * step.
struct Scale {
  float inverse, step;
};

GW_INLINE float unless_infinite(float inverse) { return is_finite(inverse) ? inverse : 0; }

GW_INLINE Scale write_nearest(float most, int top, uint8_t** scales) {
  const uint16_t half = to_bfloat16(most / static_cast<float>(top));
  write(*scales, half);
  *scales += 2;
  const float step = from_bfloat16(half);
  return {unless_infinite(1 / step), step};
}

GW_INLINE Scale write_stochastic(float most, int top, uint8_t** scales) {
  write(*scales, most);
  *scales += 4;
  const float below = static_cast<float>(top * BELOW_ONE);
  return {unless_infinite(1 / most * below), most / static_cast<float>(top)};
}

// The least power of two of which `most` is at most 127, which is (2 - 2^-6) * 2^6: its exponent less 6, or one more, by
// a carry.
GW_INLINE Scale write_power_of_two(float most, uint8_t** scales) {
  uint32_t bits;
  std::memcpy(&bits, &most, sizeof bits);
  bits = (bits + 0x1ffff) & 0x7f800000;
  bits = bits > 7u << 23 ? bits - (6u << 23) : 1u << 23;
  write(*scales, static_cast<uint16_t>(bits >> 16));
  *scales += 2;
  const uint32_t both[] = {(254u << 23) - bits, bits};
  Scale scale;
  std::memcpy(&scale, both, sizeof scale);
  return scale;
}

template <int KIND> GW_INLINE Scale write_scale(float most, int top, uint8_t** scales) {
  return KIND == GW_NEAREST      ? write_nearest(most, top, scales)
         : KIND == GW_STOCHASTIC ? write_stochastic(most, top, scales)
                                 : write_power_of_two(most, scales);
}

// Codes as bytes, and what is left; `words` are the noise of those that have it, 16 bits each. Its mean is 0, and it takes
// no whole number to another one.
template <int KIND>
GW_INLINE void round_part(float* x, int64_t n, Scale scale, int top, const uint64_t* words, bool keep,
                          int8_t* numbers) {
  const Floats inverse = splat(scale.inverse), step = splat(scale.step), most = splat(static_cast<float>(top));
  each_vector(n, [=](int64_t i, auto lanes) GW_LAMBDA {
    const Floats v = lanes.template get<Floats>(x + i);
    Floats q = v * inverse;
    if (KIND == GW_NEAREST) {
      q = smaller(larger(q, -most), most);
    } else {
      const Shorts noise = load<Shorts>(reinterpret_cast<const char*>(words) + 2 * i);
      q += floats(widen(noise)) * 0x1p-16f;
      q += splat(0x1p-17f);
    }
    const Ints whole = nearest(q);
    lanes.put(numbers + i, bytes(whole));
    if (keep) lanes.put(x + i, v - floats(whole) * step);
  });
}

// A few at a time, so that one part is rounded while noise is drawn for the next.
template <int KIND>
GW_INLINE void round_with_noise(float* x, int64_t n, Scale scale, int top, Noise& noise, bool keep, int8_t* numbers) {
  constexpr int64_t part = 64;
  uint64_t words[2][part / 4];
  noise.draw(words[0], ((n < part ? n : part) + 3) / 4);
  for (int64_t i = 0, turn = 0; i < n; i += part, turn ^= 1) {
    const int64_t width = n - i < part ? n - i : part, rest = n - i - width;
    noise.draw(words[turn ^ 1], ((rest < part ? rest : part) + 3) / 4);
    round_part<KIND>(x + i, width, scale, top, words[turn], keep, numbers + i);
  }
}

// Blocks of whole numbers. All scales first: what a block's rounding waits for is ready by then. Codes are packed many
// blocks at a time: a small block is too short to be packed in vectors.
template <int KIND>
GW_INLINE void quantise_numbers(float* x, int64_t n, const gw_code& code, uint8_t** scales, uint8_t** codes,
                                uint64_t* state, bool keep, const Ahead& ahead) {
  Scale of[TILE / SMALLEST_BLOCK];
  int8_t numbers[CHUNK];
  uint64_t none[4] = {};
  Noise noise(KIND == GW_NEAREST ? none : state);
  each_block(n, code.block, [&](int64_t block, int64_t i, int64_t width) GW_LAMBDA {
    of[block] = write_scale<KIND>(peak(x + i, width), code.top, scales);
  });
  int64_t filled = 0;
  each_block(n, code.block, [&](int64_t block, int64_t i, int64_t width) GW_LAMBDA {
    for (const int64_t end = i + width; i < end;) {
      const int64_t rest = end - i < CHUNK - filled ? end - i : CHUNK - filled, piece = rest < ASKED ? rest : ASKED;
      fetch(ahead, i, piece);
      int8_t* const whole = (code.bits == 8 ? reinterpret_cast<int8_t*>(*codes) : numbers) + filled;
      if (KIND == GW_NEAREST) round_part<KIND>(x + i, piece, of[block], code.top, nullptr, keep, whole);
      else round_with_noise<KIND>(x + i, piece, of[block], code.top, noise, keep, whole);
      i += piece, filled += piece;
      if (filled < CHUNK && i < n) continue;
      if (code.bits != 8) pack_codes(numbers, filled, code.bits, *codes);
      *codes += (filled * code.bits + 7) / 8;
      filled = 0;
    }
  });
}

GW_INLINE float sum_lanes(const Floats* parts) {
  float t[16];
  std::memcpy(t, parts, sizeof t);
  for (int width = 8; width; width /= 2)
    for (int lane = 0; lane < width; ++lane) t[lane] += t[lane + width];
  return t[0];
}

// x minus `plus` or `minus`, as the bits say.
GW_INLINE void take_signs(float* x, int64_t n, const uint8_t* codes, float plus, float minus) {
  const Floats p = splat(plus), m = splat(minus);
  each_vector(n, [=](int64_t i, auto lanes) GW_LAMBDA {
    lanes.put(x + i, lanes.template get<Floats>(x + i) - choose(word_at(codes, i, lanes), p, m));
  });
}

// Sums of more than a tile are added up in double: in float32, late elements would add too little to them.

// The mean magnitude, and signs.
GW_INLINE bool sign_block(float* x, int64_t n, uint8_t** scales, uint8_t** codes, bool keep, const Ahead& ahead,
                          int64_t at) {
  double sum = 0;
  uint8_t* const into = *codes;
  each_block(n, TILE, [&](int64_t, int64_t start, int64_t width) GW_LAMBDA {
    Floats sums[SUMS] = {};
    each_word(x + start, width, [&](int64_t i, const float* values, int count) GW_LAMBDA {
      fetch(ahead, at + start + i, count);
      put_word(into, start + i, plus_word(values), count);
#pragma GCC unroll 16
      for (int j = 0; j < WORD; j += LANES) sums[j / LANES % SUMS] += magnitude(load<Floats>(values + j));
    });
    sum += sum_lanes(sums);
  });
  const float mean = static_cast<float>(sum) / static_cast<float>(n);
  write(*scales, mean);
  *scales += 4;
  if (keep) take_signs(x, n, into, mean, -mean);
  *codes += (n + 7) / 8;
  return is_finite(mean);
}

// The means of the negative elements and of the others, and signs.
GW_INLINE bool one_bit_block(float* x, int64_t n, uint8_t** scales, uint8_t** codes, bool keep, const Ahead& ahead,
                             int64_t at) {
  double positive = 0, negative = 0;
  int64_t others = 0;
  uint8_t* const into = *codes;
  each_block(n, TILE, [&](int64_t, int64_t start, int64_t width) GW_LAMBDA {
    Floats above[SUMS] = {}, below[SUMS] = {};
    each_word(x + start, width, [&](int64_t i, const float* values, int count) GW_LAMBDA {
      fetch(ahead, at + start + i, count);
      const uint64_t word = plus_word(values) & low_bits(count);
      put_word(into, start + i, word, count);
      others += __builtin_popcountll(word);
#pragma GCC unroll 16
      for (int j = 0; j < WORD; j += LANES) {
        const Floats v = load<Floats>(values + j);
        above[j / LANES % SUMS] += larger(v, Floats{});
        below[j / LANES % SUMS] += smaller(v, Floats{});
      }
    });
    positive += sum_lanes(above), negative += sum_lanes(below);
  });
  const int64_t negatives = n - others;
  const float minus = static_cast<float>(negative) / static_cast<float>(negatives ? negatives : 1);
  const float plus = static_cast<float>(positive) / static_cast<float>(others ? others : 1);
  write(*scales, minus);
  write(*scales + 4, plus);
  *scales += 8;
  if (keep) take_signs(x, n, into, plus, minus);
  *codes += (n + 7) / 8;
  return is_finite(minus) && is_finite(plus);
}

GW_INLINE bool quantise_signs(float* x, int64_t n, const gw_code& code, uint8_t** scales, uint8_t** codes, bool keep,
                              const Ahead& ahead) {
  bool finite = true;
  for (int64_t i = 0; i < n; i += code.block) {
    const int64_t width = n - i < code.block ? n - i : code.block;
    finite &= (code.kind == GW_SIGN ? sign_block : one_bit_block)(x + i, width, scales, codes, keep, ahead, i);
  }
  return finite;
}

bool quantise_blocks(float* x, int64_t n, const gw_code* code, uint8_t** scales, uint8_t** codes, uint64_t* noise,
                     bool keep, const Ahead& ahead) {
  switch (code->kind) {
    case GW_NEAREST: quantise_numbers<GW_NEAREST>(x, n, *code, scales, codes, noise, keep, ahead); return true;
    case GW_STOCHASTIC: quantise_numbers<GW_STOCHASTIC>(x, n, *code, scales, codes, noise, keep, ahead); return true;
    case GW_SHARED_EXPONENT:
      quantise_numbers<GW_SHARED_EXPONENT>(x, n, *code, scales, codes, noise, keep, ahead);
      return true;
    default: return quantise_signs(x, n, *code, scales, codes, keep, ahead);
  }
}

}  // namespace
