// Part of gemm_slices.cuh: sums of 128 k that are multiplied with the scales of their blocks
// (kiln/block_scales.hpp) and added in float.
#pragma once

#include "../device/dot.cuh"
#include "gemm.hpp"
#include "kiln/block_scales.hpp"

namespace kiln::templates {

/// The body simt (gemm_slices.cuh) with scales: no slice reaches from one block of k to the next,
/// and a block's sums are scaled when all of them are there.
template <Gemm c, class Simt>
struct ScaledSimtBody : Simt {
  float scaled[c.tile_m][c.tile_n] = {};

  /// Adds what has been multiplied of the block whose last slice is at `l`. `scales`: scales_of the
  /// batch; `rows_of_b`: RowsFrom, or like that.
  template <class Scales, class Shape, class Rows>
  __device__ void settle_scaled(const Scales& scales, const Shape& shape, long long row,
                                const Rows& rows_of_b, int l) {
    const int block = l / kScaleBlock, blocks = scale_blocks(shape.k);
    const float* const of_rows = scales.a + block * scale_leading(scales.rows);
    float of_row[c.tile_m];
#pragma unroll
    for (int i = 0; i < c.tile_m; ++i)
      of_row[i] = of_rows[inside(row + this->unit_m() + i * c.units_m(), shape.m)];
#pragma unroll
    for (int j = 0; j < c.tile_n; ++j) {
      const long long at = rows_of_b.scale_block(this->unit_n() + j * c.units_n());
      const float of_column = scales.b[at * blocks + block];
#pragma unroll
      for (int i = 0; i < c.tile_m; ++i) {
        scaled[i][j] += total<c.vector>(this->sums[i][j]) * (of_row[i] * of_column);
        this->sums[i][j] = {};
      }
    }
  }
  template <class Out, class Output>
  __device__ void store(Out* out, const Output& output, long long row, long long column) const {
    this->store_each(out, output, row, column, [&](int i, int j) { return scaled[i][j]; });
  }
  template <class Out, class Output>
  __device__ void store_blocks(Out* out, const Output& output, long long row, long long column,
                               void* shared) const {
    this->store_units(out, output, row, column, shared, [&](int i, int j) { return scaled[i][j]; });
  }

 private:
  __device__ static long long inside(long long place, int size) {
    return place < size ? place : size - 1;
  }
};

}  // namespace kiln::templates
