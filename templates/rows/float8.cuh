// 8-bit floats as results: what their scales are made of, and stores of several.
#pragma once

#include <cuda_fp8.h>

#include "quantize.hpp"
#include "row_kernel.cuh"

namespace kiln::templates {

template <int N, class T>
__device__ float largest_magnitude(const Pack<T, N>& x, float of) {
#pragma unroll
  for (int e = 0; e < N; ++e) of = fmaxf(of, fabsf(to_float(x.value[e])));
  return of;
}

struct Fp8Scale {
  float scale, factor;  // the factor is 1 / scale
};

/// fp8_scale(most). What divisions are made of, without their branches: neither quotient is close
/// to the least or the largest float, so these are the same bits.
__device__ inline Fp8Scale fp8_scale_of(float most) {
#ifdef KILN_HOST_TARGET
  const float scale = fp8_scale(most);
  return {scale, 1.0f / scale};
#else
  constexpr float kInverse = 1.0f / 448.0f, kLeast = 1.17549435e-38f;
  const float near = most * kInverse;
  float scale = fmaf(fmaf(-448.0f, near, most), kInverse, near), inverse;
  const bool infinite = most > 3.4028234663852886e38f;
  scale = infinite ? most : fmaxf(scale, kLeast);
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
  return {scale, infinite ? 0.0f : fmaf(inverse, fmaf(-scale, inverse, 1.0f), inverse)};
#endif
}

/// e4m3 numbers of `a` (the lower byte) and `b`, rounded to nearest even and saturated.
#if !defined(KILN_HOST_TARGET) && __CUDA_ARCH__ >= 890

__device__ inline unsigned short e4m3_pair(float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}

#else

// There is no instruction for it, and what CUDA has instead takes long to compile.
__device__ inline unsigned e4m3_bits(float value) {
  constexpr unsigned kLeastNormal = 121u << 23, kAligned = 141u << 23, kLargest = 0x7e;
  const unsigned bits = __float_as_uint(value), sign = bits >> 24 & 0x80,
                 magnitude = bits & 0x7fffffff;
  // Below 2^-6 a sum rounds: its last bit has the weight of the least subnormal.
  const unsigned rounded =
      magnitude < kLeastNormal
          ? __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(kAligned)) - kAligned
          : (magnitude - (120u << 23) + 0x7ffff + (magnitude >> 20 & 1)) >> 20;
  return magnitude > 0x7f800000 ? 0x7f : sign | (rounded < kLargest ? rounded : kLargest);
}

__device__ inline unsigned short e4m3_pair(float a, float b) {
  return static_cast<unsigned short>(e4m3_bits(a) | e4m3_bits(b) << 8);
}

#endif

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
