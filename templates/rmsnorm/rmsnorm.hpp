// y[r][h] = x[r][h] * rsqrt(mean_h(x[r][h]^2) + eps) * w[h], 0 <= r < rows, 0 <= h < hidden.
//
// x and y: [rows][hidden], w: [hidden], row-major without gaps; T = float, __half or __nv_bfloat16.
// Squares, their sum and the products are float; y rounds once. One access moves `vector` elements
// where x, w and y are aligned to that many bytes and `vector` divides hidden; else it goes
// element by element. y may be x.
//
// C++ programs: `auto norm = runtime.tuned(kiln::templates::rmsnorm_kernel<float>());`.
#pragma once

#include "kiln/config.hpp"
#if !defined(KILN_DEVICE_PASS)
#include "kiln/kernel.hpp"
#endif

namespace kiln::templates {

struct RmsNorm {
  int block;           // threads per block
  int rows_per_block;  // 1: all threads on one row; more: a warp per row, block / 32 of them
  int vector;          // elements per access
  int kept;  // accesses of x per thread held in registers between the passes; 0: x is read twice

  constexpr int threads() const { return block; }
  constexpr int threads_per_row() const { return block / rows_per_block; }
  constexpr int warps_per_row() const { return threads_per_row() / 32; }
  constexpr int step() const { return threads_per_row() * vector; }  // elements per access of all
  constexpr unsigned shared_bytes() const { return 0; }              // dynamic; see rmsnorm.cuh
  constexpr unsigned grid(int rows) const {
    return static_cast<unsigned>((0ll + rows + rows_per_block - 1) / rows_per_block);
  }
};

struct RmsNormProblem {
  int rows;    // tokens
  int hidden;  // elements per row
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::RmsNorm, block, rows_per_block, vector, kept)
KILN_PROBLEM(kiln::templates::RmsNormProblem, rows, hidden)

#if !defined(KILN_DEVICE_PASS)
namespace kiln::templates {

/// T is float, kiln::float16 or kiln::bfloat16. Arguments: y, x, w, rows, hidden, eps.
template <class T>
using RmsNormKernel =
    Kernel<RmsNorm, RmsNormProblem, void(T*, const T*, const T*, int, int, float)>;
template <class T>
RmsNormKernel<T> rmsnorm_kernel();

}  // namespace kiln::templates
#endif
