// __nv_bfloat16: the upper half of a float.
#pragma once

#include "kiln_small_float.h"

__kiln_inline unsigned short __kiln_float_to_bf16(float v) {
  const unsigned bits = __builtin_bit_cast(unsigned, v);
  const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return (unsigned short)(v != v ? 0x7fffu : rounded);
}
__kiln_inline float __kiln_bf16_to_float(unsigned short bits) {
  return __builtin_bit_cast(float, (unsigned)bits << 16);
}

struct __nv_bfloat16_raw {
  unsigned short x;
};
struct __attribute__((aligned(2))) __nv_bfloat16 {
  __KILN_SMALL_FLOAT_MEMBERS(__nv_bfloat16, __kiln_bf16_to_float)
  __attribute__((always_inline)) __nv_bfloat16(float v) : __x(__kiln_float_to_bf16(v)) {}
  __attribute__((always_inline)) __nv_bfloat16(__nv_bfloat16_raw raw) : __x(raw.x) {}
  __attribute__((always_inline)) operator __nv_bfloat16_raw() const { return {__x}; }
};
struct __attribute__((aligned(4))) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

__KILN_SMALL_FLOAT(__nv_bfloat16, __nv_bfloat162)

__kiln_inline __nv_bfloat16 __float2bfloat16(float v) { return __nv_bfloat16(v); }
__kiln_inline __nv_bfloat16 __float2bfloat16_rn(float v) { return __nv_bfloat16(v); }
__kiln_inline __nv_bfloat16 __float2bfloat16_rz(float v) {
  return __nv_bfloat16::__from_bits(v != v ? 0x7fffu : __float_as_uint(v) >> 16);
}
__kiln_inline __nv_bfloat16 __double2bfloat16(double v) { return __nv_bfloat16(v); }
__kiln_inline __nv_bfloat16 __int2bfloat16_rn(int v) { return __nv_bfloat16(v); }
__kiln_inline __nv_bfloat16 __uint2bfloat16_rn(unsigned v) { return __nv_bfloat16(v); }
__kiln_inline float __bfloat162float(__nv_bfloat16 v) { return (float)v; }
__kiln_inline int __bfloat162int_rn(__nv_bfloat16 v) { return __float2int_rn((float)v); }
__kiln_inline int __bfloat162int_rz(__nv_bfloat16 v) { return __float2int_rz((float)v); }
__kiln_inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.__x; }
__kiln_inline short __bfloat16_as_short(__nv_bfloat16 v) { return (short)v.__x; }
__kiln_inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) {
  return __nv_bfloat16::__from_bits(v);
}
__kiln_inline __nv_bfloat16 __short_as_bfloat16(short v) {
  return __nv_bfloat16::__from_bits((unsigned short)v);
}
__kiln_inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__nv_bfloat16(x), __nv_bfloat16(y)};
}
__kiln_inline __nv_bfloat162 __float22bfloat162_rn(float2 v) {
  return __floats2bfloat162_rn(v.x, v.y);
}
__kiln_inline __nv_bfloat162 __float2bfloat162_rn(float v) { return __floats2bfloat162_rn(v, v); }
__kiln_inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {(float)v.x, (float)v.y}; }
__kiln_inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 v) { return {v, v}; }
__kiln_inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
__kiln_inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
__kiln_inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
__kiln_inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
__kiln_inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) { return {v.x, v.x}; }
__kiln_inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) { return {v.y, v.y}; }
