// Part of gemm_tma.cuh: sums of 128 k that are multiplied with the scales of their blocks
// (kiln/block_scales.hpp) and added in float. A warp copies a slice's scales to shared memory, to
// the stage of its operands. gemm_slices_scaled.cuh has the same for the body simt.
#pragma once

#include "../shared/gemm_epilogue.cuh"
#include "gemm_tma.hpp"
#include "kiln/block_scales.hpp"
#include "kiln/hopper.cuh"

namespace kiln::templates {

/// Where a slice's scales lie in shared memory: one for each of the tile's elements along m, then
/// one for each block along n. "Rows" and "columns" are the product's, as in gemm_tma.hpp.
/// With `pairs` (gemm_pairs.hpp) the elements along n are C's, of which gate and up have scales
/// apart, one behind the other.
template <GemmTma c, bool pairs>
struct GemmTmaScaleLayout {
  static constexpr int kKinds = pairs ? 2 : 1;
  static constexpr int kAlongM = c.scales_along_m();
  static constexpr int kAlongN = (c.swap ? c.block_m : c.block_n) / kKinds;  // elements
  /// Blocks of n that a tile reaches into; tiles begin at multiples of scale_group().
  static constexpr int kGroup = c.scale_group(pairs);
  static constexpr int kBlocks = (kScaleBlock - kGroup + kAlongN - 1) / kScaleBlock + 1;
  static_assert(kBlocks * kKinds <= GemmTma::kMostScaleBlocks);
};

/// A warp's copies of the scales of a tile at (row, column), with scales_of its batch.
template <GemmTma c, bool pairs>
class GemmTmaScaleCopy : GemmTmaScaleLayout<c, pairs> {
  using Layout = GemmTmaScaleLayout<c, pairs>;

 public:
  template <class Scales, class Shape>
  __device__ __forceinline__ GemmTmaScaleCopy(const Scales& scales, const Shape& shape, int row,
                                              int column, int first_slice)
      : leading_(static_cast<unsigned>(scale_leading(scales.rows))) {
    const int lane = static_cast<int>(threadIdx.x) % 32, first_m = c.swap ? column : row;
    const int first_n = (c.swap ? row : column) / Layout::kKinds;
    const int n = pairs ? static_cast<int>(shape.ldc) : shape.n;
    left_m_ = shape.m - first_m - lane;
    along_m_ = scales.a + first_slice * scale_leading(scales.rows) + first_m + lane;
    const int block = min(first_n + lane / Layout::kKinds * kScaleBlock, n - 1) / kScaleBlock +
                      lane % Layout::kKinds * scale_blocks(n);
    along_n_ = scales.b + static_cast<long long>(block) * scale_blocks(shape.k) + first_slice;
  }
  /// Starts to copy those of the next slice. Elements outside of A have 0, blocks outside of B the
  /// last block's scale: nothing is stored of either.
  __device__ __forceinline__ void copy(float* to) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < Layout::kAlongM; i += 32)
      if (Layout::kAlongM % 32 == 0 || i + lane < Layout::kAlongM)
        hopper::copy_word(to + i + lane, along_m_ + i, i < left_m_);
    if (lane < Layout::kBlocks * Layout::kKinds)
      hopper::copy_word(to + Layout::kAlongM + lane, along_n_, true);
    along_m_ += leading_;
    ++along_n_;
  }

 private:
  const float* along_m_;  // of the slice and the lane's first element
  const float* along_n_;  // of the slice and the lane's block
  unsigned leading_;
  int left_m_;  // elements of A from the lane's first one on
};

/// What a thread's sums of a slice are multiplied with (gemm_tma_block.cuh).
template <GemmTma c, bool pairs = false>
class GemmTmaFactors : GemmTmaScaleLayout<c, pairs> {
  using Layout = GemmTmaScaleLayout<c, pairs>;

 public:
  using Sums = float[c.block_n / 8][4];
  /// A slice's.
  struct Slice {
    float of_rows[c.row_tiles()][2];
    float of_columns[c.swap ? c.block_n / 4 : Layout::kBlocks * Layout::kKinds];
  };

  /// Of a tile at (row, column), for the thread's warpgroup, which begins `first_row` behind it.
  __device__ __forceinline__ GemmTmaFactors(int row, int column, int first_row) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    of_row_ = first_row + thread / 32 * 16 + thread % 32 / 4;
    in_block_ = (c.swap ? row : column) / Layout::kKinds % kScaleBlock;
  }
  /// Those of a slice, which lie at `scales` in shared memory.
  __device__ __forceinline__ void load(Slice& slice, const float* scales) const {
    const float* const along_m = scales;
    const float* const along_n = scales + Layout::kAlongM;
#pragma unroll
    for (int i = 0; i < c.row_tiles(); ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        slice.of_rows[i][h] = !c.swap ? along_m[of_row_ + i * 64 + h * 8] : along_n[of_n(i, h)];
    if constexpr (c.swap) {
      const int lane = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
      for (int j = 0; j < c.block_n / 8; ++j) {
        const float2 two = reinterpret_cast<const float2*>(along_m)[j * 4 + lane];
        slice.of_columns[2 * j] = two.x;
        slice.of_columns[2 * j + 1] = two.y;
      }
    } else {
#pragma unroll
      for (int j = 0; j < Layout::kBlocks * Layout::kKinds; ++j) slice.of_columns[j] = along_n[j];
    }
  }
  /// Adds the slice's products of the thread's `i`th tile of 64 rows, and of as many of 8 columns
  /// from `first` on as there are.
  template <int tiles>
  __device__ __forceinline__ void add(Sums& sums, const float (&products)[tiles][4],
                                      const Slice& slice, int i, int first) const {
#pragma unroll
    for (int j = 0; j < tiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        sums[first + j][e] +=
            products[j][e] * (slice.of_rows[i][e / 2] * of_column(slice, first + j, e));
  }

 private:
  int of_row_;    // the thread's first row in the tile
  int in_block_;  // where the tile begins in its first block of n

  /// With swap: which of the scales along n the thread's row is multiplied with.
  __device__ __forceinline__ int of_n(int i, int h) const {
    if constexpr (pairs) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      return (in_block_ + (of_row_ - lane / 4 + i * 64) / 2 + lane / 4) / kScaleBlock * 2 + h;
    }
    return (in_block_ + of_row_ + i * 64 + h * 8) / kScaleBlock;
  }
  /// The factor of the thread's columns among the 8 that begin at 8 j.
  __device__ __forceinline__ float of_column(const Slice& slice, int j, int e) const {
    if constexpr (c.swap) return slice.of_columns[2 * j + e % 2];
    const int kind = j % Layout::kKinds,
              group = j / Layout::kKinds * 8 / Layout::kGroup * Layout::kGroup;
    float factor = slice.of_columns[kind];
#pragma unroll
    for (int block = 1; block < Layout::kBlocks; ++block)
      if (in_block_ + group >= block * kScaleBlock)
        factor = slice.of_columns[block * Layout::kKinds + kind];
    return factor;
  }
};

/// Without scales.
template <GemmTma c>
struct GemmTmaNoFactors {
  struct Slice {};
  __device__ __forceinline__ void load(Slice&, const float*) const {}
  template <int tiles>
  __device__ __forceinline__ void add(float (&sums)[c.block_n / 8][4],
                                      const float (&products)[tiles][4], const Slice&, int,
                                      int first) const {
#pragma unroll
    for (int j = 0; j < tiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[first + j][e] += products[j][e];
  }
};

}  // namespace kiln::templates
