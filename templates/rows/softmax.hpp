// y[r][c] = exp(x[r][c] - max_j x[r][j]) / sum_i exp(x[r][i] - max_j x[r][j]), 0 <= r < rows,
// 0 <= c < columns.
//
// x and y: [rows][columns], row-major without gaps; T = float, __half or __nv_bfloat16. The sum is
// float; y rounds once, and what is less than the least normal float is 0. y may be x. Pointers
// need no alignment beyond that of T; accesses are wide where x and y are aligned alike, as
// row_config.hpp says.
//
// A row of equal logits, of zeros for one, becomes 1 / columns. -infinity is a logit like others,
// of weight 0. A row that holds a NaN or +infinity, or nothing but -infinity, becomes NaN. Other
// rows are not affected.
//
// C++ programs: `auto softmax = runtime.tuned(kiln::templates::softmax_kernel<float>());`.
#pragma once

#include "row_config.hpp"

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: y, x, rows, columns.
template <class T>
using SoftmaxKernel = Kernel<RowConfig, LogitRows, void(T*, const T*, int, int)>;
template <class T>
SoftmaxKernel<T> softmax_kernel();

}  // namespace kiln::templates
#endif
