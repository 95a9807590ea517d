// What the host halves of GEMMs share: maps, launches, tolerances, the order of sums.
#pragma once

#include <algorithm>
#include <string>

#include "templates/kernels.hpp"

namespace kiln::templates {

// Rows of a box: none lies outside of a small array, because TMA takes longer over such rows.
template <bool batched>
int a_box(const GemmTma& t, GemmTranspose op, const GemmShape<batched>& p) {
  return a_across(op) ? t.block_k : std::min(t.swap ? t.copied_n() : t.copied_m(), p.m);
}
template <bool batched>
int b_box(const GemmTma& t, GemmTranspose op, const GemmShape<batched>& p) {
  return b_across(op) ? t.block_k : std::min(t.swap ? t.copied_m() : t.copied_n(), p.n);
}

/// What one instruction of gemm_tma.cuh copies of an array of `rows` rows in each batch, or of one
/// that all batches share.
template <class T, bool batched>
TensorMap box_of(const GemmShape<batched>& p, GemmStride row, GemmStride rows, GemmStride leading,
                 GemmStride stride, int columns, int high, Swizzle swizzle, int l2_bytes) {
  TensorMap::Tiled tiled{.size = {row, rows},
                         .stride = {leading},
                         .box = {columns, high},
                         .swizzle = swizzle,
                         .l2_bytes = l2_bytes};
  if constexpr (batched) {
    const bool many = p.batch > 1 && stride != 0;
    tiled.size.push_back(many ? p.batch : 1);
    tiled.stride.push_back(many ? stride : leading);
    tiled.box.push_back(1);
  }
  return TensorMap::tiled<T>(tiled);
}

/// Rows of 128 bytes of an operand. With `swap` A's rows are the product's columns.
template <class T, GemmTranspose op, bool batched>
TensorMap a_map(const Gemm& c, const GemmShape<batched>& p) {
  const GemmTma t = c.tma(GemmTypes<T>::kOperands);
  return box_of<GemmOperand<T>>(p, p.a_row(op), p.a_rows(op), p.lda, p.stride_a, t.box_k(),
                                a_box(t, op, p), Swizzle::bytes128, 256);
}
template <class T, GemmTranspose op, bool batched>
TensorMap b_map(const Gemm& c, const GemmShape<batched>& p) {
  const GemmTma t = c.tma(GemmTypes<T>::kOperands);
  return box_of<GemmOperand<T>>(p, p.b_row(op), p.b_rows(op), p.ldb, p.stride_b, t.box_k(),
                                b_box(t, op, p), Swizzle::bytes128, 256);
}

/// As wide as a row of so many elements of C.
constexpr Swizzle swizzle_of(int columns) {
  return columns == 64 ? Swizzle::bytes128 : columns == 32 ? Swizzle::bytes64 : Swizzle::bytes32;
}
/// What a warp has of C.
template <class T, bool batched>
TensorMap c_map(const GemmTma& t, const GemmShape<batched>& p) {
  return box_of<GemmResult<T>>(p, p.n, p.m, p.ldc, p.stride_c, t.store_columns(),
                               std::min(t.swap ? t.block_n : 16, p.m),
                               swizzle_of(t.store_columns()), 0);
}

/// What one instruction fetches of an array that an epilogue adds to C.
template <class T, bool batched>
TensorMap fetched_map(const GemmTma& t, const GemmShape<batched>& p) {
  return box_of<GemmResult<T>>(p, p.n, p.m, p.ldc, p.stride_c, t.fetched_columns(),
                               std::min(t.fetched_rows(), p.m), swizzle_of(t.fetched_columns()),
                               256);
}

template <class T, bool batched>
Launch gemm_launch(const Gemm& c, GemmTranspose op, const GemmShape<batched>& p,
                   const DeviceLimits& d) {
  Launch launch{{c.grid(p.sizes(), d.usable_multiprocessors(), p.batch)},
                {static_cast<unsigned>(c.threads())},
                c.shared_bytes(sizeof(GemmOperand<T>), op, GemmTypes<T>::kOperands)};
  if (c.uses_tma()) launch.cluster.x = static_cast<unsigned>(c.tma().cluster());
  launch.programmatic = c.programmatic;
  return launch;
}

/// Tiles of all batches, for bodies with tensor maps.
inline std::size_t tiles_of(const Gemm& c, const GemmShape<true>& p) {
  const GemmTma t = c.tma();
  return std::size_t{t.tiles_m(p.m, p.n)} * t.tiles_n(p.m, p.n) *
         static_cast<std::size_t>(std::max(p.batch, 0));
}

inline WorkspaceSize gemm_workspace(const Gemm& c, const GemmShape<true>& p) {
  const auto tiles = tiles_of(c, p);
  return {.bytes = tiles * c.tma().tile_scratch(), .semaphores = c.later ? 0 : tiles};
}
/// The launch of the step that adds the sums of parts.
inline Launch gemm_add_launch(const Gemm& c, const GemmShape<true>& p) {
  return {{c.tma().add_grid(tiles_of(c, p))}, {GemmTma::kAddThreads}};
}

/// Allows k products to be summed in another order, and then a unit in the last place of T. All
/// elements together may have half of that: what is off everywhere is no rounding.
template <class T>
inline constexpr Tolerance kGemmTolerance{.relative = 1e-4, .absolute = 1e-3, .norm = 5e-5};
template <>
inline constexpr Tolerance kGemmTolerance<float16>{
    .relative = 2e-3, .absolute = 4e-3, .norm = 1e-3};
template <>
inline constexpr Tolerance kGemmTolerance<bfloat16>{
    .relative = 1.6e-2, .absolute = 4e-3, .norm = 8e-3};
/// The tensor cores' sums of 128, and of all k.
template <>
inline constexpr Tolerance kGemmTolerance<Fp8<bfloat16>>{
    .relative = 1.6e-2, .absolute = 5e-2, .norm = 8e-3};
template <>
inline constexpr Tolerance kGemmTolerance<Fp8<bfloat16, Fp8Sums::scaled>> =
    kGemmTolerance<Fp8<bfloat16>>;
template <>
inline constexpr Tolerance kGemmTolerance<Fp8<bfloat16, Fp8Sums::fast>>{
    .relative = 5e-2, .absolute = 2, .norm = 3e-2};

/// Kernel::numerics: in which order an element's products are summed. Tiles, stages and the blocks'
/// order change nothing in that.
inline std::string order_of_sums(const Gemm& c) {
  const auto number = [](int n) { return " " + std::to_string(n); };
  switch (c.body) {
    case GemmBody::simt:
      return "one by one, in lanes of" + number(c.vector);
    case GemmBody::mma:
    case GemmBody::shift:
      return "mma, 16 at a time";
    case GemmBody::stream:
      return "mma, shared by warps" + number(c.small_m().warps) + number(c.stages);
    default:
      break;
  }
  std::string order = c.swap ? "wgmma of the transposed" : "wgmma";
  if (c.split_k() > 1) order += ", shared in a cluster" + number(c.split_k()) + number(c.block_k);
  if (c.parts > 1) order += ", in parts" + number(c.parts) + number(c.block_k);
  return order;
}

}  // namespace kiln::templates
