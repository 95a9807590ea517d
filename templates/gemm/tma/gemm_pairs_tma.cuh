// Part of gemm_tma.cuh: how a warp's sums of gate and up become elements of C, by the GEMM's own
// ways of storing a product of half as many columns.
//
// Where columns are along n they leave as the GEMM's do, through boxes of half as many. With swap a
// warp has 8 elements along n of each of its columns, 16 bytes, which leave from registers: `out`
// is a pointer.
#pragma once

#include "../shared/gemm_pairs.cuh"
#include "gemm_tma_output.cuh"

namespace kiln::templates {

template <GemmTma c, class T, class Epilogue>
struct GatedTmaOutput {
  static_assert(c.swap || (c.store_tma && c.block_n % 32 == 0),
                "pairs: block_n is a multiple of 32 columns, and blocks that share k have swap");
  static constexpr GemmTma kResults = gated_results_of(c);
  static constexpr int kTiles = c.block_n / 8;
  using Array = hopper::Argument<kResults.store_tma, GemmResult<T>*>;

  const Epilogue& epilogue;
  const GemmShape<false>& shape;  // of the product
  unsigned char* staging;
  const Array& out;

  __device__ __forceinline__ void prefetch() const {
    if constexpr (kResults.store_tma) hopper::prefetch_map(out);
  }
  /// Calls store(a GEMM's output without gaps).
  template <class Store>
  __device__ __forceinline__ void as_results(Store store) const {
    const GemmShape<false> c_shape = gated_output(shape);
    store(GemmTmaOutput<kResults, T, false, Epilogue>{{epilogue, c_shape, staging}, out});
  }

  /// Stores 16 x 8 sums at (row, column) of the product.
  __device__ __forceinline__ void store_direct(const float (&s)[4], int row, int column,
                                               int /*batch*/) const {
    if constexpr (c.swap) {
      const int lane = static_cast<int>(threadIdx.x) % 32;
      as_results([&](const auto& results) {
        const auto stored = [&](int e) {
          return results.stored(GatedSum{s[e], s[2 + e]}, row / 2 + lane / 4,
                                column + lane % 4 * 2 + e, 0);
        };
        const unsigned pair =
            hopper::transpose_matrix(pack_pair(stored(0), stored(1), GemmResult<T>{}));
        results.store_pair(pair, column + lane / 4, row / 2 + lane % 4 * 2, 0);
      });
    }
  }
  __device__ __forceinline__ void store_rows(const float (&s)[kTiles][4], int row, int column,
                                             int /*batch*/, int& buffer) const {
    if constexpr (c.swap) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) store_direct(s[j], row, column + j * 8, 0);
    } else {
      as_results([&](const auto& results) {
        results.store_rows(GatedSums<kTiles>{s}, row, column / 2, 0, buffer);
      });
    }
  }
};

/// The output of a GEMM with this epilogue.
template <GemmTma c, class T, bool batched, class Epilogue>
struct GemmTmaOutputOf {
  using Type = GemmTmaOutput<c, T, batched, Epilogue>;
  using Array = hopper::Argument<c.store_tma, GemmResult<T>*>;
  static __device__ __forceinline__ Type of(const Epilogue& epilogue,
                                            const GemmShape<batched>& shape, unsigned char* staging,
                                            const Array& out) {
    return {{epilogue, shape, staging}, out};
  }
};
template <GemmTma c, class T, bool batched, class Epilogue>
  requires(kGated<Epilogue> && !kQuantizes<Epilogue>)
struct GemmTmaOutputOf<c, T, batched, Epilogue> {
  using Type = GatedTmaOutput<c, T, Epilogue>;
  using Array = typename Type::Array;
  static __device__ __forceinline__ Type of(const Epilogue& epilogue, const GemmShape<false>& shape,
                                            unsigned char* staging, const Array& out) {
    return {epilogue, shape, staging, out};
  }
};

}  // namespace kiln::templates
