// Weights as 8-bit floats (e4m3) with a scale for each block of 128 x 128, as the block-scaled
// GEMMs (gemm_fp8.hpp, gemm_fp8_gated.hpp, gemm_grouped_fp8.hpp) read their B:
//
//   q[g][j][l] = e4m3(w[g][j][l] / scales[g][j / 128][l / 128]),
//   0 <= g < groups, 0 <= j < n, 0 <= l < k
//
// w and q: [groups][n][k], row-major without gaps; T = float, __half or __nv_bfloat16; scales:
// float, [groups][scale_blocks(n)][scale_blocks(k)] (kiln/block_scales.hpp). One matrix is one
// group; gate and up, stacked, are two, since each has scales of its own. The last blocks of rows
// and columns may be smaller. The GEMMs take a k that is a multiple of 128.
//
// Scales, roundings, zeros, NaNs and infinities are those of quantize.hpp for the elements of a
// block. All results are the same on each device and with each config. Pointers need no alignment
// beyond that of their elements; accesses are wide where w and q are aligned to `vector` elements,
// which divides k. No arrays may overlap. Without elements nothing is written, no scales either. A
// negative size is a UserError.
//
//   auto quantize = runtime.tuned(kiln::templates::quantize_weights_kernel<kiln::bfloat16>());
//   quantize(stream, q, scales, w, n, k, 1);
#pragma once

#include "quantize.hpp"

namespace kiln::templates {

struct WeightGroups {
  int n, k;    // rows and columns of a matrix
  int groups;  // matrices
};

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::WeightGroups, n, k, groups)

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: q, scales, w, n, k, groups.
template <class T>
using QuantizeWeightsKernel =
    Kernel<RowConfig, WeightGroups, void(float8_e4m3*, float*, const T*, int, int, int)>;
template <class T>
QuantizeWeightsKernel<T> quantize_weights_kernel();

}  // namespace kiln::templates
#endif
