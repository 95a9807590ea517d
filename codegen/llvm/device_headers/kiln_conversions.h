// Conversions between floats and integers with a named rounding. Casts saturate as on the GPU.
#pragma once

#include "kiln_rounding_double.h"

#define __KILN_TO_INTEGER(source, F, name, I, suffix)                                    \
  __kiln_inline I __##source##2##name##_rn(F v) { return (I)__builtin_rint##suffix(v); } \
  __kiln_inline I __##source##2##name##_rz(F v) { return (I)v; }                         \
  __kiln_inline I __##source##2##name##_ru(F v) { return (I)__builtin_ceil##suffix(v); } \
  __kiln_inline I __##source##2##name##_rd(F v) { return (I)__builtin_floor##suffix(v); }
__KILN_TO_INTEGER(float, float, int, int, f)
__KILN_TO_INTEGER(float, float, uint, unsigned, f)
__KILN_TO_INTEGER(float, float, ll, long long, f)
__KILN_TO_INTEGER(float, float, ull, unsigned long long, f)
__KILN_TO_INTEGER(double, double, int, int, )
__KILN_TO_INTEGER(double, double, uint, unsigned, )
__KILN_TO_INTEGER(double, double, ll, long long, )
__KILN_TO_INTEGER(double, double, ull, unsigned long long, )
#undef __KILN_TO_INTEGER

__kiln_inline double __kiln_integer_to_double(__kiln_round mode, bool negative,
                                              unsigned long long v) {
  return v ? __kiln_to_double(mode, negative, negative ? 0ull - v : v, 0, false) : 0.0;
}
// A 64-bit integer rounded to odd in double.
template <class I>
__kiln_inline double __kiln_integer_to_odd(I v) {
  const bool negative = v < 0;
  unsigned long long magnitude = negative ? 0ull - (unsigned long long)v : (unsigned long long)v;
  if (magnitude >> 53)
    magnitude = (magnitude & ~0xfffull) | ((magnitude & 0xfffull) ? 0x1000ull : 0ull);
  return negative ? -(double)magnitude : (double)magnitude;
}
#define __KILN_FROM_INTEGER(suffix, mode)                                                      \
  __kiln_inline float __double2float_##suffix(double v) { return __kiln_to_float(mode, v); }   \
  __kiln_inline float __int2float_##suffix(int v) { return __kiln_to_float(mode, (double)v); } \
  __kiln_inline float __uint2float_##suffix(unsigned v) {                                      \
    return __kiln_to_float(mode, (double)v);                                                   \
  }                                                                                            \
  __kiln_inline float __ll2float_##suffix(long long v) {                                       \
    return __kiln_to_float(mode, __kiln_integer_to_odd(v));                                    \
  }                                                                                            \
  __kiln_inline float __ull2float_##suffix(unsigned long long v) {                             \
    return __kiln_to_float(mode, __kiln_integer_to_odd(v));                                    \
  }                                                                                            \
  __kiln_inline double __ll2double_##suffix(long long v) {                                     \
    return __kiln_integer_to_double(mode, v < 0, (unsigned long long)v);                       \
  }                                                                                            \
  __kiln_inline double __ull2double_##suffix(unsigned long long v) {                           \
    return __kiln_integer_to_double(mode, false, v);                                           \
  }
__KILN_FROM_INTEGER(rz, __kiln_round::zero)
__KILN_FROM_INTEGER(ru, __kiln_round::up)
__KILN_FROM_INTEGER(rd, __kiln_round::down)
#undef __KILN_FROM_INTEGER
__kiln_inline float __double2float_rn(double v) { return (float)v; }
__kiln_inline float __int2float_rn(int v) { return (float)v; }
__kiln_inline float __uint2float_rn(unsigned v) { return (float)v; }
__kiln_inline float __ll2float_rn(long long v) { return (float)v; }
__kiln_inline float __ull2float_rn(unsigned long long v) { return (float)v; }
__kiln_inline double __int2double_rn(int v) { return (double)v; }
__kiln_inline double __uint2double_rn(unsigned v) { return (double)v; }
__kiln_inline double __ll2double_rn(long long v) { return (double)v; }
__kiln_inline double __ull2double_rn(unsigned long long v) { return (double)v; }
