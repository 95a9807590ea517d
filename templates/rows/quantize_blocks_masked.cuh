// Device half of quantize_blocks_masked.hpp.
#pragma once

#include "fp8_tiles.cuh"
#include "quantize_blocks_masked.hpp"

namespace kiln::templates {

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads())
    quantize_blocks_masked(__nv_fp8_e4m3* q, float* scales, const T* x, const int* counts, int m,
                           int hidden, int) {
  const auto of_group = static_cast<unsigned>((static_cast<long long>(m) + c.kept - 1) / c.kept *
                                              column_tiles(c, hidden));
  const unsigned group = blockIdx.x / of_group;
  const int count = counts[group], rows = count < m ? count : m;
  const Fp8Tile<c> tile(rows, hidden, aligned_to_accesses<c>(x, q), blockIdx.x - group * of_group);
  if (tile.first >= rows) return;
  const long long elements = static_cast<long long>(group) * m * hidden;
  const long long leading = scale_leading(m);
  quantize_tile_by_blocks<c, T>(q + elements, scales + group * scale_blocks(hidden) * leading,
                                leading, tile, PlainRows<T>{x + elements, hidden});
}

}  // namespace kiln::templates
