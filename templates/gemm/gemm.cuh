// Device half of gemm.hpp. Bodies share the walk over k and differ in how a slice is multiplied and
// where a thread's results lie; another body is one more struct like these.
#pragma once

#include "../device/dot.cuh"
#include "../device/elements.cuh"
#include "../device/mma.cuh"
#include "gemm.hpp"
#include "gemm_small_m.cuh"
#ifndef KILN_HOST_TARGET
#include "../device/wgmma.cuh"
#include "gemm_tma.cuh"
#endif

namespace kiln::templates {

/// The block's place in C, in blocks. group_m block rows are walked column by column, so that
/// blocks that run at the same time share operands in the L2 cache.
struct BlockTile {
  int m, n;
};

template <Gemm c>
__device__ BlockTile block_tile(unsigned block, int m, int n) {
  const unsigned tiles_m = c.tiles_m(m), tiles_n = c.tiles_n(n);
  const unsigned group = block / (c.group_m * tiles_n), in_group = block % (c.group_m * tiles_n);
  const unsigned first = group * c.group_m;
  const unsigned height = min(tiles_m - first, static_cast<unsigned>(c.group_m));
  return {static_cast<int>(first + in_group % height), static_cast<int>(in_group / height)};
}

/// Starts copying rows [row, row + kRows) and columns [column, column + block_k) of a [rows][k]
/// matrix to `tile`, rows row_stride() apart; what lies outside becomes 0. Without `packed`, the
/// copy is element by element and done on return.
template <Gemm c, int kRows, class T, class Copies>
__device__ void copy_tile(Copies& copies, T* tile, const T* matrix, long long row, int column,
                          int rows, int k, bool packed) {
  const int thread = static_cast<int>(threadIdx.x);
  if (packed) {
    constexpr int kPerRow = c.block_k / c.vector;
    constexpr int kPacks = kRows * kPerRow;
    constexpr int kPerThread = (kPacks + c.threads() - 1) / c.threads();
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      int r, q;  // the pack's row, and its place there
      if constexpr (!kHostTarget && c.threads() % kPerRow == 0) {
        // Spelled out, so that a thread's packs differ by a constant number of rows.
        r = thread / kPerRow + i * (c.threads() / kPerRow);
        q = thread % kPerRow;
      } else {
        // Neighbouring threads take neighbouring packs; on the host, where threads take turns, each
        // takes a run.
        const int p = kHostTarget ? thread * kPerThread + i : i * c.threads() + thread;
        r = p / kPerRow;
        q = p % kPerRow;
      }
      if (kPacks % c.threads() != 0 && r >= kRows) break;
      const int l = column + q * c.vector;
      const bool inside = row + r < rows && l < k;
      copies.copy(tile + c.place(r, q * c.vector), inside ? matrix + (row + r) * k + l : matrix,
                  inside);
    }
  } else {
#pragma unroll 1
    for (int p = thread; p < kRows * c.block_k; p += c.threads()) {
      const long long r = row + p / c.block_k;
      const int l = column + p % c.block_k;
      tile[c.place(p / c.block_k, p % c.block_k)] =
          r < rows && l < k ? matrix[r * k + l] : from_float<T>(0.0f);
    }
  }
}

/// A thread's elements are units_m() rows and units_n() columns apart: neighbouring threads read
/// neighbouring rows of a slice, without bank conflicts, and write neighbouring columns of C.
template <Gemm c, class T>
struct SimtBody {
  Sum<c.vector> sums[c.tile_m][c.tile_n] = {};

  __device__ static int unit_m() { return static_cast<int>(threadIdx.x) / c.units_n(); }
  __device__ static int unit_n() { return static_cast<int>(threadIdx.x) % c.units_n(); }

