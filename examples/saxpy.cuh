// The kernel: a template over the config struct.
#include "saxpy.hpp"

template <Saxpy c, class T>
__global__ void __launch_bounds__(c.block) saxpy(T* y, const T* x, T a, int n) {
  const int first = blockIdx.x * c.tile() + threadIdx.x;
#pragma unroll
  for (int i = 0; i < c.items; ++i) {
    const int index = first + i * c.block;
    if (index < n) y[index] = a * x[index] + y[index];
  }
}
