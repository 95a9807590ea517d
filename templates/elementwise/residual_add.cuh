// Device half of residual_add.hpp.
#pragma once

#include "residual_add.hpp"
#include "vector_add.cuh"

namespace kiln::templates {

template <VectorAdd c, class T>
__global__ void __launch_bounds__(c.threads())
    residual_add(T* out, const T* x, const T* residual, int rows, int hidden) {
  add_tile<c>(out, x, residual, static_cast<long long>(rows) * hidden);
}

}  // namespace kiln::templates
