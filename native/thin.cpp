// Batches of matrices and their thin factors.
#include "kernels.h"

GW_API void gw_project_rows(const float* m, const gw_matrices* shape, const float* q, float* p) {
  const auto& [count, stride, rows, columns, rank] = *shape;
  for (int64_t i = 0; i < count; ++i)
    kernels().project_rows(m + i * stride, q + i * rank * columns, rows, columns, rank, p + i * rank * rows);
}

GW_API void gw_project_columns(const float* m, const gw_matrices* shape, const float* p, float* q) {
  const auto& [count, stride, rows, columns, rank] = *shape;
  for (int64_t i = 0; i < count; ++i)
    kernels().project_columns(m + i * stride, p + i * rank * rows, rows, columns, rank, q + i * rank * columns);
}

GW_API void gw_product(float* m, const gw_matrices* shape, const float* p, const float* q, int subtract) {
  const auto& [count, stride, rows, columns, rank] = *shape;
  for (int64_t i = 0; i < count; ++i)
    kernels().thin_product(m + i * stride, p + i * rank * rows, q + i * rank * columns, rows, columns, rank, subtract);
}
