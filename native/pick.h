// What reaches a bound, and bounds that enough elements reach.
#pragma once
#include "ahead.h"

namespace {

int64_t pick_large(const float* x, int64_t n, float bound, uint32_t first, uint32_t* indices, float* values) {
  const Floats least = splat(bound);
  int64_t m = 0;
  each_vector(n, [&](int64_t i, auto lanes) GW_LAMBDA {
    const Floats v = lanes.template get<Floats>(x + i);
    const uint32_t hits = at_least(magnitude(v), least) & ((1u << lanes.count) - 1);
    if (hits) m += emit(hits, v, first + static_cast<uint32_t>(i), indices + m, values + m);
  });
  return m;
}

int64_t take_large(float* x, int64_t n, float bound, uint32_t first, uint32_t* indices, float* values,
                   const Ahead& ahead) {
  const Floats least = splat(bound);
  int64_t m = 0;
  for (int64_t start = 0; start < n; start += ASKED) {
    fetch(ahead, start, ASKED);
    each_vector(n - start < ASKED ? n - start : ASKED, [&](int64_t j, auto lanes) GW_LAMBDA {
      const int64_t i = start + j;
      const Floats v = lanes.template get<Floats>(x + i);
      const uint32_t hits = at_least(magnitude(v), least) & ((1u << lanes.count) - 1);
      if (!hits) return;
      m += emit(hits, v, first + static_cast<uint32_t>(i), indices + m, values + m);
      lanes.put(x + i, choose(hits, Floats{}, v));
    });
  }
  return m;
}

int64_t count_large(const float* x, int64_t n, float bound) {
  const Floats least = splat(bound);
  int64_t count = 0;
  each_vector(n, [&](int64_t i, auto lanes) GW_LAMBDA {
    const uint32_t hits = at_least(magnitude(lanes.template get<Floats>(x + i)), least);
    count += __builtin_popcount(hits & ((1u << lanes.count) - 1));
  });
  return count;
}

void group_maxima(const float* x, int64_t groups, int64_t each, float* maxima) {
  each_vector(groups, [=](int64_t j, auto lanes) GW_LAMBDA {
    Floats most{};
    for (int64_t i = 0; i < each; ++i) most = larger(magnitude(lanes.template get<Floats>(x + i * groups + j)), most);
    lanes.put(maxima + j, most);
  });
}

}  // namespace
