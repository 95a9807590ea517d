// __nv_fp8_e4m3 and __nv_fp8_e5m2: 8-bit floats, stored and converted. As CUDA's, they have no
// arithmetic of their own: a kernel computes in float.
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"

using __nv_fp8_storage_t = unsigned char;
using __nv_fp8x2_storage_t = unsigned short;
using __nv_fp8x4_storage_t = unsigned;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };

// To nearest even; a double comes rounded to odd, which keeps it from being rounded twice.
__kiln_inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t saturate,
                                                       __nv_fp8_interpretation_t kind) {
  const int digits = kind == __NV_E4M3 ? 3 : 2, bias = kind == __NV_E4M3 ? 7 : 15;
  const unsigned largest = kind == __NV_E4M3 ? 0x7eu : 0x7bu;
  const unsigned bits = __builtin_bit_cast(unsigned, v);
  const unsigned sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
  const unsigned aligned = (unsigned)(128 - bias + 23 - digits) << 23;
  const unsigned subnormal = __builtin_bit_cast(unsigned, __builtin_bit_cast(float, magnitude) +
                                                              __builtin_bit_cast(float, aligned)) -
                             aligned;
  const unsigned normal = (magnitude - ((unsigned)(127 - bias) << 23) + (1u << (22 - digits)) - 1 +
                           (magnitude >> (23 - digits) & 1u)) >>
                          (23 - digits);
  const unsigned rounded = magnitude < (unsigned)(128 - bias) << 23 ? subnormal : normal;
  const unsigned beyond = saturate == __NV_SATFINITE ? largest : largest + 1;
  const unsigned found = rounded > largest ? beyond : rounded;
  return (__nv_fp8_storage_t)(magnitude > 0x7f800000u ? 0x7fu : sign | found);
}
__kiln_inline __nv_fp8_storage_t __nv_cvt_double_to_fp8(double v, __nv_saturation_t saturate,
                                                        __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8(__kiln_to_odd(v), saturate, kind);
}
__kiln_inline __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw v, __nv_saturation_t saturate,
                                                         __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8((float)__half(v), saturate, kind);
}
__kiln_inline __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw v,
                                                             __nv_saturation_t saturate,
                                                             __nv_fp8_interpretation_t kind) {
  return __nv_cvt_float_to_fp8((float)__nv_bfloat16(v), saturate, kind);
}
__kiln_inline __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 v, __nv_saturation_t saturate,
                                                            __nv_fp8_interpretation_t kind) {
  return (__nv_fp8x2_storage_t)(__nv_cvt_float_to_fp8(v.x, saturate, kind) |
                                __nv_cvt_float_to_fp8(v.y, saturate, kind) << 8);
}
__kiln_inline float __kiln_fp8_to_float(__nv_fp8_storage_t v, __nv_fp8_interpretation_t kind) {
  const unsigned sign = (unsigned)(v & 0x80u) << 24, rest = v & 0x7fu;
  if (kind == __NV_E5M2) return (float)__half::__from_bits((unsigned)v << 8);
  const float magnitude = __builtin_bit_cast(float, rest << 20) * 0x1p120f;
  const unsigned bits = rest == 0x7fu ? 0x7fc00000u : __builtin_bit_cast(unsigned, magnitude);
  return __builtin_bit_cast(float, sign | bits);
}
__kiln_inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v,
                                                 __nv_fp8_interpretation_t kind) {
  return __half(__kiln_fp8_to_float(v, kind));
}

#define __KILN_FP8(T, kind)                                                                  \
  struct __attribute__((aligned(1))) T {                                                     \
    __nv_fp8_storage_t __x;                                                                  \
    T() = default;                                                                           \
    __attribute__((always_inline)) explicit T(float v)                                       \
        : __x(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, kind)) {}                             \
    __attribute__((always_inline)) explicit T(double v)                                      \
        : __x(__nv_cvt_double_to_fp8(v, __NV_SATFINITE, kind)) {}                            \
    __attribute__((always_inline)) explicit T(int v) : T((double)v) {}                       \
    __attribute__((always_inline)) explicit T(unsigned v) : T((double)v) {}                  \
    __attribute__((always_inline)) explicit T(short v) : T((float)v) {}                      \
    __attribute__((always_inline)) explicit T(unsigned short v) : T((float)v) {}             \
    __attribute__((always_inline)) explicit T(__half v) : T((float)v) {}                     \
    __attribute__((always_inline)) explicit T(__nv_bfloat16 v) : T((float)v) {}              \
    __attribute__((always_inline)) explicit operator float() const {                         \
      return __kiln_fp8_to_float(__x, kind);                                                 \
    }                                                                                        \
    __attribute__((always_inline)) explicit operator double() const { return (float)*this; } \
    __attribute__((always_inline)) explicit operator __half() const {                        \
      return __half((float)*this);                                                           \
    }                                                                                        \
    __attribute__((always_inline)) explicit operator __nv_bfloat16() const {                 \
      return __nv_bfloat16((float)*this);                                                    \
    }                                                                                        \
  };

__KILN_FP8(__nv_fp8_e4m3, __NV_E4M3)
__KILN_FP8(__nv_fp8_e5m2, __NV_E5M2)
#undef __KILN_FP8

// The first of several is in the lowest byte.
#define __KILN_FP8_VECTORS(T, T2, T4, kind)                                           \
  struct __attribute__((aligned(2))) T2 {                                             \
    __nv_fp8x2_storage_t __x;                                                         \
    T2() = default;                                                                   \
    __attribute__((always_inline)) explicit T2(float2 v)                              \
        : __x(__nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, kind)) {}                   \
    __attribute__((always_inline)) explicit operator float2() const {                 \
      return {__kiln_fp8_to_float((__nv_fp8_storage_t)__x, kind),                     \
              __kiln_fp8_to_float((__nv_fp8_storage_t)(__x >> 8), kind)};             \
    }                                                                                 \
  };                                                                                  \
  struct __attribute__((aligned(4))) T4 {                                             \
    __nv_fp8x4_storage_t __x;                                                         \
    T4() = default;                                                                   \
    __attribute__((always_inline)) explicit T4(float4 v)                              \
        : __x(T2(float2{v.x, v.y}).__x | (unsigned)T2(float2{v.z, v.w}).__x << 16) {} \
    __attribute__((always_inline)) explicit operator float4() const {                 \
      return {__kiln_fp8_to_float((__nv_fp8_storage_t)__x, kind),                     \
              __kiln_fp8_to_float((__nv_fp8_storage_t)(__x >> 8), kind),              \
              __kiln_fp8_to_float((__nv_fp8_storage_t)(__x >> 16), kind),             \
              __kiln_fp8_to_float((__nv_fp8_storage_t)(__x >> 24), kind)};            \
    }                                                                                 \
  };

__KILN_FP8_VECTORS(__nv_fp8_e4m3, __nv_fp8x2_e4m3, __nv_fp8x4_e4m3, __NV_E4M3)
__KILN_FP8_VECTORS(__nv_fp8_e5m2, __nv_fp8x2_e5m2, __nv_fp8x4_e5m2, __NV_E5M2)
#undef __KILN_FP8_VECTORS
