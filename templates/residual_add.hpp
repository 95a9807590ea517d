// out[r][h] = x[r][h] + residual[r][h], 0 <= r < rows, 0 <= h < hidden; row-major, T = float,
// __half or __nv_bfloat16. Rows follow each other without gaps, so this is vector_add (its config,
// alignment and aliasing rules) over rows * hidden elements, which may exceed 2^31.
#pragma once

#include "vector_add.hpp"

namespace kiln::templates {

struct Activations {
  int rows;    // tokens
  int hidden;  // elements per row

  constexpr long long elements() const { return static_cast<long long>(rows) * hidden; }
};

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::Activations, rows, hidden)
