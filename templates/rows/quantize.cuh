// Device half of quantize.hpp.
#pragma once

#include "float8.cuh"

namespace kiln::templates {

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads())
    quantize_rows(__nv_fp8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  check_row_config<c, T>();
  unsigned turn = 0;
  each_row<c>(rows, [&](long long r) {
    __nv_fp8_e4m3* const to = q + r * hidden;
    with_row<c>(x + r * hidden, to, hidden, [&](auto& row) {
      float most = 0.0f;
      row.each([&](const auto& pack, unsigned) { most = largest_magnitude(pack, most); });
      const float scale = fp8_scale(largest_over_row<c>(most, turn)), factor = 1.0f / scale;
      if (threadIdx.x % c.threads_per_row() == 0) scales[r] = scale;
      row.each([&](const auto& pack, unsigned h) { store_scaled(to + h, pack, factor); });
    });
  });
}

/// The `N` elements from `address` on, of which `count` are there; zeros for the others.
template <int N, class T>
__device__ Pack<T, N> load_part(const T* address, int count, bool whole) {
  Pack<T, N> pack{};
  if (whole && count > 0) return load_pack<N>(address);
#pragma unroll
  for (int e = 0; e < N; ++e)
    if (e < count) pack.value[e] = address[e];
  return pack;
}

template <int N, class T>
__device__ void store_part(__nv_fp8_e4m3* address, const Pack<T, N>& x, float factor, int count,
                           bool whole) {
  if (whole && count > 0) return store_scaled(address, x, factor);
#pragma unroll
  for (int e = 0; e < N; ++e)
    if (e < count) store_scaled(address + e, Pack<T, 1>{{x.value[e]}}, factor);
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads())
    quantize_blocks(__nv_fp8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  check_row_config<c, T>();
  static_assert(c.vector >= 4, "vector: a block's 128 elements are those of one warp at most");
  const long long tiles = column_tiles(c, hidden);
  const long long first = blockIdx.x / tiles * c.kept;
  const int h =
      static_cast<int>(blockIdx.x % tiles * (c.block * c.vector) + threadIdx.x * c.vector);
  const int here = hidden - h;  // elements of this access that are in the row, if positive
  const bool whole =
      hidden % c.vector == 0 && misalignment<c.vector>(x) == 0 && misalignment<c.vector>(q) == 0;

  Pack<T, c.vector> kept[c.kept];
#pragma unroll
  for (int i = 0; i < c.kept; ++i)
    if (first + i < rows) kept[i] = load_part<c.vector>(x + (first + i) * hidden + h, here, whole);
#pragma unroll
  for (int i = 0; i < c.kept; ++i) {
    const long long row = first + i;
    if (row >= rows) continue;  // the same for all threads
    const float most = over_lanes<kScaleBlock / c.vector>(
                           Statistics<1>{{largest_magnitude(kept[i], 0.0f)}}, Largest{})
                           .value[0];
    const float scale = fp8_scale(most);
    if (h % kScaleBlock == 0 && here > 0)
      scales[h / kScaleBlock * scale_leading(rows) + row] = scale;
    store_part(q + row * hidden + h, kept[i], 1.0f / scale, here, whole);
  }
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads())
    quantize_tensor(__nv_fp8_e4m3* q, const T* x, const float* scale, int rows, int hidden) {
  check_row_config<c, T>();
  const long long elements = static_cast<long long>(rows) * hidden;
  const long long first =
      static_cast<long long>(blockIdx.x) * (c.block * c.vector * c.kept) + threadIdx.x * c.vector;
  const bool whole = misalignment<c.vector>(x) == 0 && misalignment<c.vector>(q) == 0;
  const float factor = 1.0f / *scale;
  Pack<T, c.vector> kept[c.kept];
  const auto here = [&](int i) {
    const long long rest = elements - (first + i * c.block * c.vector);
    return static_cast<int>(rest < c.vector ? rest > 0 ? rest : 0 : c.vector);
  };
#pragma unroll
  for (int i = 0; i < c.kept; ++i)
    kept[i] = load_part<c.vector>(x + first + i * c.block * c.vector, here(i),
                                  whole && here(i) == c.vector);
#pragma unroll
  for (int i = 0; i < c.kept; ++i)
    store_part(q + first + i * c.block * c.vector, kept[i], factor, here(i),
               whole && here(i) == c.vector);
}

}  // namespace kiln::templates
