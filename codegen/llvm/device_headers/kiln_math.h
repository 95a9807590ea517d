// Math functions. Those that vectorise well are written out; the others are the C library's.
#pragma once

#include "kiln_integer.h"

// --- min, max, abs -------------------------------------------------------------------------------
#define __KILN_MINMAX(r, a, b)                                                  \
  __kiln_inline constexpr r min(a x, b y) { return (r)y < (r)x ? (r)y : (r)x; } \
  __kiln_inline constexpr r max(a x, b y) { return (r)x < (r)y ? (r)y : (r)x; }
__KILN_MINMAX(int, int, int)
__KILN_MINMAX(unsigned, unsigned, unsigned)
__KILN_MINMAX(unsigned, int, unsigned)
__KILN_MINMAX(unsigned, unsigned, int)
__KILN_MINMAX(long, long, long)
__KILN_MINMAX(unsigned long, unsigned long, unsigned long)
__KILN_MINMAX(long long, long long, long long)
__KILN_MINMAX(unsigned long long, unsigned long long, unsigned long long)
#undef __KILN_MINMAX
__kiln_inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
__kiln_inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
__kiln_inline double fmin(double a, double b) { return __builtin_fmin(a, b); }
__kiln_inline double fmax(double a, double b) { return __builtin_fmax(a, b); }
__kiln_inline float fmin(float a, float b) { return __builtin_fminf(a, b); }
__kiln_inline float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
__kiln_inline float min(float a, float b) { return __builtin_fminf(a, b); }
__kiln_inline float max(float a, float b) { return __builtin_fmaxf(a, b); }
__kiln_inline double min(double a, double b) { return __builtin_fmin(a, b); }
__kiln_inline double max(double a, double b) { return __builtin_fmax(a, b); }
__kiln_inline double min(float a, double b) { return __builtin_fmin(a, b); }
__kiln_inline double max(float a, double b) { return __builtin_fmax(a, b); }
__kiln_inline double min(double a, float b) { return __builtin_fmin(a, b); }
__kiln_inline double max(double a, float b) { return __builtin_fmax(a, b); }
__kiln_inline constexpr int abs(int v) { return v < 0 ? -v : v; }
__kiln_inline constexpr long abs(long v) { return v < 0 ? -v : v; }
__kiln_inline constexpr long long abs(long long v) { return v < 0 ? -v : v; }
__kiln_inline constexpr long long llabs(long long v) { return v < 0 ? -v : v; }
__kiln_inline float abs(float v) { return __builtin_fabsf(v); }
__kiln_inline double abs(double v) { return __builtin_fabs(v); }

