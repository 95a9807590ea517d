// Device half of softmax.hpp.
#pragma once

#include "log_sum.cuh"
#include "row_walk.cuh"
#include "softmax.hpp"

namespace kiln::templates {

template <int N, class T>
__device__ Pack<T, N> weights(const Pack<T, N>& x, float max, float scale) {
  Pack<T, N> y;
#pragma unroll
  for (int e = 0; e < N; ++e)
    y.value[e] = from_float<T>(exp_of(to_float(x.value[e]) - max) * scale);
  return y;
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    softmax(T* y, const T* x, int rows, int columns) {
  check_row_config<c, T>();
  unsigned turn = 0;
  with_rows<c>(x, y, rows, columns, [&](auto& row, long long r) {
    T* const to = y + r * columns;
    const MaxAndSum s = max_and_sum(row, turn);
    const float scale = __fdividef(1.0f, s.value[1]);
    row.each([&](const auto& pack, unsigned h) {
      store_pack(to + h, weights(pack, s.value[0], scale));
    });
  });
}

}  // namespace kiln::templates
