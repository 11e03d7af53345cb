// next = decay * old + weight * gradient, and whether it is finite.
#pragma once
#include "gradwire.h"
#include "simd.h"

namespace {

struct Float32 {
  static constexpr int bytes = 4;
  template <class Lanes> static GW_INLINE Floats get(const char* from, Lanes lanes) {
    return lanes.template get<Floats>(from);
  }
};

struct BFloat16 {
  static constexpr int bytes = 2;
  template <class Lanes> static GW_INLINE Floats get(const char* from, Lanes lanes) {
    return from_bfloat16(lanes.template get<Halves>(from));
  }
};

struct Float16 {
  static constexpr int bytes = 2;
  template <class Lanes> static GW_INLINE Floats get(const char* from, Lanes lanes) {
    return from_float16(lanes.template get<Halves>(from));
  }
};

// Calls value(i, lanes) for each vector and writes it, and 0 for what is below `least`; false where one reaches 2^96, is
// infinite, or NaN: then w - w is NaN.
template <class Value> GW_INLINE bool write_checked(float* next, int64_t n, float least, Value value) {
  const Floats smallest = splat(least);
  Bits odd{};
  each_vector(n, [&](int64_t i, auto lanes) GW_LAMBDA {
    const Floats sum = value(i, lanes), v = magnitude(sum) < smallest ? Floats{} : sum;
    const Floats w = v * 0x1p32f;
    odd |= (Bits)(w - w);
    lanes.put(next + i, v);
  });
  uint32_t any = 0;
  for (int lane = 0; lane < LANES; ++lane) any |= odd[lane];
  return any == 0;
}

template <class Dtype>
bool add_typed(float* next, const float* old, const void* gradient, int64_t n, float decay, float weight,
               float least) {
  const char* g = static_cast<const char*>(gradient);
  const Floats d = splat(decay), s = splat(weight);
  if (!old) {
    return write_checked(next, n, least,
                         [=](int64_t i, auto lanes) GW_LAMBDA { return s * Dtype::get(g + i * Dtype::bytes, lanes); });
  }
  return write_checked(next, n, least, [=](int64_t i, auto lanes) GW_LAMBDA {
    return d * lanes.template get<Floats>(old + i) + s * Dtype::get(g + i * Dtype::bytes, lanes);
  });
}

bool keep_old(float* next, const float* old, int64_t n, float decay, float least) {
  const Floats d = splat(decay);
  return write_checked(next, n, least, [=](int64_t i, auto lanes) GW_LAMBDA {
    return old ? d * lanes.template get<Floats>(old + i) : Floats{};
  });
}

bool add_gradient(float* next, const float* old, const void* gradient, int64_t dtype, int64_t n, float decay,
                  float weight, float least) {
  switch (dtype) {
    case GW_FLOAT32: return add_typed<Float32>(next, old, gradient, n, decay, weight, least);
    case GW_BFLOAT16: return add_typed<BFloat16>(next, old, gradient, n, decay, weight, least);
    case GW_FLOAT16: return add_typed<Float16>(next, old, gradient, n, decay, weight, least);
    default: return keep_old(next, old, n, decay, least);
  }
}

}  // namespace
