// What the bodies of a GEMM do where two of its columns are one of C (gemm_gated.hpp). Gate and up
// of a column lie 8 columns apart in a product on tensor cores, so a thread has both, in the same
// place of two tiles of 8 columns; and where columns are the rows of a product, in the two halves
// of 16.
#pragma once

#include "gemm_epilogue.cuh"
#include "gemm_pairs.hpp"

namespace kiln::templates {

/// The epilogue of a gated product whose B lies in the layout `weights`. `Finish`: what sums become
/// before the activation, of columns of which gate's are the first n and up's the next.
template <class Activation, GatedWeights weights, class Finish = StoreSum>
struct Gated {
  static constexpr bool kGated = true, kRepeatable = true;
  static constexpr bool kStacked = weights == GatedWeights::stacked;
  Finish finish;
  int n;  // of C

  /// At a place of C.
  __device__ __forceinline__ float operator()(const GatedSum& sum, epilogue::Place at) const {
    const float gate = finish(sum.gate, at);
    at.column += n;
    return Activation{}(gate, epilogue::Place{}) * finish(sum.up, at);
  }
};
/// With the arguments of `Scales`, an epilogue of kiln/epilogue.hpp.
template <class Activation, GatedWeights weights, class Scales = epilogue::Nothing, class... P>
__device__ __forceinline__ auto gated_epilogue(int n, P... parameters) {
  auto finish = with_arguments<Scales>(parameters...);
  return Gated<Activation, weights, decltype(finish)>{finish, n};
}

/// C without gaps, by the shape of the product.
__device__ __forceinline__ GemmShape<false> gated_output(const GemmShape<false>& product) {
  GemmShape<false> c = product;
  c.n = static_cast<int>(c.ldc);
  return c;
}

/// A thread's sums of as many columns of both kinds as pairs, in the layout of sums: what becomes
/// of one is computed when it is stored, because all at once would take more registers.
template <int kTiles>
struct GatedSums {
  const float (&sums)[kTiles][4];

  struct Four {
    const float (&gate)[4], (&up)[4];
    __device__ __forceinline__ GatedSum operator[](int e) const { return {gate[e], up[e]}; }
  };
  __device__ __forceinline__ Four operator[](int j) const { return {sums[2 * j], sums[2 * j + 1]}; }
};

/// What becomes of all of them, in the layout of sums. Elements e = 0 and 1 are in `row` of C, the
/// others 8 rows below; the thread's first column is `column`.
template <int kTiles, class Epilogue>
__device__ __forceinline__ void gated_results(float (&results)[kTiles / 2][4],
                                              const float (&sums)[kTiles][4],
                                              const GemmOutput<false, Epilogue>& c, long long row,
                                              long long column) {
  const GatedSums<kTiles> pairs{sums};
#pragma unroll
  for (int j = 0; j < kTiles / 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      results[j][e] = c.finished_near(pairs[j][e], static_cast<int>(row) + e / 2 * 8,
                                      static_cast<int>(column) + j * 8 + e % 2);
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
  /// The block of B's scales: gate's come first, then up's, in either layout.
  __device__ int scale_block(int row) const {
    const bool up = row / apart % 2 != 0;
    return (inside(row) ? column(row) : n - 1) / kScaleBlock + (up ? scale_blocks(n) : 0);
  }
};
template <class Epilogue, int apart>
__device__ __forceinline__ GatedRowsFrom<Epilogue::kStacked, apart> gated_rows_from(
    long long column, const GemmShape<false>& product) {
  return {static_cast<int>(column / 2), static_cast<int>(product.ldc)};
}

}  // namespace kiln::templates
