// The rows of groups as 8-bit floats (e4m3) with scales of blocks, as gemm_masked_fp8_block
// (gemm_grouped_fp8.hpp) reads its A. Each group has room for m rows, of which the first counts[g]
// are quantized:
//
//   q[g][i][h] = e4m3(x[g][i][h] / scales[g][h / 128][i]),
//   0 <= g < groups, 0 <= i < counts[g], 0 <= h < hidden
//
// x and q: [groups][m][hidden], row-major without gaps; T = float, __half or __nv_bfloat16; scales:
// float, [groups][scale_blocks(hidden)][scale_leading(m)] (kiln/block_scales.hpp); counts:
// [groups], int, in device memory. A count that is negative is 0, one beyond m is m. Rows behind
// the counts are not read, and neither they nor their scales are written.
//
// Scales, roundings, zeros, NaNs, infinities, alignment and overlaps are those of quantize_blocks
// (quantize.hpp). All results are the same on each device and with each config. A negative size is
// a UserError. Tunings draw counts that are equal, that differ by much, and of which every second
// one is 0.
//
//   auto quantize = runtime.tuned(kiln::templates::quantize_blocks_masked_kernel<float>());
//   quantize(stream, q, scales, x, counts, m, hidden, groups);
#pragma once

#include "quantize.hpp"

namespace kiln::templates {

struct MaskedRows {
  int m;       // rows that each group has room for
  int hidden;  // elements per row
  int groups;
};

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::MaskedRows, m, hidden, groups)

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: q, scales, x, counts, m, hidden, groups.
template <class T>
using QuantizeBlocksMaskedKernel =
    Kernel<RowConfig, MaskedRows, void(float8_e4m3*, float*, const T*, const int*, int, int, int)>;
template <class T>
QuantizeBlocksMaskedKernel<T> quantize_blocks_masked_kernel();

}  // namespace kiln::templates
#endif
