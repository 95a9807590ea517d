// The bodies of gemm.hpp that copy slices of k themselves. They share the walk over k and differ in
// how a slice is multiplied and where a thread's results lie; another body is one more struct like
// these.
#pragma once

#include "../device/dot.cuh"
#include "../device/elements.cuh"
#include "../device/mma.cuh"
#include "gemm.hpp"
#include "gemm_slices_scaled.cuh"
#include "gemm_slices_store.cuh"
#include "shared/gemm_epilogue.cuh"
#ifndef KILN_HOST_TARGET
#include "../device/wgmma.cuh"
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

#ifdef KILN_EMULATE_MMA
inline constexpr bool kEmulatesMma = true;
#else
inline constexpr bool kEmulatesMma = false;
#endif

/// Where the elements of an operand's slice lie in its buffer.
template <Gemm c, int rows, bool across>
struct SliceLayout {
  /// The tensor cores' loads transpose; other bodies find rows along k.
  static constexpr bool kKept = across && c.body == GemmBody::mma && (!kHostTarget || kEmulatesMma);
  /// On the host, whose memory has no banks, rows that were transposed have no padding: they take
  /// no more than those that were not.
  static constexpr int kStride = kKept                               ? rows + c.vector
                                 : across && c.body == GemmBody::mma ? c.block_k
                                                                     : c.row_stride();
  static constexpr int kElements = c.operand_elements(rows, across);
  __device__ static int place(int row, int l) {
    if constexpr (kKept)
      return l * kStride + row;
    else if constexpr (across)
      return row * kStride + l;
    else
      return c.place(row, l);
  }
};

/// The rows of an operand from `first` on.
struct RowsFrom {
  long long first;
  int rows;  // of the operand
  __device__ bool inside(int row) const { return first + row < rows; }
  __device__ long long at(int row) const { return first + row; }
  /// The block of B's scales that a row belongs to; also for a row outside of B.
  __device__ int scale_block(int row) const {
    return static_cast<int>(inside(row) ? at(row) : rows - 1) / kScaleBlock;
  }
};

/// Starts copying kRows rows (those of RowsFrom, or like that) and the elements [l, l + block_k) of
/// an operand to `tile`; what lies outside of its rows and `k` becomes 0. Without `packed` the copy
/// is element by element and done on return.
template <Gemm c, int kRows, bool across, class T, class Copies, class Rows>
__device__ void copy_tile(Copies& copies, T* tile, const T* matrix, GemmStride leading,
                          const Rows& rows, int l, int k, bool packed) {
  using Layout = SliceLayout<c, kRows, across>;
  const int thread = static_cast<int>(threadIdx.x);
  // In memory: `kOuter` rows of `kInner` contiguous elements.
  constexpr int kOuter = across ? c.block_k : kRows, kInner = across ? kRows : c.block_k;
  const auto inside = [&](int outer, int inner) {
    return across ? rows.inside(inner) && l + outer < k : rows.inside(outer) && l + inner < k;
  };
  const auto at = [&](int outer, int inner) {
    return across ? matrix + (l + outer) * leading + rows.at(inner)
                  : matrix + rows.at(outer) * leading + (l + inner);
  };
  const auto to = [&](int outer, int inner) {
    return tile + (across ? Layout::place(inner, outer) : Layout::place(outer, inner));
  };
  if ((!across || Layout::kKept) && packed) {
    constexpr int kPerRow = kInner / c.vector;
    constexpr int kPacks = kOuter * kPerRow;
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
      if (kPacks % c.threads() != 0 && r >= kOuter) break;
      const bool valid = inside(r, q * c.vector);
      copies.copy(to(r, q * c.vector), valid ? at(r, q * c.vector) : matrix, valid);
    }
  } else {
#pragma unroll 1
    for (int p = thread; p < kOuter * kInner; p += c.threads()) {
      const int outer = p / kInner, inner = p % kInner;
      *to(outer, inner) = inside(outer, inner) ? *at(outer, inner) : from_float<T>(0.0f);
    }
  }
}

/// A thread's elements are units_m() rows and units_n() columns apart: neighbouring threads read
/// neighbouring rows of a slice, without bank conflicts, and write neighbouring columns of C.
template <Gemm c, class T, int kStrideA, int kStrideB>
struct SimtBody {
  static constexpr int kPairApart = c.block_n / 2;  // columns from gate to up in a tile of pairs
  Sum<c.vector> sums[c.tile_m][c.tile_n] = {};

  __device__ static int unit_m() { return static_cast<int>(threadIdx.x) / c.units_n(); }
  __device__ static int unit_n() { return static_cast<int>(threadIdx.x) % c.units_n(); }

