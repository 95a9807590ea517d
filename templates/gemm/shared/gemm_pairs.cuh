// What the bodies of a GEMM do where two of its columns are one of C (gemm_gated.hpp). Gate and up
// of a column lie 8 columns apart in a product on tensor cores, so a thread has both, in the same
// place of two tiles of 8 columns; and where columns are the rows of a product, in the two halves
// of 16.
#pragma once

#include "gemm_epilogue.cuh"
#include "gemm_pairs.hpp"

namespace kiln::templates {

/// The epilogue of a gated product whose B lies in the layout `weights`.
template <class Activation, GatedWeights weights>
struct Gated {
  static constexpr bool kGated = true, kRepeatable = true;
  static constexpr bool kStacked = weights == GatedWeights::stacked;
  __device__ __forceinline__ float operator()(float gate, float up) const {
    return Activation{}(gate, epilogue::Place{}) * up;
  }
};

/// C without gaps, by the shape of the product.
__device__ __forceinline__ GemmShape<false> gated_output(const GemmShape<false>& product) {
  GemmShape<false> c = product;
  c.n = static_cast<int>(c.ldc);
  return c;
}

/// A thread's results of its sums of as many columns of both kinds, in the layout of sums.
template <int kTiles, class Epilogue>
__device__ __forceinline__ void gated_results(float (&results)[kTiles / 2][4],
                                              const float (&sums)[kTiles][4],
                                              const Epilogue& epilogue) {
#pragma unroll
  for (int j = 0; j < kTiles / 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) results[j][e] = epilogue(sums[2 * j][e], sums[2 * j + 1][e]);
}

/// The row of B for a column of C.
template <bool stacked>
__device__ __forceinline__ long long gated_row(int column, bool up, int n) {
  return stacked ? column + (up ? static_cast<long long>(n) : 0)
                 : 2ll * (column / kGatedGroup * kGatedGroup) + (up ? kGatedGroup : 0) +
                       column % kGatedGroup;
}

/// The rows of B for a tile in which `apart` columns of gate and as many of up take turns: like
/// RowsFrom.
template <bool stacked, int apart>
struct GatedRowsFrom {
  int first;  // of C's columns
  int n;      // of C
  __device__ int column(int row) const { return first + row / (2 * apart) * apart + row % apart; }
  __device__ bool inside(int row) const { return column(row) < n; }
  __device__ long long at(int row) const {
    if constexpr (!stacked && apart == kGatedGroup) return 2ll * first + row;
    return gated_row<stacked>(column(row), row / apart % 2 != 0, n);
  }
};
template <class Epilogue, int apart>
__device__ __forceinline__ GatedRowsFrom<Epilogue::kStacked, apart> gated_rows_from(
    long long column, const GemmShape<false>& product) {
  return {static_cast<int>(column / 2), static_cast<int>(product.ldc)};
}

}  // namespace kiln::templates
