// Device half of gemm_small_m.hpp: a GEMM (gemm.hpp), op nt, for m <= c.rows().
#pragma once

#include "../device/elements.cuh"
#include "../device/mma.cuh"
#include "gemm_small_m.hpp"
#include "shared/gemm_epilogue.cuh"
#include "shared/gemm_pairs.cuh"
#ifndef KILN_HOST_TARGET
#include "kiln/hopper.cuh"
#endif

namespace kiln::templates {

/// 16 bytes that are read `once`, or again by other blocks. Such loads keep their order, so that
/// all of a loop's are on their way before the last one is there.
template <bool once>
__device__ __forceinline__ uint4 load_in_order(const void* address) {
#ifndef KILN_HOST_TARGET
  uint4 loaded;
  if constexpr (once)
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "l"(address));
  else
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(loaded.x), "=r"(loaded.y), "=r"(loaded.z), "=r"(loaded.w)
                 : "l"(address));
  return loaded;
#else
  return *static_cast<const uint4*>(address);
#endif
}

template <bool whole>
struct Whole {
  static constexpr bool value = whole;
};

/// The row of B for a column of the product; for one outside of B that of a column that is in it.
template <class Epilogue, bool batched>
__device__ __forceinline__ long long row_of_b(int column, const GemmShape<batched>& shape) {
  if constexpr (kGated<Epilogue>) {
    const int n = static_cast<int>(shape.ldc), of_c = column / 16 * 8 + column % 8;
    return gated_row<Epilogue::kStacked>(min(of_c, n - 1), column % 16 >= 8, n);
  } else {
    return min(column, shape.n - 1);
  }
}

/// Calls store(sum's place in the block, row, column of the product) for the thread's share of the
/// block's sums; of pairs, for those of gate.
template <GemmSmallM c, bool pairs, class Store>
__device__ __forceinline__ void for_sums(int first_column, Store store) {
  constexpr int kColumns = pairs ? c.columns() / 2 : c.columns();
  for (int i = static_cast<int>(threadIdx.x); i < c.rows() * kColumns; i += c.threads()) {
    const int row = i / kColumns, of_row = i % kColumns;
    const int column = pairs ? of_row / 8 * 16 + of_row % 8 : of_row;
    store(row * c.columns() + column, row, first_column + column);
  }
}

/// Stores what `sum(more)` is for the product's columns `column + more`.
template <class Out, bool batched, class Epilogue, class SumAt>
__device__ __forceinline__ void store_sum(Out* out, const GemmOutput<batched, Epilogue>& output,
                                          int row, int column, SumAt sum) {
  if (row >= output.shape.m) return;
  if constexpr (kGated<Epilogue>) {
    const int of_c = column / 16 * 8 + column % 8;
    if (of_c < output.shape.ldc) output.store_pair(out, {sum(0), sum(kGatedGroup)}, row, of_c);
  } else {
    if (column < output.shape.n) output.store(out, sum(0), row, column);
  }
}

/// For pointers that no access of 16 bytes may take: a thread sums up an element of C at a time.
template <GemmSmallM c, class Out, class T, bool batched, class Epilogue>
__device__ __forceinline__ void gemm_small_m_unaligned(
    Out* out, const T* a, const T* b, unsigned block, const GemmOutput<batched, Epilogue>& output) {
  const GemmShape<batched>& shape = output.shape;
#ifndef KILN_HOST_TARGET
  if constexpr (c.programmatic) hopper::wait_for_previous();
#endif
  for_sums<c, kGated<Epilogue>>(
      static_cast<int>(block) * c.columns(), [&](int, int row, int column) {
        store_sum(out, output, row, column, [&](int more) {
          const T* const of_a = a + row * shape.lda;
          const T* const of_b = b + row_of_b<Epilogue>(column + more, shape) * shape.ldb;
          float sum = 0;
#pragma unroll 1
          for (int l = 0; l < shape.k; ++l) sum += to_float(of_a[l]) * to_float(of_b[l]);
          return sum;
        });
      });
}

