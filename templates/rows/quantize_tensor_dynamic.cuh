// Device half of quantize_tensor_dynamic.hpp. In the workspace lie the number of thread blocks that
// have looked for the largest magnitude, and what each of them has found.
#pragma once

#include "fp8_tiles.cuh"
#include "kiln/workspace.cuh"
#include "quantize_tensor_dynamic.hpp"

namespace kiln::templates {

struct LargestFound {
  unsigned blocks;
  float of_block[1];  // as many as there are blocks
};

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    quantize_tensor_dynamic(__nv_fp8_e4m3*, float*, const T* x, int rows, int hidden,
                            Workspace workspace) {
  check_row_config<c, T>();
  auto* const found = static_cast<LargestFound*>(workspace.scratch);
  const long long elements = static_cast<long long>(rows) * hidden;
  const bool whole = misalignment<c.vector>(x) == 0;
  float most = 0.0f;
#pragma unroll 1
  for (long long piece = blockIdx.x; piece * c.kept * c.step() < elements; piece += gridDim.x)
    most = Fp8Piece<c, T>(x, elements, piece, whole).largest(most);
  unsigned turn = 0;
  most = largest_over_row<c>(most, turn);
  if (threadIdx.x != 0) return;
  found->of_block[blockIdx.x] = most;
  if (blockIdx.x == 0) found->blocks = gridDim.x;
}

template <RowConfig c, class T>
__global__ void __launch_bounds__(c.threads(), c.resident_blocks())
    quantize_tensor_dynamic_store(__nv_fp8_e4m3* q, float* scale, const T* x, int rows, int hidden,
                                  Workspace workspace) {
  const auto* const found = static_cast<const LargestFound*>(workspace.scratch);
  const Fp8Piece<c, T> piece(x, static_cast<long long>(rows) * hidden, gridDim.x - 1 - blockIdx.x,
                             aligned_to_accesses<c>(x, q));
  float most = 0.0f;
  for (unsigned block = threadIdx.x; block < found->blocks; block += c.block)
    most = fmaxf(most, found->of_block[block]);
  unsigned turn = 0;
  const Fp8Scale of_all = fp8_scale_of(largest_over_row<c>(most, turn));
  if (blockIdx.x == 0 && threadIdx.x == 0) *scale = of_all.scale;
  piece.store(q, of_all.factor);
}

}  // namespace kiln::templates
