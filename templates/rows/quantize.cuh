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

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads())
    quantize_blocks(__nv_fp8_e4m3* q, float* scales, const T* x, int rows, int hidden) {
  const Fp8Tile<c> tile(rows, hidden, aligned_to_accesses<c>(x, q));
  quantize_tile_by_blocks<c, T>(q, scales, scale_leading(rows), tile, PlainRows<T>{x, hidden});
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads())
    quantize_tensor(__nv_fp8_e4m3* q, const T* x, const float* scale, int rows, int hidden) {
  check_row_config<c, T>();
  const Fp8Piece<c, T> piece(x, static_cast<long long>(rows) * hidden, blockIdx.x,
                             aligned_to_accesses<c>(x, q));
  piece.store(q, fp8_factor_of(*scale));
}

}  // namespace kiln::templates
