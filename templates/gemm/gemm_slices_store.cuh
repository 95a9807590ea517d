// Part of gemm_slices.cuh: how threads that multiply on tensor cores store their sums.
#pragma once

#include "../device/elements.cuh"
#include "shared/gemm_epilogue.cuh"
#include "shared/gemm_pairs.cuh"

namespace kiln::templates {

/// Writes a thread's sums of 16 rows: two neighbours in each 8 columns of `row` and of `row + 8`.
template <int kTiles, class T, class Output>
__device__ void store_sums(const float (&sums)[kTiles][4], T* out, const Output& output,
                           long long row, long long column) {
  const int m = output.shape.m, n = output.shape.n;
  const bool paired = output.pairs(out);
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const long long r = row + h * 8, s = column + j * 8;
      if (r >= m || s >= n) continue;
      if (paired && s + 1 < n) {
        const T first = from_float<T>(output.finished(sums[j][2 * h], r, s)),
                second = from_float<T>(output.finished(sums[j][2 * h + 1], r, s + 1));
        store_pack(out + output.element(r, s), Pack<T, 2>{{first, second}});
      } else {
        output.store(out, sums[j][2 * h], r, s);
        output.store(out, sums[j][2 * h + 1], r, s + 1);
      }
    }
}

/// The same; for pairs of sums it stores what becomes of them.
template <int kTiles, class T, class Output>
__device__ void store_results(const float (&sums)[kTiles][4], T* out, const Output& output,
                              long long row, long long column) {
  if constexpr (Output::kQuantized) {
    output.epilogue.store_sums(sums, out, gated_output(output.shape), row, column / 16 * 8);
  } else if constexpr (Output::kPairs) {
    // At once: what activations take in code would be there for each way to store.
    const auto shape = gated_output(output.shape);
    column = column / 16 * 8 + column % 8;
    float results[kTiles / 2][4];
    gated_results(results, sums, output_of(shape, output.epilogue, 0), row, column);
    constexpr StoreSum kAsItIs{};
    store_sums(results, out, GemmOutput<false, StoreSum>{shape, kAsItIs, 0}, row, column);
  } else {
    store_sums(sums, out, output, row, column);
  }
}

}  // namespace kiln::templates
