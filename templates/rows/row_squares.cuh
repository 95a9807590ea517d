// The scale of an RMSNorm over rows, and what it makes of an access.
#pragma once

#include "row_kernel.cuh"

namespace kiln::templates {

/// rsqrt(mean of squares + eps), of the sum of this thread's squares.
template <RowConfig c>
__device__ float rms_scale(float squares, int hidden, float eps, unsigned& turn) {
  return rsqrtf(sum_over_row<c>(squares, turn) / static_cast<float>(hidden) + eps);
}

/// The row's `N` elements from x on, normalized and not rounded.
template <int N, class T>
__device__ Pack<float, N> rms_normalized(const Pack<T, N>& x, float scale, const T* w) {
  const Pack<T, N> weight = load_any<N>(w);
  Pack<float, N> y;
#pragma unroll
  for (int e = 0; e < N; ++e) y.value[e] = to_float(x.value[e]) * scale * to_float(weight.value[e]);
  return y;
}

}  // namespace kiln::templates