  /// `ahead`: in global memory, the next slice's first row of B; rows are `k` apart.
  __device__ void multiply(const T* a, const T* b, const T* ahead, int k) {
    a += unit_m() * c.row_stride();
    b += unit_n() * c.row_stride();
#pragma unroll 1
    for (int l = 0; l < c.block_k; l += c.vector) {
      if constexpr (kHostTarget) {  // hide the way from memory, which no copy in flight does here
        for (int j = unit_m(); j < c.tile_n; j += c.units_m())
          __builtin_prefetch(ahead + static_cast<long long>(unit_n() + j * c.units_n()) * k + l);
      }
      Floats<c.vector> rows[c.tile_m];
#pragma unroll
      for (int i = 0; i < c.tile_m; ++i)
        load_floats<c.vector>(rows[i], a + i * c.units_m() * c.row_stride() + l);
#pragma unroll
      for (int j = 0; j < c.tile_n; ++j) {
        Floats<c.vector> column;
        load_floats<c.vector>(column, b + j * c.units_n() * c.row_stride() + l);
#pragma unroll
        for (int i = 0; i < c.tile_m; ++i) multiply_add<c.vector>(sums[i][j], rows[i], column);
      }
    }
  }

  __device__ void store(T* out, int m, int n, long long row, long long column) const {
    row += unit_m();
    column += unit_n();
#pragma unroll
    for (int i = 0; i < c.tile_m; ++i)
#pragma unroll
      for (int j = 0; j < c.tile_n; ++j) {
        const long long r = row + i * c.units_m(), s = column + j * c.units_n();
        if (r < m && s < n) out[r * n + s] = from_float<T>(total<c.vector>(sums[i][j]));
      }
  }
};

/// Writes a thread's sums of 16 rows: two neighbours in each 8 columns of `row` and of `row + 8`.
template <int kTiles, class T>
__device__ void store_sums(const float (&sums)[kTiles][4], T* out, int m, int n, long long row,
                           long long column) {
  const bool paired = n % 2 == 0 && aligned(2 * sizeof(T), out);
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const long long r = row + h * 8, s = column + j * 8;
      if (r >= m || s >= n) continue;
      T* to = out + r * n + s;
      const T first = from_float<T>(sums[j][2 * h]), second = from_float<T>(sums[j][2 * h + 1]);
      if (paired) {
        store_pack(to, Pack<T, 2>{{first, second}});
      } else {
        to[0] = first;
        if (s + 1 < n) to[1] = second;
      }
    }
}

/// A warp's tile_m x tile_n elements are 16x8 tensor-core tiles; layouts in mma.cuh.
template <Gemm c, class T>
struct MmaBody {
  static_assert(sizeof(T) == 2, "body mma: T has 2 bytes");
  static_assert(c.tile_m % 16 == 0 && c.tile_n % 16 == 0,
                "body mma: tile_m and tile_n are multiples of 16 elements");
  static_assert(c.block_k % 16 == 0, "body mma: block_k is a multiple of 16 elements");
  static_assert(c.vector == 8, "body mma: vector is 8 elements, a row of ldmatrix");

  static constexpr int kTilesM = c.tile_m / 16, kTilesN = c.tile_n / 8;
  float sums[kTilesM][kTilesN][4] = {};

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp_m() {
    return static_cast<int>(threadIdx.x) / 32 / c.units_n() * c.tile_m;
  }
  __device__ static int warp_n() {
    return static_cast<int>(threadIdx.x) / 32 % c.units_n() * c.tile_n;
  }

  __device__ void multiply(const T* a, const T* b, const T* /*ahead*/, int /*k*/) {
    // The lane's row in load_matrices: of a, rows 0-15 at k, then at k + 8; of b, whose rows are
    // C's columns, rows 0-7 at k, then at k + 8, then rows 8-15.
    a += (warp_m() + lane() % 16) * c.row_stride() + lane() / 16 * 8;
    b += (warp_n() + lane() / 16 * 8 + lane() % 8) * c.row_stride() + lane() / 8 % 2 * 8;
#pragma unroll
    for (int l = 0; l < c.block_k; l += 16) {
      unsigned rows[kTilesM][4], columns[kTilesN][2];
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) load_matrices(rows[i], a + i * 16 * c.row_stride() + l);
#pragma unroll
      for (int j = 0; j < kTilesN; j += 2) {
        unsigned pair[4];
        load_matrices(pair, b + j * 8 * c.row_stride() + l);
        columns[j][0] = pair[0];
        columns[j][1] = pair[1];
        columns[j + 1][0] = pair[2];
        columns[j + 1][1] = pair[3];
      }
#pragma unroll
      for (int i = 0; i < kTilesM; ++i)
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) mma_m16n8k16<T>(sums[i][j], rows[i], columns[j]);
    }
  }

  __device__ void store(T* out, int m, int n, long long row, long long column) const {
    row += warp_m() + lane() / 4;
    column += warp_n() + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) store_sums(sums[i], out, m, n, row + i * 16, column);
  }
};