// --- one, two and three arguments, in float, double and overloaded form
#define __KILN_FUNCTION1(name)                                            \
  __kiln_inline float name##f(float x) { return __builtin_##name##f(x); } \
  __kiln_inline double name(double x) { return __builtin_##name(x); }     \
  __kiln_inline float name(float x) { return name##f(x); }
#define __KILN_FUNCTION2(name)                                                        \
  __kiln_inline float name##f(float x, float y) { return __builtin_##name##f(x, y); } \
  __kiln_inline double name(double x, double y) { return __builtin_##name(x, y); }    \
  __kiln_inline float name(float x, float y) { return name##f(x, y); }
// The same, where the float form is written below.
#define __KILN_OWN_FUNCTION1(name)                                    \
  __kiln_inline double name(double x) { return __builtin_##name(x); } \
  __kiln_inline float name(float x) { return name##f(x); }

// clang-format off
__KILN_FUNCTION1(fabs) __KILN_FUNCTION1(sqrt) __KILN_FUNCTION1(floor) __KILN_FUNCTION1(ceil)
__KILN_FUNCTION1(trunc) __KILN_FUNCTION1(round) __KILN_FUNCTION1(rint) __KILN_FUNCTION1(nearbyint)
__KILN_FUNCTION1(expm1) __KILN_FUNCTION1(log1p) __KILN_FUNCTION1(cbrt) __KILN_FUNCTION1(sin)
__KILN_FUNCTION1(cos) __KILN_FUNCTION1(tan) __KILN_FUNCTION1(asin) __KILN_FUNCTION1(acos)
__KILN_FUNCTION1(atan) __KILN_FUNCTION1(sinh) __KILN_FUNCTION1(cosh) __KILN_FUNCTION1(asinh)
__KILN_FUNCTION1(acosh) __KILN_FUNCTION1(atanh) __KILN_FUNCTION1(erf) __KILN_FUNCTION1(erfc)
__KILN_FUNCTION1(tgamma) __KILN_FUNCTION1(lgamma) __KILN_FUNCTION1(logb) __KILN_FUNCTION2(pow)
__KILN_FUNCTION2(fmod) __KILN_FUNCTION2(atan2) __KILN_FUNCTION2(hypot) __KILN_FUNCTION2(copysign)
__KILN_FUNCTION2(remainder) __KILN_FUNCTION2(fdim) __KILN_FUNCTION2(nextafter)
    // clang-format on

    __kiln_inline float fmaf(float x, float y, float z) {
  return __builtin_fmaf(x, y, z);
}
__kiln_inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
__kiln_inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
__kiln_inline float ldexpf(float x, int e) { return __builtin_ldexpf(x, e); }
__kiln_inline double ldexp(double x, int e) { return __builtin_ldexp(x, e); }
__kiln_inline float frexpf(float x, int* e) { return __builtin_frexpf(x, e); }
__kiln_inline double frexp(double x, int* e) { return __builtin_frexp(x, e); }
__kiln_inline float modff(float x, float* i) { return __builtin_modff(x, i); }
__kiln_inline double modf(double x, double* i) { return __builtin_modf(x, i); }
__kiln_inline long lrintf(float x) { return __builtin_lrintf(x); }
__kiln_inline long lround(double x) { return __builtin_lround(x); }
__kiln_inline long lround(float x) { return __builtin_lroundf(x); }
__kiln_inline long lroundf(float x) { return __builtin_lroundf(x); }
__kiln_inline void sincosf(float x, float* s, float* c) {
  *s = sinf(x);
  *c = cosf(x);
}
__kiln_inline void sincos(double x, double* s, double* c) {
  *s = sin(x);
  *c = cos(x);
}
__kiln_inline bool isnan(float x) { return __builtin_isnan(x); }
__kiln_inline bool isnan(double x) { return __builtin_isnan(x); }
__kiln_inline bool isinf(float x) { return __builtin_isinf(x); }
__kiln_inline bool isinf(double x) { return __builtin_isinf(x); }
__kiln_inline bool isfinite(float x) { return __builtin_isfinite(x); }
__kiln_inline bool isfinite(double x) { return __builtin_isfinite(x); }
__kiln_inline bool signbit(float x) { return __builtin_signbit(x); }
__kiln_inline bool signbit(double x) { return __builtin_signbit(x); }

// 2^n * v without a table or a branch, for |n| <= 252.
__kiln_inline float __kiln_scale(float v, int n) {
  const int half = n >> 1;
  return v * __int_as_float((half + 127) << 23) * __int_as_float((n - half + 127) << 23);
}

// exp: x = n ln 2 + r with |r| <= ln 2 / 2, then a polynomial in r.
__kiln_inline float expf(float x) {
  const float clamped = __builtin_fminf(__builtin_fmaxf(x, -104.0f), 89.0f);
  const float n = __builtin_rintf(clamped * 1.44269504f);
  float r = __builtin_fmaf(n, -0.693145752f, clamped);
  r = __builtin_fmaf(n, -1.42860677e-6f, r);
  float p = 1.38888892e-3f;
  p = __builtin_fmaf(p, r, 8.33333377e-3f);
  p = __builtin_fmaf(p, r, 4.16666679e-2f);
  p = __builtin_fmaf(p, r, 1.66666672e-1f);
  p = __builtin_fmaf(p, r, 0.5f);
  p = __builtin_fmaf(p * r, r, r);
  const float result = __kiln_scale(p + 1.0f, (int)n);
  return x != x ? x : result;
}
__kiln_inline float exp2f(float x) {
  const float clamped = __builtin_fminf(__builtin_fmaxf(x, -151.0f), 129.0f);
  const float n = __builtin_rintf(clamped);
  const float r = clamped - n;
  float p = 1.54035304e-4f;
  p = __builtin_fmaf(p, r, 1.33335581e-3f);
  p = __builtin_fmaf(p, r, 9.61812911e-3f);
  p = __builtin_fmaf(p, r, 5.55041087e-2f);
  p = __builtin_fmaf(p, r, 2.40226507e-1f);
  p = __builtin_fmaf(p, r, 6.93147181e-1f);
  const float result = __kiln_scale(__builtin_fmaf(p, r, 1.0f), (int)n);
  return x != x ? x : result;
}
__kiln_inline float exp10f(float x) { return __builtin_exp10f(x); }
__kiln_inline float logf(float x) { return __builtin_logf(x); }
__kiln_inline float log2f(float x) { return __builtin_log2f(x); }
__kiln_inline float log10f(float x) { return __builtin_log10f(x); }
__kiln_inline float tanhf(float x) {
  // Odd, so computed on |x|: expm1-free quotient for large arguments, a series for small ones.
  const float a = __builtin_fabsf(x);
  const float e = expf(-2.0f * a);
  const float large = (1.0f - e) / (1.0f + e);
  const float s = x * x;
  float p = -5.70498872745e-3f;
  p = __builtin_fmaf(p, s, 2.06390887954e-2f);
  p = __builtin_fmaf(p, s, -5.37397155531e-2f);
  p = __builtin_fmaf(p, s, 1.33314422036e-1f);
  p = __builtin_fmaf(p, s, -3.33332819422e-1f);
  const float small = __builtin_fmaf(p * s, a, a);
  return __builtin_copysignf(a < 0.625f ? small : large, x);
}
// clang-format off
__KILN_OWN_FUNCTION1(exp) __KILN_OWN_FUNCTION1(exp2) __KILN_OWN_FUNCTION1(log)
__KILN_OWN_FUNCTION1(log2) __KILN_OWN_FUNCTION1(log10) __KILN_OWN_FUNCTION1(tanh)
#undef __KILN_FUNCTION1
#undef __KILN_FUNCTION2
#undef __KILN_OWN_FUNCTION1
    // clang-format on

    __kiln_inline float rsqrtf(float x) {
  return 1.0f / __builtin_sqrtf(x);
}
__kiln_inline double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }
__kiln_inline float rsqrt(float x) { return rsqrtf(x); }
__kiln_inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
__kiln_inline float normcdff(float x) { return 0.5f * erfcf(x * -0.707106781f); }
__kiln_inline float __saturatef(float x) { return x > 0.0f ? __builtin_fminf(x, 1.0f) : 0.0f; }

// --- the fast forms: the accurate ones are fast enough
__kiln_inline float __expf(float x) { return expf(x); }
__kiln_inline float __exp10f(float x) { return exp10f(x); }
__kiln_inline float __logf(float x) { return logf(x); }
__kiln_inline float __log2f(float x) { return log2f(x); }
__kiln_inline float __log10f(float x) { return log10f(x); }
__kiln_inline float __sinf(float x) { return sinf(x); }
__kiln_inline float __cosf(float x) { return cosf(x); }
__kiln_inline float __tanf(float x) { return tanf(x); }
__kiln_inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }
__kiln_inline float __powf(float x, float y) { return powf(x, y); }
__kiln_inline float __fdividef(float x, float y) { return x / y; }
__kiln_inline float fdividef(float x, float y) { return x / y; }

#ifndef INFINITY
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define HUGE_VAL __builtin_inf()
#endif
#define M_PI 3.14159265358979323846
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
#define M_LOG2E 1.44269504088896340736
#define M_LN2 0.69314718055994530942