  /// `ahead`: in global memory, the next slice's first row of B, of rows along k; null: of others.
  __device__ void multiply(const T* a, const T* b, const T* ahead, GemmStride leading) {
    a += unit_m() * kStrideA;
    b += unit_n() * kStrideB;
#pragma unroll 1
    for (int l = 0; l < c.block_k; l += c.vector) {
      if constexpr (kHostTarget) {  // hide the way from memory, which no copy in flight does here
        for (int j = unit_m(); ahead && j < c.tile_n; j += c.units_m())
          __builtin_prefetch(ahead + (unit_n() + j * c.units_n()) * leading + l);
      }
      Floats<c.vector> rows[c.tile_m];
#pragma unroll
      for (int i = 0; i < c.tile_m; ++i)
        load_floats<c.vector>(rows[i], a + i * c.units_m() * kStrideA + l);
#pragma unroll
      for (int j = 0; j < c.tile_n; ++j) {
        Floats<c.vector> column;
        load_floats<c.vector>(column, b + j * c.units_n() * kStrideB + l);
#pragma unroll
        for (int i = 0; i < c.tile_m; ++i) multiply_add<c.vector>(sums[i][j], rows[i], column);
      }
    }
  }

  template <class Out, class Output>
  __device__ void store(Out* out, const Output& output, long long row, long long column) const {
    store_each(out, output, row, column, [&](int i, int j) { return total<c.vector>(sums[i][j]); });
  }
  /// With scales of blocks (gemm_gated_fp8.hpp), through the block's `shared` memory.
  template <class Out, class Output>
  __device__ void store_blocks(Out* out, const Output& output, long long row, long long column,
                               void* shared) const {
    store_units(out, output, row, column, shared,
                [&](int i, int j) { return total<c.vector>(sums[i][j]); });
  }
  template <class Out, class Output, class Value>
  __device__ static void store_units(Out* out, const Output& output, long long row,
                                     long long column, void* shared, Value value) {
    output.epilogue.template store_units<c>(out, output.shape, row, column / 2, unit_m(), unit_n(),
                                            shared, value);
  }
  template <class Out, class Output, class Value>
  __device__ static void store_each(Out* out, const Output& output, long long row, long long column,
                                    Value value) {
    row += unit_m();
    if constexpr (Output::kPairs) {
      column = column / 2 + unit_n();
#pragma unroll
      for (int i = 0; i < c.tile_m; ++i)
#pragma unroll
        for (int j = 0; j < c.tile_n / 2; ++j)
          output.store_pair(out, {value(i, j), value(i, j + c.tile_n / 2)}, row + i * c.units_m(),
                            column + j * c.units_n());
    } else {
      column += unit_n();
#pragma unroll
      for (int i = 0; i < c.tile_m; ++i)
#pragma unroll
        for (int j = 0; j < c.tile_n; ++j)
          output.store(out, value(i, j), row + i * c.units_m(), column + j * c.units_n());
    }
  }
};

/// A warp's tile_m x tile_n elements are 16x8 tensor-core tiles; layouts in mma.cuh.
template <Gemm c, class T, class LayoutA, class LayoutB>
struct MmaBody {
  static_assert(sizeof(T) == 2, "body mma: T has 2 bytes");
  static_assert(c.tile_m % 16 == 0 && c.tile_n % 16 == 0,
                "body mma: tile_m and tile_n are multiples of 16 elements");
  static_assert(c.block_k % 16 == 0, "body mma: block_k is a multiple of 16 elements");
  static_assert(c.vector == 8, "body mma: vector is 8 elements, a row of ldmatrix");

  static constexpr int kPairApart = kGatedGroup;
  static constexpr int kTilesM = c.tile_m / 16, kTilesN = c.tile_n / 8;
  float sums[kTilesM][kTilesN][4] = {};

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp_m() {
    return static_cast<int>(threadIdx.x) / 32 / c.units_n() * c.tile_m;
  }
  __device__ static int warp_n() {
    return static_cast<int>(threadIdx.x) / 32 % c.units_n() * c.tile_n;
  }