#ifndef KILN_HOST_TARGET

/// The tensor cores work on their own: multiply() starts a slice, settle() waits for the one
/// before.
template <Gemm c, class T>
struct WgmmaBody {
  static_assert(sizeof(T) == 2, "body wgmma: T has 2 bytes");
  static_assert(c.stages >= 3, "body wgmma: at least 3 stages, one of which is still being read");

  static constexpr int kTilesM = c.tile_m / 64, kTilesN = c.tile_n / 8;
  float sums[kTilesM][kTilesN][4];  // not set: only tensor cores may write it before all is settled
  bool adding = false;

  __device__ static int unit() { return static_cast<int>(threadIdx.x) / 128; }
  __device__ static int unit_m() { return unit() / c.units_n() * c.tile_m; }
  __device__ static int unit_n() { return unit() % c.units_n() * c.tile_n; }

  __device__ void publish() { wgmma_publish(); }
  __device__ void multiply(const T* a, const T* b, const T* /*ahead*/, int /*k*/) {
    const unsigned long long rows = wgmma_descriptor(a + unit_m() * c.row_stride()),
                             columns = wgmma_descriptor(b + unit_n() * c.row_stride());
    wgmma_fence();
#pragma unroll
    for (int l = 0; l < c.block_k; l += 16)
#pragma unroll
      for (int i = 0; i < kTilesM; ++i)
        wgmma_m64k16<T>(sums[i], wgmma_advance(rows, (i * 64 * c.row_stride() + l) * 2),
                        wgmma_advance(columns, l * 2), adding || l > 0);
    wgmma_commit();
    adding = true;
  }
  template <int kPending>
  __device__ void settle() {
    wgmma_wait<kPending>();
  }

  __device__ void store(T* out, int m, int n, long long row, long long column) {
    if (!adding) {  // no k at all
#pragma unroll
      for (int i = 0; i < kTilesM; ++i)
#pragma unroll
        for (int j = 0; j < kTilesN; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;
    }
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    row += unit_m() + warp * 16 + lane / 4;
    column += unit_n() + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) store_sums(sums[i], out, m, n, row + i * 64, column);
  }
};

#endif

template <GemmBody body, Gemm c, class T>
struct Body;
template <Gemm c, class T>
struct Body<GemmBody::simt, c, T> : SimtBody<c, T> {};
#if !defined(KILN_HOST_TARGET) || defined(KILN_EMULATE_MMA)
template <Gemm c, class T>
struct Body<GemmBody::mma, c, T> : MmaBody<c, T> {};
#else
// Emulating tensor cores lane by lane verifies MmaBody, but is slow: else the lanes of a warp share
// its elements as threads of the simt body do.
constexpr Gemm shared_by_lanes(Gemm c) {
  c.body = GemmBody::simt;
  c.tile_m /= 8;
  c.tile_n /= 4;
  return c;
}
template <Gemm c, class T>
struct Body<GemmBody::mma, c, T> : SimtBody<shared_by_lanes(c), T> {};
#endif
#ifndef KILN_HOST_TARGET
template <Gemm c, class T>
struct Body<GemmBody::wgmma, c, T> : WgmmaBody<c, T> {};
#endif

