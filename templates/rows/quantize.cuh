// Device half of quantize.hpp.
#pragma once

#include "fp8_tiles.cuh"
#include "quantize.hpp"
#include "row_walk.cuh"

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

/// What a tile loads and quantizes: x as it is.
template <class T>
struct PlainRows {
  const T* x;
  int hidden;

  template <int N>
  __device__ Pack<T, N> load(long long row, int h, int count, bool whole) const {
    return load_part<N>(x + row * hidden + h, count, whole);
  }
  template <int N>
  __device__ Pack<T, N> value(const Pack<T, N>& loaded) const {
    return loaded;
  }
};

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads())
    quantize_blocks(__nv_fp8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  quantize_tile_by_blocks<c, T>(q, scales, rows, hidden, misalignment<c.vector>(x) == 0,
                                PlainRows<T>{x, hidden});
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
