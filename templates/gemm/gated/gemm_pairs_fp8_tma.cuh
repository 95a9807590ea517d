// Part of gemm_gated_fp8.cuh: how the warps of a block of gemm_tma.cuh store their sums of gate and
// up as 8-bit floats. They leave from registers, in accesses of up to 16 bytes: `out` is a pointer.
//
// Where columns are along n, the 128 columns of C that have a scale in common are four lanes'. With
// swap they are those of all warps that multiply, which tell each other their largest magnitudes in
// shared memory.
#pragma once

#include "../tma/gemm_tma.cuh"
#include "gemm_pairs_fp8.cuh"

namespace kiln::templates {

template <GemmTma c, class T, class Epilogue>
struct GatedFp8TmaOutput {
  static constexpr bool kBlocks = kScalesResults<Epilogue>;
  static constexpr int kTiles = c.block_n / 8, kRowTiles = c.row_tiles();
  static constexpr int kWarps = 4 * c.consumers;
  static_assert(c.swap || (c.block_n % 32 == 0 && c.split_k * c.parts == 1),
                "pairs: block_n is a multiple of 32 columns, and blocks that share k have swap");
  static_assert(!kBlocks || ((c.swap ? c.block_m : c.block_n) == kPairsOfScale && c.store_tma),
                "a tile has 256 columns of gate and up, and no blocks share k");
  using Array = Fp8Result*;
  using Sums = float[kRowTiles][kTiles][4];

  const Epilogue& epilogue;
  const GemmShape<false>& shape;  // of the product
  unsigned char* staging;
  const Array& out;

  __device__ __forceinline__ void prefetch() const {}

  /// Stores 16 x 8 sums at (row, column) of the product, with swap.
  __device__ __forceinline__ void store_direct(const float (&s)[4], int row, int column,
                                               int /*batch*/) const {
    if constexpr (c.swap && !kBlocks) store_unit(s, epilogue.factor(), row, column);
  }

  /// All sums of a warp's part of the tile at (row, column) of the product.
  __device__ __forceinline__ void store_tile(const Sums& sums, int row, int column, int first_row,
                                             int& buffer) const {
    const int warp = hopper::uniform(static_cast<int>(threadIdx.x) / 32);
    row += first_row + warp % 4 * 16;
    if constexpr (!kBlocks && c.swap) {
      const float by = epilogue.factor();
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int j = 0; j < kTiles; ++j) store_unit(sums[i][j], by, row + i * 64, column + j * 8);
    } else if constexpr (!kBlocks) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      const auto known = ready(epilogue);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        known.store_sums(sums[i], out, gated_output(shape), row + i * 64 + lane / 4, column / 2);
    } else if constexpr (!c.swap) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) store_rows(sums[i], row + i * 64, column / 2);
    } else {
      store_columns(sums, row, column, warp - 4, buffer);
    }
  }

 private:
  /// With swap, what becomes of the lane's sums in 16 x 8 ones at (row, column) of the product, in
  /// the first or second of its columns.
  __device__ __forceinline__ float transposed(const float (&s)[4], int e, int row,
                                              int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const GemmShape<false> c_shape = gated_output(shape);
    return output_of(c_shape, epilogue, 0)
        .finished_near(GatedSum{s[e], s[2 + e]}, column + lane % 4 * 2 + e, row / 2 + lane / 4);
  }
  __device__ __forceinline__ void store_unit(const float (&s)[4], float by, int row,
                                             int column) const {
    store_transposed(transposed(s, 0, row, column) * by, transposed(s, 1, row, column) * by, row,
                     column);
  }
  /// Two neighbours along m of a column of C, as lanes have them with swap, at (row, column) of the
  /// product.
  __device__ __forceinline__ void store_transposed(float first, float second, int row,
                                                   int column) const {
    const unsigned bytes = e4m3_pair(first, second);
    const unsigned pair = hopper::transpose_matrix((bytes & 0xff) | (bytes & 0xff00) << 8);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    store_fp8_pair(out, (pair & 0xff) | pair >> 8, gated_output(shape), column + lane / 4,
                   row / 2 + lane % 4 * 2);
  }

  /// 16 rows from `row` on and the 128 columns of C from `column` on.
  __device__ __forceinline__ void store_rows(const float (&sums)[kTiles][4], int row,
                                             int column) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    row += lane / 4;
    const GemmShape<false> c_shape = gated_output(shape);
    float results[kTiles / 2][4], most[2];
    gated_magnitudes(results, most, sums, output_of(c_shape, epilogue, 0), row,
                     column + lane % 4 * 2);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Fp8Scale of = fp8_scale_of(most[h]);
      if (lane % 4 == h) epilogue.store_scale(of.scale, row + 8 * h, column, shape);
      store_fp8_row<kTiles / 2>(
          out, [&](int j, int e) { return results[j][2 * h + e]; }, of.factor, c_shape, row + 8 * h,
          column);
    }
  }

  /// With swap, a warp's 8 columns of C for each 64 rows of the product, and all its rows: `warp`
  /// of those that multiply. Two buffers for magnitudes take turns, so that nobody writes what
  /// another warp still reads of the tile before.
  __device__ __forceinline__ void store_columns(const Sums& sums, int row, int column, int warp,
                                                int& buffer) const {
    constexpr int kRows = c.block_n;  // of C
    static_assert(2 * kWarps * kRows * 4 <= c.staging_bytes(), "both buffers are in the staging");
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float* const magnitudes = reinterpret_cast<float*>(staging) + buffer * kWarps * kRows;
    buffer ^= 1;
    float results[kRowTiles][kTiles][2];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      float most[2] = {};
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float value = transposed(sums[i][j], e, row + i * 64, column + j * 8);
          results[i][j][e] = value;
          if ((row + i * 64) / 2 + lane / 4 < shape.ldc) most[e] = fmaxf(most[e], fabsf(value));
        }
#pragma unroll
      for (int apart = 4; apart <= 16; apart *= 2)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          most[e] = fmaxf(most[e], __shfl_xor_sync(0xffffffffu, most[e], apart));
      if (lane < 4) {
        float* const to = magnitudes + warp * kRows + j * 8 + lane * 2;
        to[0] = most[0];
        to[1] = most[1];
      }
    }
    hopper::named_sync(1, kWarps * 32);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int of_tile = j * 8 + lane % 4 * 2;
      float most[2] = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
#pragma unroll
        for (int e = 0; e < 2; ++e) most[e] = fmaxf(most[e], magnitudes[w * kRows + of_tile + e]);
      const Fp8Scale of[2] = {fp8_scale_of(most[0]), fp8_scale_of(most[1])};
      if (warp == 0 && lane < 4)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          epilogue.store_scale(of[e].scale, column + of_tile + e, row / 2, shape);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        store_transposed(results[i][j][0] * of[0].factor, results[i][j][1] * of[1].factor,
                         row + i * 64, column + j * 8);
    }
  }
};

template <GemmTma c, class T, bool batched, class Epilogue>
  requires kQuantizes<Epilogue>
struct GemmTmaOutputOf<c, T, batched, Epilogue> {
  using Type = GatedFp8TmaOutput<c, T, Epilogue>;
  using Array = typename Type::Array;
  static __device__ __forceinline__ Type of(const Epilogue& epilogue, const GemmShape<false>& shape,
                                            unsigned char* staging, const Array& out) {
    return {epilogue, shape, staging, out};
  }
};

}  // namespace kiln::templates
