// __half: IEEE binary16.
#pragma once

#include "kiln_small_float.h"

__kiln_inline unsigned short __kiln_float_to_half(float v) {
#ifdef __F16C__
  const unsigned short rounded = __builtin_bit_cast(unsigned short, (_Float16)v);
  return v != v ? 0x7fffu : rounded;
#else
  const unsigned bits = __builtin_bit_cast(unsigned, v);
  const unsigned sign = (bits >> 16) & 0x8000u;
  const unsigned magnitude = bits & 0x7fffffffu;
  // Below the normal range the float adder rounds: 0.5 has its last digit where the result's is.
  const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
  const unsigned subnormal = __builtin_bit_cast(unsigned, shifted) - 0x3f000000u;
  const unsigned normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  unsigned result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;
  return (unsigned short)(magnitude > 0x7f800000u ? 0x7fffu : (sign | result));
#endif
}
__kiln_inline float __kiln_half_to_float(unsigned short bits) {
#ifdef __F16C__
  return (float)__builtin_bit_cast(_Float16, bits);
#else
  // The exponent is moved by a multiplication, which also normalises subnormal numbers.
  const unsigned magnitude = (unsigned)(bits & 0x7fffu) << 13;
  const float scaled = __builtin_bit_cast(float, magnitude) * 0x1p112f;
  unsigned result = __builtin_bit_cast(unsigned, scaled);
  result = (bits & 0x7c00u) == 0x7c00u ? magnitude | 0x7f800000u : result;
  return __builtin_bit_cast(float, result | ((unsigned)(bits & 0x8000u) << 16));
#endif
}

struct __half_raw {
  unsigned short x;
};
struct __attribute__((aligned(2))) __half {
  __KILN_SMALL_FLOAT_MEMBERS(__half, __kiln_half_to_float)
  __attribute__((always_inline)) __half(float v) : __x(__kiln_float_to_half(v)) {}
  __attribute__((always_inline)) __half(__half_raw raw) : __x(raw.x) {}
  __attribute__((always_inline)) operator __half_raw() const { return {__x}; }
};
struct __attribute__((aligned(4))) __half2 {
  __half x, y;
};
using half = __half;
using half2 = __half2;

__KILN_SMALL_FLOAT(__half, __half2)

__kiln_inline __half __float2half(float v) { return __half(v); }
__kiln_inline __half __float2half_rn(float v) { return __half(v); }
__kiln_inline __half __float2half_rz(float v) {
  const __half nearest(v);
  const bool larger = __builtin_fabsf((float)nearest) > __builtin_fabsf(v);
  return __half::__from_bits(nearest.__x - (larger ? 1u : 0u));
}
__kiln_inline __half __double2half(double v) { return __half(v); }
__kiln_inline __half __int2half_rn(int v) { return __half(v); }
__kiln_inline __half __uint2half_rn(unsigned v) { return __half(v); }
__kiln_inline float __half2float(__half v) { return (float)v; }
__kiln_inline int __half2int_rn(__half v) { return __float2int_rn((float)v); }
__kiln_inline int __half2int_rz(__half v) { return __float2int_rz((float)v); }
__kiln_inline unsigned short __half_as_ushort(__half v) { return v.__x; }
__kiln_inline short __half_as_short(__half v) { return (short)v.__x; }
__kiln_inline __half __ushort_as_half(unsigned short v) { return __half::__from_bits(v); }
__kiln_inline __half __short_as_half(short v) { return __half::__from_bits((unsigned short)v); }
__kiln_inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
__kiln_inline __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }
__kiln_inline __half2 __float2half2_rn(float v) { return __floats2half2_rn(v, v); }
__kiln_inline float2 __half22float2(__half2 v) { return {(float)v.x, (float)v.y}; }
__kiln_inline __half2 __half2half2(__half v) { return {v, v}; }
__kiln_inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
__kiln_inline __half2 make_half2(__half x, __half y) { return {x, y}; }
__kiln_inline __half __low2half(__half2 v) { return v.x; }
__kiln_inline __half __high2half(__half2 v) { return v.y; }
__kiln_inline __half2 __low2half2(__half2 v) { return {v.x, v.x}; }
__kiln_inline __half2 __high2half2(__half2 v) { return {v.y, v.y}; }
__kiln_inline __half2 __lowhigh2highlow(__half2 v) { return {v.y, v.x}; }
