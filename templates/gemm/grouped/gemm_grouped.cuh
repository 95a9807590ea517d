// Device half of gemm_grouped.hpp: the entries, and which body a config has.
#pragma once

#include "../gemm.cuh"
#include "gemm_groups.cuh"
#ifndef KILN_HOST_TARGET
#include "gemm_grouped_tma.cuh"
#endif

namespace kiln::templates {

/// A block for each tile; blocks behind the last tile have nothing to do.
template <Gemm c, class T, GroupLayout layout, class Epilogue>
__device__ __forceinline__ void gemm_grouped_by_slices(GemmResult<T>* out, const GemmOperand<T>* a,
                                                       const GemmOperand<T>* b, const int* sizes,
                                                       GemmShape<true> shape,
                                                       const Epilogue& epilogue,
                                                       int row_alignment) {
  unsigned tile = blockIdx.x;
  GroupRows rows;
  if (!group_of<c, layout>(tile, sizes, shape, row_alignment, rows)) return;
  const BlockTile at = block_tile<c>(tile, rows.count(), shape.n);
  const int all_rows = shape.m;
  shape.m = rows.end;  // rows behind it are neither read nor stored
  const auto compute = [&](const auto& finish) {
    gemm_tile_by_slices<c, GemmTranspose::nt, T>(
        out, a, b, shape, finish, rows.group, rows.begin + static_cast<long long>(at.m) * c.block_m,
        static_cast<long long>(at.n) * c.block_n);
  };
  if constexpr (kBlockScaled<T>) {
    Epilogue finish = epilogue;
    finish.scales.rows = all_rows;
    compute(finish);
  } else {
    compute(epilogue);
  }
}

template <Gemm c, class T, GroupLayout layout, class In, class Epilogue>
__device__ __forceinline__ void gemm_grouped_body(GemmResult<T>* out, const In& a, const In& b,
                                                  const int* sizes, const GemmShape<true>& shape,
                                                  const Epilogue& epilogue, int row_alignment = 1) {
  static_assert(c.threads() >= 1 && c.threads() <= 1024, "threads per block: 1 to 1024");
  static_assert(c.divides(GemmTypes<T>::kOperands),
                "tiles divide blocks, and vector divides block_k: see Gemm::divides()");
  if constexpr (c.plain()) {
    gemm_grouped_by_slices<c, T, layout>(out, a, b, sizes, shape, epilogue, row_alignment);
#ifndef KILN_HOST_TARGET
  } else {
    static_assert(c.uses_tma(), "body: simt, mma, wgmma, tma or pingpong");
    gemm_grouped_tma_body<c.tma(GemmTypes<T>::kOperands), T, layout>(out, a, b, sizes, shape,
                                                                     epilogue, row_alignment);
#endif
  }
}

/// Blocks that share a multiprocessor, for which the compiler leaves registers; 0: as it likes.
/// Persistent blocks are given their tiles up front, so one that waits for a free multiprocessor
/// would end late.
template <Gemm c, class T>
constexpr int grouped_blocks() {
  if (c.plain()) return 0;
  const int fit = c.tma(GemmTypes<T>::kOperands).per_multiprocessor(228 * 1024);
  return fit < c.resident ? fit : c.resident;
}
template <Gemm c, class T>
inline constexpr int kGroupedBlocks = grouped_blocks<c, T>();

/// P: what the epilogue's arguments are. Dynamic shared memory: c.shared_bytes(...) bytes.
template <Gemm c, class T, class Epilogue = epilogue::Nothing, class... P>
__global__ void __launch_bounds__(c.threads(), kGroupedBlocks<c, T>)
    gemm_grouped(GemmResult<T>* out,
                 const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> a,
                 const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> b,
                 const int* ends, int m, int n, int k, int groups, P... parameters) {
  gemm_grouped_body<c, T, GroupLayout::contiguous>(out, a, b, ends,
                                                   grouped_shape(m, n, k, groups, false),
                                                   with_arguments<Epilogue>(parameters...));
}
template <Gemm c, class T, class Epilogue = epilogue::Nothing, class... P>
__global__ void __launch_bounds__(c.threads(), kGroupedBlocks<c, T>)
    gemm_padded(GemmResult<T>* out,
                const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> a,
                const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> b,
                const int* ends, int m, int n, int k, int groups, int row_alignment,
                P... parameters) {
  gemm_grouped_body<c, T, GroupLayout::padded>(
      out, a, b, ends, grouped_shape(m, n, k, groups, false),
      with_arguments<Epilogue>(parameters...), row_alignment);
}
template <Gemm c, class T, class Epilogue = epilogue::Nothing, class... P>
__global__ void __launch_bounds__(c.threads(), kGroupedBlocks<c, T>)
    gemm_masked(GemmResult<T>* out,
                const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> a,
                const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> b,
                const int* counts, int m, int n, int k, int groups, int /*expected*/,
                P... parameters) {
  gemm_grouped_body<c, T, GroupLayout::masked>(out, a, b, counts,
                                               grouped_shape(m, n, k, groups, true),
                                               with_arguments<Epilogue>(parameters...));
}

}  // namespace kiln::templates
