// Device half of rmsnorm_fp8.hpp.
#pragma once

#include "float8.cuh"
#include "rmsnorm_fp8.hpp"
#include "row_squares.cuh"
#include "row_walk.cuh"

namespace kiln::templates {

struct JoinSumAndLargest {
  __device__ Statistics<2> operator()(const Statistics<2>& a, const Statistics<2>& b) const {
    return {{a.value[0] + b.value[0], fmaxf(a.value[1], b.value[1])}};
  }
};

template <int N, class T>
__device__ float largest_product(const Pack<T, N>& x, const Pack<T, N>& w, float of) {
#pragma unroll
  for (int e = 0; e < N; ++e) of = fmaxf(of, fabsf(to_float(x.value[e]) * to_float(w.value[e])));
  return of;
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    rmsnorm_fp8(__nv_fp8_e4m3* q, float* scales, const T* x, const T* w, int rows, int hidden,
                float eps) {
  check_row_config<c, T>();
  unsigned turn = 0;
  with_rows<c>(
      x, q, rows, hidden,
      [&](auto& row, long long r, auto& weights) {
        __nv_fp8_e4m3* const to = q + r * hidden;
        Statistics<2> s{};
        row.each(
            [&](const auto& pack, unsigned, const auto& weight) {
              s.value[0] += sum_of_squares(pack);
              s.value[1] = largest_product(pack, weight, s.value[1]);
            },
            weights);
        s = over_row<c>(s, turn, JoinSumAndLargest{});
        // The norm is one factor of all, so the largest product is that of the largest element.
        const float norm = rms_scale_of(s.value[0], hidden, eps);
        const Fp8Scale scale = fp8_scale_of(s.value[1] * norm);
        if (thread_of_row<c>() == 0) scales[r] = scale.scale;
        row.each(
            [&](const auto& pack, unsigned h, const auto& weight) {
              store_scaled(to + h, rms_normalized(pack, norm, weight), scale.factor);
            },
            weights);
      },
      w);
}

}  // namespace kiln::templates
