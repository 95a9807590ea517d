// Device half of gemm.hpp: the entries, and which body a config has.
#pragma once

#include "gemm.hpp"
#include "gemm_shift.cuh"
#include "gemm_slices.cuh"
#include "gemm_small_m.cuh"
#include "kiln/workspace.cuh"
#include "shared/gemm_epilogue.cuh"
#ifndef KILN_HOST_TARGET
#include "tma/gemm_tma.cuh"
#endif

namespace kiln::templates {

#ifndef KILN_HOST_TARGET
/// What the entry takes for an array: a tensor map or the pointer.
template <bool kMap, class T>
using GemmArgument = hopper::Argument<kMap, T*>;
#else
template <bool kMap, class T>
using GemmArgument = T*;
#endif

/// The plain bodies: the tile of C, and the batch, that are this block's.
template <Gemm c, GemmTranspose op, class T, class Out, bool batched, class Epilogue>
__device__ __forceinline__ void gemm_by_slices(Out* out, const GemmOperand<T>* a,
                                               const GemmOperand<T>* b,
                                               const GemmShape<batched>& shape,
                                               const Epilogue& epilogue) {
  unsigned block = blockIdx.x;
  int batch = 0;
  if constexpr (batched) {
    const unsigned tiles = c.tiles_m(shape.m) * c.tiles_n(shape.n);
    batch = static_cast<int>(block / tiles);
    block %= tiles;
  }
  const BlockTile tile = block_tile<c>(block, shape.m, shape.n);
  const long long row = static_cast<long long>(tile.m) * c.block_m,
                  column = static_cast<long long>(tile.n) * c.block_n;
  if constexpr (c.body == GemmBody::shift)
    gemm_tile_by_shifts<c>(out, a, b, shape, epilogue, batch, row, column);
  else
    gemm_tile_by_slices<c, op, T>(out, a, b, shape, epilogue, batch, row, column);
}

template <Gemm c, GemmTranspose op, class T, class Out, class In, bool batched, class Epilogue>
__device__ __forceinline__ void gemm_body(const Out& out, const In& a, const In& b,
                                          const GemmShape<batched>& shape, const Epilogue& epilogue,
                                          const Workspace& workspace = {}) {
  static_assert(c.threads() >= 1 && c.threads() <= 1024, "threads per block: 1 to 1024");
  static_assert(c.divides(GemmTypes<T>::kOperands),
                "tiles divide blocks, and vector divides block_k: see Gemm::divides()");
  static_assert(c.takes(op), "the body takes operands as they lie: see Gemm::takes()");
  if constexpr (c.plain()) {
    gemm_by_slices<c, op, T>(out, a, b, shape, epilogue);
  } else if constexpr (c.body == GemmBody::stream) {
    static_assert(!GemmTypes<T>::kFp8, "body stream: T has 2 bytes");
    gemm_small_m<c.small_m()>(out, a, b, shape, epilogue);
#ifndef KILN_HOST_TARGET
  } else {
    gemm_tma_body<c.tma(GemmTypes<T>::kOperands), op, T>(out, a, b, shape, epilogue, workspace);
#endif
  }
}

/// Arrays without gaps. P: what the epilogue's arguments are, or Fetched<T>. Dynamic shared memory:
/// c.shared_bytes(sizeof(GemmOperand<T>), op, GemmTypes<T>::kOperands) bytes.
template <Gemm c, class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing,
          class... P>
  requires(c.parts == 1)
__global__ void __launch_bounds__(c.threads(), c.plain() ? 0 : 1) gemm(
    const __grid_constant__ GemmArgument<c.stores_by_map(), GemmResult<T>> out,
    const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> a,
    const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> b, int m, int n, int k,
    const __grid_constant__ EntryArgument<c.fetches(GemmTypes<T>::kOperands), P>... parameters) {
  gemm_body<c, op, T>(out, a, b, gemm_shape<op>(GemmProblem{m, n, k}),
                      with_arguments<Epilogue>(given(parameters)...));
}

/// The same with leading dimensions and batches.
template <Gemm c, class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing,
          class... P>
  requires(c.parts == 1)
__global__ void __launch_bounds__(c.threads(), c.plain() ? 0 : 1) gemm_strided(
    const __grid_constant__ GemmArgument<c.stores_by_map(), GemmResult<T>> out,
    const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> a,
    const __grid_constant__ GemmArgument<c.uses_tma(), const GemmOperand<T>> b, int m, int n, int k,
    GemmStride ldc, GemmStride lda, GemmStride ldb, int batch, GemmStride stride_c,
    GemmStride stride_a, GemmStride stride_b,
    const __grid_constant__ EntryArgument<c.fetches(GemmTypes<T>::kOperands), P>... parameters) {
  gemm_body<c, op, T>(out, a, b,
                      GemmShape<true>{m, n, k, ldc, lda, ldb, batch, stride_c, stride_a, stride_b},
                      with_arguments<Epilogue>(given(parameters)...));
}

#ifndef KILN_HOST_TARGET

// Configs whose blocks share k through the workspace, and the step that adds their sums.

template <Gemm c, class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing,
          class... P>
  requires(c.parts > 1)
__global__ void __launch_bounds__(c.threads(), 1)
    gemm(GemmResult<T>* out, const __grid_constant__ hopper::TensorMap a,
         const __grid_constant__ hopper::TensorMap b, int m, int n, int k,
         EntryArgument<false, P>... parameters, Workspace workspace) {
  gemm_body<c, op, T>(out, a, b, gemm_shape<op>(GemmProblem{m, n, k}),
                      with_arguments<Epilogue>(parameters...), workspace);
}
template <Gemm c, class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing,
          class... P>
__global__ void __launch_bounds__(GemmTma::kAddThreads)
    gemm_add(GemmResult<T>* out, const __grid_constant__ hopper::TensorMap a,
             const __grid_constant__ hopper::TensorMap b, int m, int n, int k,
             EntryArgument<false, P>... parameters, Workspace workspace) {
  gemm_tma_add<c.tma(GemmTypes<T>::kOperands), op, T>(
      out, a, b, gemm_shape<op>(GemmProblem{m, n, k}), with_arguments<Epilogue>(parameters...),
      workspace);
}

template <Gemm c, class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing,
          class... P>
  requires(c.parts > 1)
__global__ void __launch_bounds__(c.threads(), 1)
    gemm_strided(GemmResult<T>* out, const __grid_constant__ hopper::TensorMap a,
                 const __grid_constant__ hopper::TensorMap b, int m, int n, int k, GemmStride ldc,
                 GemmStride lda, GemmStride ldb, int batch, GemmStride stride_c,
                 GemmStride stride_a, GemmStride stride_b, EntryArgument<false, P>... parameters,
                 Workspace workspace) {
  gemm_body<c, op, T>(out, a, b,
                      GemmShape<true>{m, n, k, ldc, lda, ldb, batch, stride_c, stride_a, stride_b},
                      with_arguments<Epilogue>(parameters...), workspace);
}
template <Gemm c, class T, GemmTranspose op = GemmTranspose::nt, class Epilogue = epilogue::Nothing,
          class... P>
__global__ void __launch_bounds__(GemmTma::kAddThreads)
    gemm_strided_add(GemmResult<T>* out, const __grid_constant__ hopper::TensorMap a,
                     const __grid_constant__ hopper::TensorMap b, int m, int n, int k,
                     GemmStride ldc, GemmStride lda, GemmStride ldb, int batch, GemmStride stride_c,
                     GemmStride stride_a, GemmStride stride_b,
                     EntryArgument<false, P>... parameters, Workspace workspace) {
  gemm_tma_add<c.tma(GemmTypes<T>::kOperands), op, T>(
      out, a, b, GemmShape<true>{m, n, k, ldc, lda, ldb, batch, stride_c, stride_a, stride_b},
      with_arguments<Epilogue>(parameters...), workspace);
}

#endif

}  // namespace kiln::templates