  __device__ void multiply(const T* a, const T* b, const T* /*ahead*/, GemmStride /*leading*/) {
    // The lane's row in load_matrices. For a: rows 0-7, then 8-15 at k, then both at k + 8. For b,
    // whose rows are C's columns: rows 0-7 at k, then at k + 8, then rows 8-15.
    const int q = lane() / 8, r = lane() % 8;
    a += LayoutA::kKept ? LayoutA::place(warp_m() + q % 2 * 8, q / 2 * 8 + r)
                        : LayoutA::place(warp_m() + q % 2 * 8 + r, q / 2 * 8);
    b += LayoutB::kKept ? LayoutB::place(warp_n() + q / 2 * 8, q % 2 * 8 + r)
                        : LayoutB::place(warp_n() + q / 2 * 8 + r, q % 2 * 8);
#pragma unroll
    for (int l = 0; l < c.block_k; l += 16) {
      unsigned rows[kTilesM][4], columns[kTilesN][2];
#pragma unroll
      for (int i = 0; i < kTilesM; ++i)
        load_matrices<LayoutA::kKept>(rows[i], a + LayoutA::place(i * 16, l));
#pragma unroll
      for (int j = 0; j < kTilesN; j += 2) {
        unsigned pair[4];
        load_matrices<LayoutB::kKept>(pair, b + LayoutB::place(j * 8, l));
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

  template <class Out, class Output>
  __device__ void store(Out* out, const Output& output, long long row, long long column) const {
    row += warp_m() + lane() / 4;
    column += warp_n() + lane() % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) store_results(sums[i], out, output, row + i * 16, column);
  }
  template <class Out, class Output>
  __device__ void store_blocks(Out* out, const Output& output, long long row, long long column,
                               void* shared) const {
    output.epilogue.template store_tiles<c, 16>(sums, out, output.shape, row, warp_m() + lane() / 4,
                                                (column + warp_n()) / 2, shared);
  }
};

#ifndef KILN_HOST_TARGET

/// The tensor cores work on their own: multiply() starts a slice, settle() waits for the one
/// before.
template <Gemm c, class T>
struct WgmmaBody {
  static_assert(sizeof(T) == 2, "body wgmma: T has 2 bytes");
  static_assert(c.stages >= 3, "body wgmma: at least 3 stages, one of which is still being read");

  static constexpr int kPairApart = kGatedGroup;
  static constexpr int kTilesM = c.tile_m / 64, kTilesN = c.tile_n / 8;
  float sums[kTilesM][kTilesN][4];  // not set: only tensor cores may write it before all is settled
  bool adding = false;

  __device__ static int unit() { return static_cast<int>(threadIdx.x) / 128; }
  __device__ static int unit_m() { return unit() / c.units_n() * c.tile_m; }
  __device__ static int unit_n() { return unit() % c.units_n() * c.tile_n; }

  __device__ void publish() { wgmma_publish(); }
  __device__ void multiply(const T* a, const T* b, const T* /*ahead*/, GemmStride /*leading*/) {
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

  template <class Out, class Output>
  __device__ void store(Out* out, const Output& output, long long row, long long column) {
    set_if_no_k();
    row += first_row();
    column += unit_n() + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) store_results(sums[i], out, output, row + i * 64, column);
  }
  template <class Out, class Output>
  __device__ void store_blocks(Out* out, const Output& output, long long row, long long column,
                               void* shared) {
    set_if_no_k();
    output.epilogue.template store_tiles<c, 64>(sums, out, output.shape, row, first_row(),
                                                (column + unit_n()) / 2, shared);
  }

 private:
  __device__ static int first_row() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    return unit_m() + warp * 16 + lane / 4;
  }
  __device__ void set_if_no_k() {
    if (adding) return;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i)
#pragma unroll
      for (int j = 0; j < kTilesN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[i][j][e] = 0.0f;
  }
};

#endif

template <GemmBody body, Gemm c, class T, class LayoutA, class LayoutB>
struct Body;
template <Gemm c, class T, class LayoutA, class LayoutB>
struct Body<GemmBody::simt, c, T, LayoutA, LayoutB>
    : SimtBody<c, T, LayoutA::kStride, LayoutB::kStride> {};
#if !defined(KILN_HOST_TARGET) || defined(KILN_EMULATE_MMA)
template <Gemm c, class T, class LayoutA, class LayoutB>
struct Body<GemmBody::mma, c, T, LayoutA, LayoutB> : MmaBody<c, T, LayoutA, LayoutB> {};
#else
// Emulating tensor cores lane by lane verifies MmaBody, but is slow: else the lanes of a warp share
// its elements as threads of the simt body do.
constexpr Gemm shared_by_lanes(Gemm c) {
  c.body = GemmBody::simt;
  c.tile_m /= 8;
  c.tile_n /= 4;
  return c;
}
template <Gemm c, class T, class LayoutA, class LayoutB>
struct Body<GemmBody::mma, c, T, LayoutA, LayoutB>
    : SimtBody<shared_by_lanes(c), T, LayoutA::kStride, LayoutB::kStride> {};
#endif
template <Gemm c, class T, class LayoutA, class LayoutB>
struct Body<GemmBody::shift, c, T, LayoutA, LayoutB> : Body<GemmBody::mma, c, T, LayoutA, LayoutB> {
};
#ifndef KILN_HOST_TARGET
template <Gemm c, class T, class LayoutA, class LayoutB>
struct Body<GemmBody::wgmma, c, T, LayoutA, LayoutB> : WgmmaBody<c, T> {};
#endif

template <bool scaled, Gemm c, class Body>
struct MaybeScaled : Body {};
template <Gemm c, class Body>
struct MaybeScaled<true, c, Body> : ScaledSimtBody<c, Body> {};

/// The bodies that copy slices to `stages` buffers, each block_m rows of op(A) and then block_n
/// columns of op(B): the block's tile of one batch, from a row and column of C on.
template <Gemm c, GemmTranspose op, class T, class Out, bool batched, class Epilogue>
__device__ __forceinline__ void gemm_tile_by_slices(Out* out, const GemmOperand<T>* a,
                                                    const GemmOperand<T>* b,
                                                    const GemmShape<batched>& shape,
                                                    const Epilogue& epilogue, int batch,
                                                    long long row, long long column) {
  using In = GemmOperand<T>;
  static_assert(kHostTarget || c.vector * sizeof(In) == 4 || c.vector * sizeof(In) == 8 ||
                    c.vector * sizeof(In) == 16,
                "vector: 4, 8 or 16 bytes per access");
  static_assert(c.stages >= 1 && c.group_m >= 1, "stages and group_m: at least 1");
  using LayoutA = SliceLayout<c, c.block_m, a_across(op)>;
  using LayoutB = SliceLayout<c, c.block_n, b_across(op)>;

  extern __shared__ __align__(1024) unsigned char shared_memory[];
  In* const buffers = reinterpret_cast<In*>(shared_memory);
  constexpr int kAccess = c.vector * static_cast<int>(sizeof(In));  // bytes
  constexpr int kCopies =
      ((c.block_m + c.block_n) * (c.block_k / c.vector) + 2 * c.threads() - 2) / c.threads() + 1;
  AsyncCopies<kAccess, kCopies, c.stages> copies;

  const int m = shape.m, n = shape.n, k = shape.k;
  if constexpr (batched) {
    a += batch * shape.stride_a;
    b += batch * shape.stride_b;
  }
  const auto packs = [](const In* matrix, int in_row, GemmStride leading) {
    return in_row % c.vector == 0 && leading % c.vector == 0 &&
           (kHostTarget || aligned(kAccess, matrix));
  };
  const bool packed_a = packs(a, shape.a_row(op), shape.lda);
  const bool packed_b = packs(b, shape.b_row(op), shape.ldb);
  const int slices = (k + c.block_k - 1) / c.block_k;

  using Multiply = MaybeScaled<kBlockScaled<T>, c, Body<c.body, c, In, LayoutA, LayoutB>>;
  const auto rows_of_b = [&] {
    if constexpr (kGated<Epilogue>)
      return gated_rows_from<Epilogue, Multiply::kPairApart>(column, shape);
    else
      return RowsFrom{column, n};
  }();
  const auto copy_slice = [&](int slice) {
    if (slice < slices) {
      In* const buffer = buffers + slice % c.stages * c.stage_elements(op);
      copy_tile<c, c.block_m, a_across(op)>(copies, buffer, a, shape.lda, RowsFrom{row, m},
                                            slice * c.block_k, k, packed_a);
      copy_tile<c, c.block_n, b_across(op)>(copies, buffer + LayoutA::kElements, b, shape.ldb,
                                            rows_of_b, slice * c.block_k, k, packed_b);
    }
    copies.commit();  // also when empty: the count of groups is what wait() goes by
  };

  [[maybe_unused]] const auto scales = [&] {
    if constexpr (kBlockScaled<T>)
      return scales_of(block_scales_in(epilogue), shape, batch);
    else
      return 0;
  }();
  Multiply body;
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
    const In* const buffer = buffers + slice % c.stages * c.stage_elements(op);
    const auto multiply = [&] {
      const bool in_line = !b_across(op) && !kGated<Epilogue>;  // rows of B as they are multiplied
      body.multiply(buffer, buffer + LayoutA::kElements,
                    in_line ? b + column * shape.ldb + (slice + 1) * c.block_k : nullptr,
                    shape.ldb);
    };
    if constexpr (c.body == GemmBody::wgmma) {
      multiply();
      copy_slice(slice + c.ahead());
      body.template settle<1>();
    } else {
      if constexpr (c.stages > 1) copy_slice(slice + c.ahead());
      multiply();
      if constexpr (kBlockScaled<T>)  // sums of whole blocks, whatever the slices
        if ((slice + 1) * c.block_k % kScaleBlock == 0)
          body.settle_scaled(scales, shape, row, rows_of_b, slice * c.block_k);
    }
  }
  if constexpr (c.body == GemmBody::wgmma) body.template settle<0>();
  if constexpr (kScalesResults<Epilogue>)
    body.store_blocks(out, output_of(shape, epilogue, batch), row, column, shared_memory);
  else
    body.store(out, output_of(shape, ready(epilogue), batch), row, column);
}

}  // namespace kiln::templates
