// Products of matrices with thin factors, row by row in memory: P (rank, rows), Q (rank, columns), M (rows, columns).
// Every sum is added up in an order that does not depend on the level.
#pragma once
#include <algorithm>

#include "gradwire.h"
#include "simd.h"

namespace {

constexpr int64_t WIDE = 16;    // partial sums of a dot product, at every level
constexpr int64_t PANEL = 512;  // columns whose sums stay in the first-level cache

// Calls body(i, lanes) for each vector of columns `from` to `to`.
template <class Body> GW_INLINE void each_column(int64_t from, int64_t to, Body body) {
  each_vector(to - from, [=](int64_t i, auto lanes) GW_LAMBDA { body(from + i, lanes); });
}

// R times S dot products, of `columns` elements each, of rows of m with rows of q.
template <int R, int S> GW_INLINE void dots(const float* m, const float* q, int64_t columns, float* p, int64_t rows) {
  Floats sums[R][S][WIDE / LANES] = {};
  const auto add = [&](int64_t j, int v, auto lanes) GW_LAMBDA {
    Floats factor[S];
    for (int s = 0; s < S; ++s) factor[s] = lanes.template get<Floats>(q + s * columns + j);
    for (int r = 0; r < R; ++r) {
      const Floats x = lanes.template get<Floats>(m + r * columns + j);
      for (int s = 0; s < S; ++s) sums[r][s][v] += x * factor[s];
    }
  };
  int64_t j = 0;
  for (; j + WIDE <= columns; j += WIDE)
    for (int v = 0; v < WIDE / LANES; ++v) add(j + v * LANES, v, Whole{});
  for (int v = 0; j < columns; j += LANES, ++v)
    add(j, v, Part{static_cast<int>(std::min<int64_t>(LANES, columns - j))});
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) {
      float parts[WIDE];
      std::memcpy(parts, sums[r][s], sizeof parts);
      for (int64_t half = WIDE / 2; half; half /= 2)
        for (int64_t i = 0; i < half; ++i) parts[i] += parts[i + half];
      p[s * rows + r] = parts[0];
    }
  }
}

template <int R>
GW_INLINE void dots_of_rows(const float* m, const float* q, int64_t columns, int64_t rank, float* p, int64_t rows) {
  int64_t s = 0;
  for (; s + 4 <= rank; s += 4) dots<R, 4>(m, q + s * columns, columns, p + s * rows, rows);
  for (; s < rank; ++s) dots<R, 1>(m, q + s * columns, columns, p + s * rows, rows);
}

// P = Q Mᵀ.
void project_rows(const float* m, const float* q, int64_t rows, int64_t columns, int64_t rank, float* p) {
  constexpr int R = LANES == 16 ? 4 : 1;  // as many sums as there are registers
  int64_t i = 0;
  for (; i + R <= rows; i += R) dots_of_rows<R>(m + i * columns, q, columns, rank, p + i, rows);
  for (; i < rows; ++i) dots_of_rows<1>(m + i * columns, q, columns, rank, p + i, rows);
}

// q += p m for R rows of m, added up among themselves first, so that long sums round less.
template <int R>
GW_INLINE void add_rows(const float* m, const float* p, int64_t rows, int64_t columns, int64_t rank, int64_t from,
                        int64_t to, float* q) {
  for (int64_t s = 0; s < rank; ++s) {
    float* const sums = q + s * columns;
    Floats factor[R];
    for (int r = 0; r < R; ++r) factor[r] = splat(p[s * rows + r]);
    each_column(from, to, [=](int64_t j, auto lanes) GW_LAMBDA {
      Floats sum = factor[0] * lanes.template get<Floats>(m + j);
      for (int r = 1; r < R; ++r) sum += factor[r] * lanes.template get<Floats>(m + r * columns + j);
      lanes.put(sums + j, lanes.template get<Floats>(sums + j) + sum);
    });
  }
}

// Q = P M, a panel of columns at a time.
void project_columns(const float* m, const float* p, int64_t rows, int64_t columns, int64_t rank, float* q) {
  std::fill(q, q + rank * columns, 0.0f);
  for (int64_t from = 0; from < columns; from += PANEL) {
    const int64_t to = std::min(from + PANEL, columns);
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4) add_rows<4>(m + i * columns, p + i, rows, columns, rank, from, to, q);
    for (; i < rows; ++i) add_rows<1>(m + i * columns, p + i, rows, columns, rank, from, to, q);
  }
}

// R rows of Pᵀ Q, written, or taken out of what is there.
template <int R>
GW_INLINE void product_rows(float* m, const float* p, const float* q, int64_t rows, int64_t columns, int64_t rank,
                            bool subtract) {
  each_column(0, columns, [=](int64_t j, auto lanes) GW_LAMBDA {
    Floats sums[R] = {};
    for (int64_t s = 0; s < rank; ++s) {
      const Floats factor = lanes.template get<Floats>(q + s * columns + j);
      for (int r = 0; r < R; ++r) sums[r] += splat(p[s * rows + r]) * factor;
    }
    for (int r = 0; r < R; ++r) {
      float* const at = m + r * columns + j;
      lanes.put(at, subtract ? lanes.template get<Floats>(at) - sums[r] : sums[r]);
    }
  });
}

// M = Pᵀ Q, or M -= Pᵀ Q.
void thin_product(float* m, const float* p, const float* q, int64_t rows, int64_t columns, int64_t rank,
                  bool subtract) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) product_rows<4>(m + i * columns, p + i, q, rows, columns, rank, subtract);
  for (; i < rows; ++i) product_rows<1>(m + i * columns, p + i, q, rows, columns, rank, subtract);
}

}  // namespace
