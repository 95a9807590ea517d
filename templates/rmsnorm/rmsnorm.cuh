// Device half of rmsnorm.hpp.
#pragma once

#include "../device/elements.cuh"
#include "rmsnorm.hpp"

namespace kiln::templates {

template <int N, class T>
__device__ Pack<T, N> normalized(const Pack<T, N>& x, float scale, const Pack<T, N>& w) {
  Pack<T, N> y;
#pragma unroll
  for (int e = 0; e < N; ++e)
    y.value[e] = from_float<T>(to_float(x.value[e]) * scale * to_float(w.value[e]));
  return y;
}

/// The sum over the threads of a row; every thread gets the same bits, whatever the order of warps.
/// Static shared memory: one float per warp when a row has several.
template <RmsNorm c>
__device__ float sum_over_row(float value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  if constexpr (c.warps_per_row() > 1) {
    __shared__ float partial[c.warps_per_row()];
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
#pragma unroll
    for (int warp = 0; warp < c.warps_per_row(); ++warp) value += partial[warp];
  }
  return value;
}

/// One row, `kVector` elements per access, `kVector` dividing hidden; `kKept` accesses per thread
/// stay in registers.
template <RmsNorm c, int kVector, int kKept, class T>
__device__ void normalize_row(T* y, const T* x, const T* w, int hidden, float eps) {
  constexpr int kStep = c.threads_per_row() * kVector;
  const int first = static_cast<int>(threadIdx.x) % c.threads_per_row() * kVector;
  const int rest = first + kKept * kStep;  // from here on x is read twice
  // Few weights are read before they are needed, not when the sum is there.
  constexpr int kEarly = kKept <= 4 ? kKept : 0;
  Pack<T, kVector> kept[kKept > 0 ? kKept : 1], weights[kEarly > 0 ? kEarly : 1];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (first + i * kStep < hidden) kept[i] = load_pack<kVector>(x + first + i * kStep);
#pragma unroll
  for (int i = 0; i < kEarly; ++i)
    if (first + i * kStep < hidden) weights[i] = load_pack<kVector>(w + first + i * kStep);
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (first + i * kStep < hidden) sum += sum_of_squares(kept[i]);
  for (int h = rest; h < hidden; h += kStep) sum += sum_of_squares(load_pack<kVector>(x + h));

  const float scale = rsqrtf(__fdividef(sum_over_row<c>(sum), static_cast<float>(hidden)) + eps);
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int h = first + i * kStep;
    if (h < hidden)
      store_pack(y + h,
                 normalized(kept[i], scale, i < kEarly ? weights[i] : load_pack<kVector>(w + h)));
  }
  for (int h = rest; h < hidden; h += kStep)
    store_pack(y + h, normalized(load_pack<kVector>(x + h), scale, load_pack<kVector>(w + h)));
}

template <RmsNorm c, class T>
__global__ void __launch_bounds__(c.threads())
    rmsnorm(T* y, const T* x, const T* w, int rows, int hidden, float eps) {
  static_assert(c.block % 32 == 0 && c.block >= 32 && c.block <= 1024,
                "block: a multiple of 32, at most 1024 threads");
  static_assert(c.rows_per_block == 1 || c.rows_per_block * 32 == c.block,
                "rows_per_block: 1, or a warp (32 threads) per row");
  static_assert(c.vector * sizeof(T) <= 16, "vector: at most 16 bytes per access");
  static_assert(c.kept >= 0, "kept: accesses per thread, 0 or more");

  const long long row = static_cast<long long>(blockIdx.x) * c.rows_per_block +
                        (c.rows_per_block > 1 ? threadIdx.x / 32 : 0);
  if (c.rows_per_block > 1 && row >= rows) return;  // whole warps, and no barrier follows

  x += row * hidden;
  y += row * hidden;
  if (hidden % c.vector == 0 && aligned(c.vector * sizeof(T), x, w, y))
    normalize_row<c, c.vector, c.kept>(y, x, w, hidden, eps);
  else
    normalize_row<c, 1, 0>(y, x, w, hidden, eps);
}

}  // namespace kiln::templates
