// Device half of quantize_weights.hpp: a thread block has a block of 128 x 128, and keeps it.
#pragma once

#include "fp8_tiles.cuh"
#include "quantize_weights.hpp"

namespace kiln::templates {

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    quantize_weights(__nv_fp8_e4m3* q, float* scales, const T* w, int n, int k, int) {
  check_row_config<c, T>();
  constexpr int kInRow = kScaleBlock / c.vector;  // accesses
  constexpr int kRows = c.block / kInRow;         // that all threads access at once
  static_assert(kRows * c.kept == kScaleBlock, "kept: all of a block of 128 x 128");
  const auto across = static_cast<unsigned>(scale_blocks(k)),
             down = static_cast<unsigned>(scale_blocks(n));
  const unsigned block = blockIdx.x % across, rest = blockIdx.x / across;
  const auto thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(rest % down) * kScaleBlock + thread / kInRow;
  const int column = static_cast<int>(block) * kScaleBlock + thread % kInRow * c.vector;
  const bool whole = aligned_to_accesses<c>(w, q) && k % c.vector == 0;
  const long long first = (static_cast<long long>(rest / down) * n + row) * k + column;
  const auto at = [&](int i) { return first + static_cast<long long>(i * kRows) * k; };
  const auto here = [&](int i) { return n - row > i * kRows ? k - column : 0; };

  Pack<T, c.vector> kept[c.kept];
#pragma unroll
  for (int i = 0; i < c.kept; ++i) kept[i] = load_part<c.vector>(w + at(i), here(i), whole);
  float most = 0.0f;
#pragma unroll
  for (int i = 0; i < c.kept; ++i) {
    stay_packed(kept[i]);
    most = largest_magnitude(kept[i], most);
  }
  unsigned turn = 0;
  const Fp8Scale scale = fp8_scale_of(largest_over_row<c>(most, turn));
  if (threadIdx.x == 0) scales[blockIdx.x] = scale.scale;
#pragma unroll
  for (int i = 0; i < c.kept; ++i) store_part(q + at(i), kept[i], scale.factor, here(i), whole);
}

}  // namespace kiln::templates
