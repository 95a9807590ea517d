// Part of gemm_tma.cuh: sums of 128 k that are multiplied with the scales of their blocks
// (kiln/block_scales.hpp) and added in float. gemm_slices_scaled.cuh has the same for the body
// simt.
#pragma once

#include "../shared/gemm_epilogue.cuh"
#include "gemm_tma.hpp"
#include "kiln/block_scales.hpp"
#include "kiln/hopper.cuh"

namespace kiln::templates {

/// What a thread's sums of a slice are multiplied with (gemm_tma_block.cuh). A slice's factors are
/// loaded while the one before it is multiplied, or the one before that if slices are short: loaded
/// later, they would keep the tensor cores waiting.
/// "Rows" and "columns" are the product's, as in gemm_tma.hpp. Places outside of C have factors,
/// too, which nothing is stored of.
/// With `pairs` (gemm_pairs.hpp) the elements along n are C's, of which gate and up have scales
/// apart: up's lie behind all of gate's.
template <GemmTma c, bool pairs = false>
class GemmTmaFactors {
 public:
  using Sums = float[c.block_n / 8][4];

  /// The factors of a tile's element (row, column), with scales_of its batch, `row` being that of
  /// the thread's warpgroup, and of `slices` from `first` on, at least one.
  template <class Scales, class Shape>
  __device__ __forceinline__ GemmTmaFactors(const Scales& scales, const Shape& shape, int row,
                                            int column, int first, int slices)
      : leading_(scale_leading(scales.rows)),
        m_(shape.m),
        n_(pairs ? static_cast<int>(shape.ldc) : shape.n),
        blocks_(scale_blocks(shape.k)),
        left_(slices) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int of_row = thread % 32 / 4, of_column = thread % 4 * 2;
    row += thread / 32 * 16;
    first_m_ = c.swap ? column + of_column : row + of_row;
    first_n_ = (c.swap ? row : column) / kKinds + (c.swap ? of_row : of_column);
#ifndef KILN_HOST_TARGET
    // A factor that is known to be the same for all threads would be moved to a uniform register at
    // once, and its load be waited for.
    asm volatile("" : "+r"(first_n_));
#endif
    along_m_ = scales.a + first * leading_ + first_m_;
    along_n_ = scales.b + first;
    load(loaded_[1]);
    if constexpr (kAhead == 2) load_next();
  }
  /// A warp sees to it that the scales of a block's tile at (row, column) are in the L2 cache.
  template <class Scales, class Shape>
  __device__ __forceinline__ static void prefetch(const Scales& scales, const Shape& shape, int row,
                                                  int column, int first, int slices) {
    constexpr int kLine = 32, kAlongM = c.swap ? c.block_n : c.block_m;  // scales
    constexpr int kLines = (kAlongM + 2 * kLine - 2) / kLine;
    const int lane = static_cast<int>(threadIdx.x) % 32, first_m = c.swap ? column : row;
    const int first_n = (c.swap ? row : column) / kKinds;
    const int n = pairs ? static_cast<int>(shape.ldc) : shape.n, blocks = scale_blocks(shape.k);
    const long long leading = scale_leading(scales.rows);
#pragma unroll 1
    for (int i = lane; i < slices * kLines; i += 32)
      hopper::prefetch_line(scales.a + (first + i / kLines) * leading +
                            min(first_m + i % kLines * kLine, shape.m - 1));
    constexpr int kTileBlocks = (c.swap ? c.block_m : c.block_n) / kKinds / kScaleBlock + 2;
#pragma unroll 1
    for (int i = lane * kLine; i < slices + kLine; i += 32 * kLine)
#pragma unroll 1
      for (int block = 0; block < kTileBlocks * kKinds; ++block) {
        const int in_kind = min(first_n + block / kKinds * kScaleBlock, n - 1) / kScaleBlock +
                            block % kKinds * scale_blocks(n);
        hopper::prefetch_line(scales.b + static_cast<long long>(in_kind) * blocks +
                              min(first + i, blocks - 1));
      }
  }
  /// The factors of the next slice, of the first one at first.
  __device__ __forceinline__ void next_slice() {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) loaded_[a] = loaded_[a + 1];
    load_next();
  }
  /// Adds the slice's products of the thread's `i`th tile of 64 rows, and of as many of 8 columns
  /// from `first` on as there are.
  template <int tiles>
  __device__ __forceinline__ void add(Sums& sums, const float (&slice)[tiles][4], int i,
                                      int first) const {
#pragma unroll
    for (int j = 0; j < tiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sums[first + j][e] +=
            slice[j][e] * (loaded_[0].of_rows[i][e / 2] * of_column(first + j, e));
  }

 private:
  static constexpr int kRowTiles = c.row_tiles(), kColumnTiles = c.block_n / 8;
  static constexpr int kKinds = pairs ? 2 : 1;  // of columns: gate and up
  /// Blocks of n that a tile reaches into; tiles begin at multiples of scale_group().
  static constexpr int kGroup = c.scale_group(pairs);
  static constexpr int kBlocks = (kScaleBlock - kGroup + c.block_n / kKinds - 1) / kScaleBlock + 1;
  static constexpr int kOfColumns = c.swap ? 2 * kColumnTiles : kBlocks * kKinds;
  /// Slices; as many as registers allow.
  static constexpr int kAhead = !c.swap && kRowTiles == 1 && !c.halved() &&
                                        c.held_sums() + 3 * (2 + kOfColumns) <= GemmTma::kMostSums
                                    ? 2
                                    : 1;

  const float* along_m_;  // of the slice that is loaded last, from the thread's first element on
  const float* along_n_;  // of that slice and the first block of n
  long long leading_;
  int first_m_, first_n_;  // of the thread's elements
  int m_, n_, blocks_;
  int left_;  // slices to be loaded, and that one
  struct Factors {
    float of_rows[kRowTiles][2], of_columns[kOfColumns];
  };
  Factors loaded_[1 + kAhead];  // of the slice that is added, and of the next ones

  __device__ __forceinline__ float of_m(int offset) const {
    return first_m_ + offset < m_ ? along_m_[offset] : 0.0f;
  }
  __device__ __forceinline__ float of_n(int column, bool up) const {
    const int block = min(column, n_ - 1) / kScaleBlock + (up ? scale_blocks(n_) : 0);
    return along_n_[static_cast<long long>(block) * blocks_];
  }
  __device__ __forceinline__ void load(Factors& factors) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        factors.of_rows[i][h] = !c.swap ? of_m(i * 64 + h * 8)
                                : pairs ? of_n(first_n_ + i * 32, h == 1)
                                        : of_n(first_n_ + i * 64 + h * 8, false);
#pragma unroll
    for (int j = 0; j < kOfColumns; ++j)
      factors.of_columns[j] = c.swap ? of_m(j / 2 * 8 + j % 2)
                                     : of_n(first_n_ + j / kKinds * kScaleBlock, j % kKinds == 1);
  }
  __device__ __forceinline__ void load_next() {
    if (--left_ <= 0) return;
    along_m_ += leading_;
    ++along_n_;
    load(loaded_[kAhead]);
  }
  /// The factor of the thread's columns among the 8 that begin at 8 j.
  __device__ __forceinline__ float of_column(int j, int e) const {
    if constexpr (c.swap) return loaded_[0].of_columns[2 * j + e % 2];
    const int kind = j % kKinds, group = j / kKinds * 8 / kGroup * kGroup;
    float factor = loaded_[0].of_columns[kind];
#pragma unroll
    for (int block = 1; block < kBlocks; ++block)
      if (first_n_ % kScaleBlock + group >= block * kScaleBlock)
        factor = loaded_[0].of_columns[block * kKinds + kind];
    return factor;
  }
};

}  // namespace kiln::templates
