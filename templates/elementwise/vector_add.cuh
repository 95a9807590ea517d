// Device half of vector_add.hpp.
#pragma once

#include "../device/elements.cuh"
#include "vector_add.hpp"

namespace kiln::templates {

/// Adds the elements of this block's tile. Thread t of B takes packs t, t + B, ... of the tile.
template <VectorAdd c, class T>
__device__ void add_tile(T* out, const T* a, const T* b, long long n) {
  // On the host the loop over the block's threads is what gets vectorised: one element each.
  constexpr int kWidth = kHostTarget ? 1 : pack_width<T>(c.items);
  constexpr int kStep = c.block * kWidth;  // elements between a thread's packs
  const long long tile = static_cast<long long>(blockIdx.x) * c.tile();
  const long long first = tile + static_cast<int>(threadIdx.x) * kWidth;

  if (tile + c.tile() <= n && aligned(sizeof(T) * kWidth, out, a, b)) {
    Pack<T, kWidth> x[c.items / kWidth], y[c.items / kWidth];
#pragma unroll
    for (int j = 0; j < c.items / kWidth; ++j) {
      x[j] = load_pack<kWidth>(a + first + j * kStep);
      y[j] = load_pack<kWidth>(b + first + j * kStep);
    }
#pragma unroll
    for (int j = 0; j < c.items / kWidth; ++j) {
      Pack<T, kWidth> sum;
#pragma unroll
      for (int e = 0; e < kWidth; ++e)
        sum.value[e] = from_float<T>(to_float(x[j].value[e]) + to_float(y[j].value[e]));
      store_pack(out + first + j * kStep, sum);
    }
  } else {
    for (int j = 0; j < c.items; ++j) {
      const long long i = tile + j * c.block + static_cast<int>(threadIdx.x);
      if (i < n) out[i] = from_float<T>(to_float(a[i]) + to_float(b[i]));
    }
  }
}

template <VectorAdd c, class T>
__global__ void __launch_bounds__(c.threads()) vector_add(T* out, const T* a, const T* b, int n) {
  static_assert(c.block >= 1 && c.block <= 1024, "block: 1 to 1024 threads");
  static_assert(c.items >= 1, "items: at least 1 element per thread");
  add_tile<c>(out, a, b, n);
}

}  // namespace kiln::templates
