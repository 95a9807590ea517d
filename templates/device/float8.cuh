// 8-bit floats (e4m3) as elements: include it before what converts them.
#pragma once

#include <cuda_fp8.h>

#include "elements.cuh"

namespace kiln::templates {

// By its bits: the instruction is sm_89's, and what CUDA has instead takes long to compile.
__device__ inline float to_float(__nv_fp8_e4m3 x) {
  const unsigned bits = x.__x, rest = bits & 0x7f;
  const float magnitude = __uint_as_float(rest << 20) * 0x1p120f;
  return __uint_as_float(bits << 24 & 0x80000000u |
                         (rest == 0x7f ? 0x7fc00000u : __float_as_uint(magnitude)));
}
template <>
__device__ inline __nv_fp8_e4m3 from_float<__nv_fp8_e4m3>(float x) {
  return __nv_fp8_e4m3(x);
}

}  // namespace kiln::templates
