// Device half of rmsnorm_residual.hpp.
#pragma once

#include "rmsnorm_residual.hpp"
#include "row_squares.cuh"

namespace kiln::templates {

template <RowConfig c, int kVector, int kKept, class T>
__device__ void add_and_normalize(T* y, T* residual, const T* x, const T* w, int hidden, float eps,
                                  unsigned& turn) {
  Row<c, kVector, kKept, T> row(residual, hidden);
  float squares = 0.0f;
  row.join(Row<c, kVector, kKept, T>(x, hidden),
           [&]<int N>(Pack<T, N>& sum, const Pack<T, N>& added, unsigned h) {
#pragma unroll
             for (int e = 0; e < N; ++e)
               sum.value[e] = from_float<T>(to_float(sum.value[e]) + to_float(added.value[e]));
             store_pack(residual + h, sum);
             squares += sum_of_squares(sum);
           });
  Beside<kVector, kKept, T, false> beside(w, row);
  const float scale = rms_scale<c>(squares, hidden, eps, turn);
  row.each(
      [&]<int N>(const Pack<T, N>& sum, unsigned h, const Pack<T, N>& weight) {
        store_pack(y + h, rounded<T>(rms_normalized(sum, scale, weight)));
      },
      beside);
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rmsnorm_residual(T* y, T* residual, const T* x, const T* w, int rows, int hidden, float eps) {
  check_row_config<c, T>();
  unsigned turn = 0;
  each_row<c>(rows, [&](long long r) {
    T* const to = y + r * hidden;
    T* const sum = residual + r * hidden;
    const T* const from = x + r * hidden;
    if (aligned_alike<c.vector>(sum, from) && aligned_alike<c.vector>(sum, to))
      add_and_normalize<c, c.vector, c.kept>(to, sum, from, w, hidden, eps, turn);
    else
      add_and_normalize<c, 1, 0>(to, sum, from, w, hidden, eps, turn);
  });
}

}  // namespace kiln::templates
