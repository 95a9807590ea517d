// What __half and __nv_bfloat16 have in common, written once over the type, its pair and the
// function that rounds a float to it. Results are rounded once, to nearest even: float has more
// than twice the digits of either, so rounding a float result again changes nothing.
#pragma once

#include "cuda_runtime.h"

// A double rounded to odd in float; the small floats then round it correctly.
__kiln_inline float __kiln_to_odd(double v) {
  const float f = (float)v;
  int bits = __builtin_bit_cast(int, f);
  const double back = (double)f;
  const bool inexact = back != v && v == v && !__builtin_isinf(back) && !(bits & 1);
  bits += inexact ? ((__builtin_fabs(v) > __builtin_fabs(back)) ? 1 : -1) : 0;
  return __builtin_bit_cast(float, bits);
}

#define __KILN_SMALL_FLOAT(T, T2)                                                       \
  __kiln_inline T operator+(T a, T b) { return T((float)a + (float)b); }                \
  __kiln_inline T operator-(T a, T b) { return T((float)a - (float)b); }                \
  __kiln_inline T operator*(T a, T b) { return T((float)a * (float)b); }                \
  __kiln_inline T operator/(T a, T b) { return T((float)a / (float)b); }                \
  __kiln_inline T operator+(T a) { return a; }                                          \
  __kiln_inline T operator-(T a) { return T::__from_bits(a.__x ^ 0x8000u); }            \
  __kiln_inline T& operator+=(T& a, T b) { return a = a + b; }                          \
  __kiln_inline T& operator-=(T& a, T b) { return a = a - b; }                          \
  __kiln_inline T& operator*=(T& a, T b) { return a = a * b; }                          \
  __kiln_inline T& operator/=(T& a, T b) { return a = a / b; }                          \
  __kiln_inline T& operator++(T& a) { return a = a + T(1.0f); }                         \
  __kiln_inline T& operator--(T& a) { return a = a - T(1.0f); }                         \
  __kiln_inline bool operator==(T a, T b) { return (float)a == (float)b; }              \
  __kiln_inline bool operator!=(T a, T b) { return (float)a != (float)b; }              \
  __kiln_inline bool operator<(T a, T b) { return (float)a < (float)b; }                \
  __kiln_inline bool operator<=(T a, T b) { return (float)a <= (float)b; }              \
  __kiln_inline bool operator>(T a, T b) { return (float)a > (float)b; }                \
  __kiln_inline bool operator>=(T a, T b) { return (float)a >= (float)b; }              \
  __kiln_inline T __hadd(T a, T b) { return a + b; }                                    \
  __kiln_inline T __hsub(T a, T b) { return a - b; }                                    \
  __kiln_inline T __hmul(T a, T b) { return a * b; }                                    \
  __kiln_inline T __hdiv(T a, T b) { return a / b; }                                    \
  __kiln_inline T __hadd_rn(T a, T b) { return a + b; }                                 \
  __kiln_inline T __hsub_rn(T a, T b) { return a - b; }                                 \
  __kiln_inline T __hmul_rn(T a, T b) { return a * b; }                                 \
  __kiln_inline T __hadd_sat(T a, T b) { return T(__saturatef((float)a + (float)b)); }  \
  __kiln_inline T __hmul_sat(T a, T b) { return T(__saturatef((float)a * (float)b)); }  \
  __kiln_inline T __hfma(T a, T b, T c) {                                               \
    return T(__kiln_to_odd(__kiln_fma_to_odd((float)a, (float)b, (float)c)));           \
  }                                                                                     \
  __kiln_inline T __hfma_relu(T a, T b, T c) {                                          \
    const T r = __hfma(a, b, c);                                                        \
    return (float)r < 0.0f ? T(0.0f) : r;                                               \
  }                                                                                     \
  __kiln_inline T __hneg(T a) { return -a; }                                            \
  __kiln_inline T __habs(T a) { return T::__from_bits(a.__x & 0x7fffu); }               \
  __kiln_inline bool __heq(T a, T b) { return a == b; }                                 \
  __kiln_inline bool __hne(T a, T b) { return a < b || a > b; }                         \
  __kiln_inline bool __hlt(T a, T b) { return a < b; }                                  \
  __kiln_inline bool __hle(T a, T b) { return a <= b; }                                 \
  __kiln_inline bool __hgt(T a, T b) { return a > b; }                                  \
  __kiln_inline bool __hge(T a, T b) { return a >= b; }                                 \
  __kiln_inline bool __hequ(T a, T b) { return !(a < b) && !(a > b); }                  \
  __kiln_inline bool __hneu(T a, T b) { return a != b; }                                \
  __kiln_inline bool __hisnan(T a) { return (float)a != (float)a; }                     \
  __kiln_inline int __hisinf(T a) {                                                     \
    return __builtin_isinf((float)a) ? ((float)a < 0 ? -1 : 1) : 0;                     \
  }                                                                                     \
  __kiln_inline T __hmax(T a, T b) { return T(__builtin_fmaxf((float)a, (float)b)); }   \
  __kiln_inline T __hmin(T a, T b) { return T(__builtin_fminf((float)a, (float)b)); }   \
  __kiln_inline T __hmax_nan(T a, T b) {                                                \
    return __hisnan(a) || __hisnan(b) ? T(__int_as_float(0x7fffffff)) : __hmax(a, b);   \
  }                                                                                     \
  __kiln_inline T __hmin_nan(T a, T b) {                                                \
    return __hisnan(a) || __hisnan(b) ? T(__int_as_float(0x7fffffff)) : __hmin(a, b);   \
  }                                                                                     \
  __kiln_inline T hsqrt(T a) { return T(__builtin_sqrtf((float)a)); }                   \
  __kiln_inline T hrsqrt(T a) { return T(rsqrtf((float)a)); }                           \
  __kiln_inline T hrcp(T a) { return T(1.0f / (float)a); }                              \
  __kiln_inline T hexp(T a) { return T(expf((float)a)); }                               \
  __kiln_inline T hexp2(T a) { return T(exp2f((float)a)); }                             \
  __kiln_inline T hlog(T a) { return T(logf((float)a)); }                               \
  __kiln_inline T hlog2(T a) { return T(log2f((float)a)); }                             \
  __kiln_inline T hsin(T a) { return T(sinf((float)a)); }                               \
  __kiln_inline T hcos(T a) { return T(cosf((float)a)); }                               \
  __kiln_inline T htanh(T a) { return T(tanhf((float)a)); }                             \
  __kiln_inline T hfloor(T a) { return T(__builtin_floorf((float)a)); }                 \
  __kiln_inline T hceil(T a) { return T(__builtin_ceilf((float)a)); }                   \
  __kiln_inline T htrunc(T a) { return T(__builtin_truncf((float)a)); }                 \
  __kiln_inline T hrint(T a) { return T(__builtin_rintf((float)a)); }                   \
  __kiln_inline T2 operator+(T2 a, T2 b) { return {a.x + b.x, a.y + b.y}; }             \
  __kiln_inline T2 operator-(T2 a, T2 b) { return {a.x - b.x, a.y - b.y}; }             \
  __kiln_inline T2 operator*(T2 a, T2 b) { return {a.x * b.x, a.y * b.y}; }             \
  __kiln_inline T2 operator/(T2 a, T2 b) { return {a.x / b.x, a.y / b.y}; }             \
  __kiln_inline T2 operator-(T2 a) { return {-a.x, -a.y}; }                             \
  __kiln_inline T2& operator+=(T2& a, T2 b) { return a = a + b; }                       \
  __kiln_inline T2& operator-=(T2& a, T2 b) { return a = a - b; }                       \
  __kiln_inline T2& operator*=(T2& a, T2 b) { return a = a * b; }                       \
  __kiln_inline bool operator==(T2 a, T2 b) { return a.x == b.x && a.y == b.y; }        \
  __kiln_inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                \
  __kiln_inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                \
  __kiln_inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                \
  __kiln_inline T2 __h2div(T2 a, T2 b) { return a / b; }                                \
  __kiln_inline T2 __hfma2(T2 a, T2 b, T2 c) {                                          \
    return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                              \
  }                                                                                     \
  __kiln_inline T2 __hneg2(T2 a) { return -a; }                                         \
  __kiln_inline T2 __habs2(T2 a) { return {__habs(a.x), __habs(a.y)}; }                 \
  __kiln_inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; } \
  __kiln_inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; } \
  __kiln_inline T2 h2exp(T2 a) { return {hexp(a.x), hexp(a.y)}; }                       \
  __kiln_inline T2 h2sqrt(T2 a) { return {hsqrt(a.x), hsqrt(a.y)}; }                    \
  __kiln_inline T2 h2rsqrt(T2 a) { return {hrsqrt(a.x), hrsqrt(a.y)}; }                 \
  __kiln_inline float __low2float(T2 a) { return (float)a.x; }                          \
  __kiln_inline float __high2float(T2 a) { return (float)a.y; }                         \
  __kiln_inline T atomicAdd(T* address, T value) {                                      \
    return __kiln_atomic_update(address, [=](T old) { return old + value; });           \
  }                                                                                     \
  __kiln_inline T2 atomicAdd(T2* address, T2 value) {                                   \
    return __kiln_atomic_update(address, [=](T2 old) { return old + value; });          \
  }

// Conversions from and to integers and double, and the members every small float has.
#define __KILN_SMALL_FLOAT_MEMBERS(T, to_float)                                           \
  unsigned short __x;                                                                     \
  T() = default;                                                                          \
  __attribute__((always_inline)) T(double v) : T(__kiln_to_odd(v)) {}                     \
  __attribute__((always_inline)) T(int v) : T((double)v) {}                               \
  __attribute__((always_inline)) T(unsigned v) : T((double)v) {}                          \
  __attribute__((always_inline)) T(short v) : T((float)v) {}                              \
  __attribute__((always_inline)) T(unsigned short v) : T((float)v) {}                     \
  __attribute__((always_inline)) T(long long v) : T(__kiln_integer_to_odd(v)) {}          \
  __attribute__((always_inline)) T(unsigned long long v) : T(__kiln_integer_to_odd(v)) {} \
  __attribute__((always_inline)) static constexpr T __from_bits(unsigned bits) {          \
    return __builtin_bit_cast(T, (unsigned short)bits);                                   \
  }                                                                                       \
  __attribute__((always_inline)) operator float() const { return to_float(__x); }
