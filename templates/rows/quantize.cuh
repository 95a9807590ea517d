// Device half of quantize.hpp.
#pragma once

#include "float8.cuh"

namespace kiln::templates {

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    quantize_rows(__nv_fp8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  check_row_config<c, T>();
  unsigned turn = 0;
  with_rows<c>(x, q, rows, hidden, [&](auto& row, long long r) {
    __nv_fp8_e4m3* const to = q + r * hidden;
    float most = 0.0f;
    row.each([&](const auto& pack, unsigned) { most = largest_magnitude(pack, most); });
    const Fp8Scale scale = fp8_scale_of(largest_over_row<c>(most, turn));
    if (thread_of_row<c>() == 0) scales[r] = scale.scale;
    row.each([&](const auto& pack, unsigned h) { store_scaled(to + h, pack, scale.factor); });
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

struct LargestOfEach {
  template <int N>
  __device__ Statistics<N> operator()(const Statistics<N>& a, const Statistics<N>& b) const {
    Statistics<N> most;
#pragma unroll
    for (int i = 0; i < N; ++i) most.value[i] = fmaxf(a.value[i], b.value[i]);
    return most;
  }
};

/// The scales of consecutive rows, of which `count` are there.
template <int N>
__device__ void store_scales(float* address, const float (&scales)[N], long long count) {
  if (N % 4 == 0 && count >= N && misalignment<4>(address) == 0) {
    // The compiler would rather share the stores of the other way.
#pragma unroll
    for (int i = 0; i < N / 4 * 4; i += 4)
      __stcg(reinterpret_cast<float4*>(address + i),
             make_float4(scales[i], scales[i + 1], scales[i + 2], scales[i + 3]));
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (i < count) address[i] = scales[i];
  }
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads())
    quantize_blocks(__nv_fp8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  check_row_config<c, T>();
  static_assert(c.vector >= 4, "vector: a block's 128 elements are those of one warp at most");
  const auto tiles = static_cast<unsigned>(column_tiles(c, hidden));
  const unsigned tile = blockIdx.x / tiles;
  const long long first = static_cast<long long>(tile) * c.kept;
  const int h =
      static_cast<int>((blockIdx.x - tile * tiles) * (c.block * c.vector) + threadIdx.x * c.vector);
  const int here = hidden - h;  // elements of this access that are in the row, if positive
  const bool whole =
      hidden % c.vector == 0 && misalignment<c.vector>(x) == 0 && misalignment<c.vector>(q) == 0;

  // Step by step for all rows, so that none waits for another.
  Pack<T, c.vector> kept[c.kept];
#pragma unroll
  for (int i = 0; i < c.kept; ++i)
    kept[i] = load_part<c.vector>(x + (first + i) * hidden + h, first + i < rows ? here : 0, whole);
  Statistics<c.kept> most;
#pragma unroll
  for (int i = 0; i < c.kept; ++i) most.value[i] = largest_magnitude(kept[i], 0.0f);
  most = over_lanes<kScaleBlock / c.vector>(most, LargestOfEach{});
  float scale[c.kept], factor[c.kept];
#pragma unroll
  for (int i = 0; i < c.kept; ++i) {
    const Fp8Scale of = fp8_scale_of(most.value[i]);
    scale[i] = of.scale;
    factor[i] = of.factor;
  }
  if (h % kScaleBlock == 0 && here > 0)
    store_scales(scales + h / kScaleBlock * scale_leading(rows) + first, scale, rows - first);
#pragma unroll
  for (int i = 0; i < c.kept; ++i)
    if (first + i < rows) store_part(q + (first + i) * hidden + h, kept[i], factor[i], here, whole);
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
