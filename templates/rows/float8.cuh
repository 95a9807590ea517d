// 8-bit floats as results: the largest magnitude of several, and their stores.
#pragma once

#include "../device/e4m3.cuh"
#include "quantize.hpp"
#include "row_kernel.cuh"

namespace kiln::templates {

template <int N, class T>
__device__ float largest_magnitude(const Pack<T, N>& x, float of) {
#pragma unroll
  for (int e = 0; e < N; ++e) of = fmaxf(of, fabsf(to_float(x.value[e])));
  return of;
}

/// Stores x * factor; `address` is aligned to `N` elements.
template <int N, class T>
__device__ void store_scaled(__nv_fp8_e4m3* address, const Pack<T, N>& x, float factor) {
  if constexpr (N == 1) {
    *reinterpret_cast<unsigned char*>(address) =
        static_cast<unsigned char>(e4m3_pair(to_float(x.value[0]) * factor, 0.0f));
  } else {
    Pack<unsigned short, N / 2> pairs;
#pragma unroll
    for (int e = 0; e < N; e += 2)
      pairs.value[e / 2] =
          e4m3_pair(to_float(x.value[e]) * factor, to_float(x.value[e + 1]) * factor);
    store_pack(reinterpret_cast<unsigned short*>(address), pairs);
  }
}

}  // namespace kiln::templates
