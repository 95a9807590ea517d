// The scale of an RMSNorm over rows, and what it makes of an access.
#pragma once

#include "row_kernel.cuh"

namespace kiln::templates {

/// rsqrt(mean of squares + eps), of their sum.
__device__ inline float rms_scale_of(float sum, int hidden, float eps) {
  return norm_scale(__fdividef(sum, static_cast<float>(hidden)) + eps);
}
/// The row's scale; `squares`: the sum of this thread's squares.
template <RowConfig c>
__device__ float rms_scale(float squares, int hidden, float eps, unsigned& turn) {
  return rms_scale_of(sum_over_row<c>(squares, turn), hidden, eps);
}

/// `N` elements of a row, normalized and not rounded.
template <int N, class T>
__device__ Pack<float, N> rms_normalized(const Pack<T, N>& x, float scale, const Pack<T, N>& w) {
  Pack<float, N> y;
#pragma unroll
  for (int e = 0; e < N; ++e) y.value[e] = to_float(x.value[e]) * scale * to_float(w.value[e]);
  return y;
}

template <class T, int N>
__device__ Pack<T, N> rounded(const Pack<float, N>& x) {
  Pack<T, N> y;
#pragma unroll
  for (int e = 0; e < N; ++e) y.value[e] = from_float<T>(x.value[e]);
  return y;
}

}  // namespace kiln::templates
