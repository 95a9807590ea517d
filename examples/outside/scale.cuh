// x *= a, over rows of a matrix: one block per row.
#include "scale.hpp"

template <Scale c>
__global__ void __launch_bounds__(c.block) scale(float* x, float a, int columns) {
  float* row = x + static_cast<long long>(blockIdx.x) * columns;
  for (int i = threadIdx.x; i < columns; i += c.block) row[i] *= a;
}