/// A lane's 8 consecutive elements of k are those of two tensor-core tiles; A's and B's lanes agree
/// on which. Dynamic shared memory: c.shared_bytes().
template <GemmSmallM c, class Out, class T, bool batched, class Epilogue>
__device__ __forceinline__ void gemm_small_m_body(Out* out, const T* a, const T* b, unsigned block,
                                                  const GemmOutput<batched, Epilogue>& output) {
  const GemmShape<batched>& shape = output.shape;
  const int m = shape.m, k = shape.k;
  static_assert(c.tiles_m >= 1 && c.tiles_m <= 4, "tiles_m: 1 to 4 times 8 rows");
  static_assert(c.warps >= 1 && c.warps <= 32 && c.tiles_n >= 1 && c.unroll >= 1,
                "warps: 1 to 32; tiles_n and unroll: at least 1");
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_column = static_cast<int>(block) * c.columns();
  const int at = lane % 4 * 8;  // the lane's elements of a slice
  if (warp == 0) prefetch_arguments(output.epilogue, {0, m, first_column, c.columns()}, m, shape.n);

  // Rows of B that the lane reads; outside of B (as of A) the last one, whose sums are not stored.
  const T* rows[c.tiles_n][2];
#pragma unroll
  for (int j = 0; j < c.tiles_n; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      rows[j][h] =
          b + row_of_b<Epilogue>(first_column + j * 16 + h * 8 + lane / 4, shape) * shape.ldb + at;
  const T* columns[c.tiles_m];
#pragma unroll
  for (int i = 0; i < c.tiles_m; ++i)
    columns[i] = a + min(i * 8 + lane / 4, m - 1) * shape.lda + at;

#ifndef KILN_HOST_TARGET
  if constexpr (c.programmatic) {
#pragma unroll
    for (int j = 0; j < c.tiles_n; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (warp * c.unroll * c.kSlice + at < k)
          hopper::prefetch_line(rows[j][h] + warp * c.unroll * c.kSlice);
    hopper::wait_for_previous();
    hopper::let_next_start();
  }
#endif

  float sums[c.tiles_n][c.tiles_m][4] = {};
  // c.unroll slices from `base` on; `whole` if all of them lie before k.
  const auto multiply = [&](int base, auto whole) {
    uint4 from_b[c.unroll][c.tiles_n][2], from_a[c.unroll][c.tiles_m];
#pragma unroll
    for (int u = 0; u < c.unroll; ++u) {
      const int l = base + u * c.kSlice;
#pragma unroll
      for (int j = 0; j < c.tiles_n; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          from_b[u][j][h] = whole.value || l + at < k
                                ? load_in_order<true>(rows[j][h] + base + u * c.kSlice)
                                : uint4{};
    }
#pragma unroll
    for (int u = 0; u < c.unroll; ++u) {
      const int l = base + u * c.kSlice;
#pragma unroll
      for (int i = 0; i < c.tiles_m; ++i)
        from_a[u][i] = whole.value || l + at < k
                           ? load_in_order<false>(columns[i] + base + u * c.kSlice)
                           : uint4{};
    }
#pragma unroll
    for (int u = 0; u < c.unroll; ++u)
#pragma unroll
      for (int j = 0; j < c.tiles_n; ++j) {
        const uint4 first = from_b[u][j][0], second = from_b[u][j][1];
        const unsigned low[4] = {first.x, second.x, first.y, second.y};
        const unsigned high[4] = {first.z, second.z, first.w, second.w};
#pragma unroll
        for (int i = 0; i < c.tiles_m; ++i) {
          const uint4 x = from_a[u][i];
          const unsigned x_low[2] = {x.x, x.y}, x_high[2] = {x.z, x.w};
          mma_m16n8k16<T>(sums[j][i], low, x_low);
          mma_m16n8k16<T>(sums[j][i], high, x_high);
        }
      }
  };
  constexpr int kTogether = c.unroll * c.kSlice;
#pragma unroll 1
  for (int base = warp * kTogether; base < k; base += c.warps * kTogether) {
    if (base + kTogether <= k)
      multiply(base, Whole<true>{});
    else
      multiply(base, Whole<false>{});
  }

  // [warp][row of C][column]
  extern __shared__ __align__(16) unsigned char gemm_small_m_shared[];
  float* const left = reinterpret_cast<float*>(gemm_small_m_shared);
#pragma unroll
  for (int j = 0; j < c.tiles_n; ++j)
#pragma unroll
    for (int i = 0; i < c.tiles_m; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        left[(warp * c.rows() + i * 8 + lane % 4 * 2 + e % 2) * c.columns() + j * 16 + e / 2 * 8 +
             lane / 4] = sums[j][i][e];
  __syncthreads();
  for_sums<c, kGated<Epilogue>>(first_column, [&](int place, int row, int column) {
    store_sum(out, output, row, column, [&](int more) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < c.warps; ++w) sum += left[w * c.rows() * c.columns() + place + more];
      return sum;
    });
  });
}

/// Elements of batches are `stride` apart; a block has columns of one of them.
template <GemmSmallM c, class Out, class T, bool batched, class Epilogue>
__device__ __forceinline__ void gemm_small_m(Out* out, const T* a, const T* b,
                                             const GemmShape<batched>& shape,
                                             const Epilogue& epilogue) {
  unsigned block = blockIdx.x;
  int batch = 0;
  if constexpr (batched) {
    const unsigned blocks = c.grid(shape.n);
    batch = static_cast<int>(block / blocks);
    block %= blocks;
    a += batch * shape.stride_a;
    b += batch * shape.stride_b;
  }
  const GemmOutput<batched, Epilogue> output{shape, epilogue, batch};
  if (aligned(16, a, b))
    gemm_small_m_body<c>(out, a, b, block, output);
  else
    gemm_small_m_unaligned<c>(out, a, b, block, output);
}

}  // namespace kiln::templates
