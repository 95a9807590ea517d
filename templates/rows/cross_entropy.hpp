// loss[r] = log(sum_c exp(x[r][c])) - x[r][label[r]], 0 <= r < rows, 0 <= c < columns; 0 where
// label[r] is `ignored`.
//
// x: logits, [rows][columns], row-major without gaps, T = float, __half or __nv_bfloat16; loss:
// [rows], float, natural logarithm; label: [rows], int, 0 <= label[r] < columns, or `ignored`,
// which may be any number (-100 as a rule). Sums are float, and relative to the row's largest
// logit, so that none overflows. Pointers need no alignment beyond that of their elements.
//
// Of a row of equal logits, of zeros for one, it is log(columns). The loss of a label that is out
// of range is NaN, and so is that of a row that holds a NaN or +infinity, or nothing but -infinity.
// Where the label's logit alone is -infinity it is +infinity. A row whose label is ignored is not
// read.
//
// C++ programs: `auto loss = runtime.tuned(kiln::templates::cross_entropy_kernel<float>());`.
#pragma once

#include "row_config.hpp"

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: loss, x, label, rows, columns, ignored.
template <class T>
using CrossEntropyKernel =
    Kernel<RowConfig, LogitRows, void(float*, const T*, const int*, int, int, int)>;
template <class T>
CrossEntropyKernel<T> cross_entropy_kernel();

}  // namespace kiln::templates
#endif
