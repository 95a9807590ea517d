// Floats as 8-bit floats (e4m3) with a scale: what the scale is made of, and the rounding.
#pragma once

#include <cuda_fp8.h>

namespace kiln::templates {

struct Fp8Scale {
  float scale, factor;  // the factor is 1 / scale
};

/// fp8_scale(most) of quantize.hpp. Computes the quotients as divisions do, without their branches:
/// neither is close to the least or the largest float, so the bits are the same.
__device__ inline Fp8Scale fp8_scale_of(float most) {
  constexpr float kLeast = 1.17549435e-38f;
#ifdef KILN_HOST_TARGET
  const float quotient = most / 448.0f, scale = quotient > kLeast ? quotient : kLeast;
  return {scale, 1.0f / scale};
#else
  constexpr float kInverse = 1.0f / 448.0f;
  const float near = most * kInverse;
  float scale = fmaf(fmaf(-448.0f, near, most), kInverse, near), inverse;
  const bool infinite = most > 3.4028234663852886e38f;
  scale = infinite ? most : fmaxf(scale, kLeast);
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale));
  return {scale, infinite ? 0.0f : fmaf(inverse, fmaf(-scale, inverse, 1.0f), inverse)};
#endif
}

/// fp8_factor(scale) of quantize.hpp: a NaN stays one.
__device__ inline float fp8_factor_of(float scale) {
  constexpr float kLeast = 1.17549435e-38f;
  return 1.0f / (scale < kLeast ? kLeast : scale);
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

}  // namespace kiln::templates