/// The bodies that copy slices to `stages` buffers, each block_m rows of A and then block_n rows of
/// B, rows row_stride() elements apart.
template <Gemm c, class T>
__device__ __forceinline__ void gemm_by_slices(T* out, const T* a, const T* b, int m, int n,
                                               int k) {
  static_assert(kHostTarget || c.vector * sizeof(T) == 4 || c.vector * sizeof(T) == 8 ||
                    c.vector * sizeof(T) == 16,
                "vector: 4, 8 or 16 bytes per access");
  static_assert(c.stages >= 1 && c.group_m >= 1, "stages and group_m: at least 1");

  extern __shared__ __align__(1024) unsigned char shared_memory[];
  T* const buffers = reinterpret_cast<T*>(shared_memory);
  constexpr int kAccess = c.vector * static_cast<int>(sizeof(T));  // bytes
  constexpr int kCopies =
      ((c.block_m + c.block_n) * (c.block_k / c.vector) + 2 * c.threads() - 2) / c.threads() + 1;
  AsyncCopies<kAccess, kCopies, c.stages> copies;

  const BlockTile tile = block_tile<c>(blockIdx.x, m, n);
  const long long row = static_cast<long long>(tile.m) * c.block_m;
  const long long column = static_cast<long long>(tile.n) * c.block_n;
  const bool packed = k % c.vector == 0 && (kHostTarget || aligned(kAccess, a, b));
  const int slices = (k + c.block_k - 1) / c.block_k;

  const auto copy_slice = [&](int slice) {
    if (slice < slices) {
      T* const buffer = buffers + slice % c.stages * c.stage_elements();
      copy_tile<c, c.block_m>(copies, buffer, a, row, slice * c.block_k, m, k, packed);
      copy_tile<c, c.block_n>(copies, buffer + c.block_m * c.row_stride(), b, column,
                              slice * c.block_k, n, k, packed);
    }
    copies.commit();  // also when empty: the count of groups is what wait() goes by
  };

  Body<c.body, c, T> body;
  for (int slice = 0; slice < c.ahead(); ++slice) copy_slice(slice);
#pragma unroll 1
  for (int slice = 0; slice < slices; ++slice) {
    if constexpr (c.stages == 1) {
      if (slice > 0) __syncthreads();  // all have read the only buffer
      copy_slice(slice);
    }
    copies.template wait<(c.stages > 1 ? c.ahead() - 1 : 0)>();
    if constexpr (c.body == GemmBody::wgmma) body.publish();
    __syncthreads();  // all threads' copies of this slice are there, and all have read the last one
    const T* const buffer = buffers + slice % c.stages * c.stage_elements();
    const auto multiply = [&] {
      body.multiply(buffer, buffer + c.block_m * c.row_stride(),
                    b + column * k + (slice + 1) * c.block_k, k);
    };
    if constexpr (c.body == GemmBody::wgmma) {
      multiply();
      copy_slice(slice + c.ahead());
      body.template settle<1>();
    } else {
      if constexpr (c.stages > 1) copy_slice(slice + c.ahead());
      multiply();
    }
  }
  if constexpr (c.body == GemmBody::wgmma) body.template settle<0>();
  body.store(out, m, n, row, column);
}

#ifndef KILN_HOST_TARGET
/// What the entry takes for an array: a tensor map or the pointer.
template <bool kMap, class T>
using GemmArgument = hopper::Argument<kMap, T*>;
#else
template <bool kMap, class T>
using GemmArgument = T*;
#endif

/// Dynamic shared memory: c.shared_bytes(sizeof(T)) bytes.
template <Gemm c, class T>
__global__ void __launch_bounds__(c.threads(), c.plain() ? 0 : 1)
    gemm(const __grid_constant__ GemmArgument<c.uses_tma() && c.split_k() == 1, T> out,
         const __grid_constant__ GemmArgument<c.uses_tma(), const T> a,
         const __grid_constant__ GemmArgument<c.uses_tma(), const T> b, int m, int n, int k) {
  static_assert(c.threads() >= 1 && c.threads() <= 1024, "threads per block: 1 to 1024");
  static_assert(c.divides(),
                "tiles divide blocks, and vector divides block_k: see Gemm::divides()");
  if constexpr (c.plain()) {
    gemm_by_slices<c, T>(out, a, b, m, n, k);
  } else if constexpr (c.body == GemmBody::stream) {
    if (aligned(16, a, b))
      gemm_small_m_body<c.small_m(), T, StoreSum>(out, a, b, m, n, k, StoreSum{});
    else
      gemm_small_m_unaligned<c.small_m(), T, StoreSum>(out, a, b, m, n, k, StoreSum{});
#ifndef KILN_HOST_TARGET
  } else {
    gemm_tma_body<c.tma(), T, StoreSum, hopper::Lies::along_k, hopper::Lies::along_k>(
        out, a, b, m, n, k, StoreSum{});
#endif
  }
}

}  // namespace kiln::templates
