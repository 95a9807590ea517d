// Arithmetic with a named rounding: _rn to nearest even, _rz towards zero, _ru up, _rd down. The
// CPU's rounding mode stays what it is: what was rounded away is computed, and decides.
#pragma once

#include "kiln_integer.h"

enum class __kiln_round { zero, up, down };

// --- float, by way of double ---------------------------------------------------------------------

// x + y rounded to odd in double. Rounding that once more, to a float, is exact in every mode.
__kiln_inline double __kiln_add_to_odd(double x, double y) {
#pragma clang fp contract(off) reassociate(off)
  const double sum = x + y;
  const double back = sum - x;
  const double lost = (x - (sum - back)) + (y - back);
  long long bits = __builtin_bit_cast(long long, sum);
  const bool inexact = lost != 0.0 && lost == lost && !(bits & 1);
  // Away from zero when what was lost has the sum's sign, else towards it; both give an odd digit.
  bits += inexact ? ((lost > 0.0) == (sum > 0.0) ? 1 : -1) : 0;
  return __builtin_bit_cast(double, bits);
}
__kiln_inline double __kiln_fma_to_odd(float x, float y, float z) {
#pragma clang fp contract(off)
  return __kiln_add_to_odd((double)x * (double)y, (double)z);  // the product is exact
}
// A zero that two numbers of different sign, or two different zeros, add up to.
__kiln_inline double __kiln_signed_zero(__kiln_round mode, double x, double y, double sum) {
  const bool both_positive = !__builtin_signbit(x) && !__builtin_signbit(y);
  return mode == __kiln_round::down && sum == 0.0 && !both_positive ? -0.0 : sum;
}

// `v` as a float. It is right for what `v` stands for if `v` is exact, rounded to odd, or on the
// same side as that of every float.
__kiln_inline float __kiln_to_float(__kiln_round mode, double v) {
  const float nearest = (float)v;
  const double back = (double)nearest;
  int bits = __builtin_bit_cast(int, nearest);
  const bool negative = __builtin_signbit(v);
  const bool too_high = back > v, too_low = back < v;
  const bool down = mode == __kiln_round::down   ? too_high
                    : mode == __kiln_round::zero ? too_high && !negative
                                                 : false;
  const bool up = mode == __kiln_round::up     ? too_low
                  : mode == __kiln_round::zero ? too_low && negative
                                               : false;
  bits += down ? (negative ? 1 : -1) : up ? (negative ? -1 : 1) : 0;
  return __builtin_bit_cast(float, bits);
}

#define __KILN_FLOAT(suffix, mode)                                                          \
  __kiln_inline float __fadd_##suffix(float x, float y) {                                   \
    return __kiln_to_float(                                                                 \
        mode, __kiln_signed_zero(mode, x, y, __kiln_add_to_odd((double)x, (double)y)));     \
  }                                                                                         \
  __kiln_inline float __fsub_##suffix(float x, float y) { return __fadd_##suffix(x, -y); }  \
  __kiln_inline float __fmul_##suffix(float x, float y) {                                   \
    return __kiln_to_float(mode, (double)x * (double)y);                                    \
  }                                                                                         \
  __kiln_inline float __fmaf_##suffix(float x, float y, float z) {                          \
    return __kiln_to_float(mode, __kiln_signed_zero(mode, (double)x * (double)y, (double)z, \
                                                    __kiln_fma_to_odd(x, y, z)));           \
  }                                                                                         \
  /* Quotients and roots of floats are never nearer to a float than double can tell. */     \
  __kiln_inline float __fdiv_##suffix(float x, float y) {                                   \
    return __kiln_to_float(mode, (double)x / (double)y);                                    \
  }                                                                                         \
  __kiln_inline float __frcp_##suffix(float x) { return __fdiv_##suffix(1.0f, x); }         \
  __kiln_inline float __fsqrt_##suffix(float x) {                                           \
    return __kiln_to_float(mode, __builtin_sqrt((double)x));                                \
  }
__KILN_FLOAT(rz, __kiln_round::zero)
__KILN_FLOAT(ru, __kiln_round::up)
__KILN_FLOAT(rd, __kiln_round::down)
#undef __KILN_FLOAT

// --- to nearest even: what the CPU does; never contracted ----------------------------------------
#define __KILN_EXACT(name, parameters, expression) \
  __kiln_inline auto name parameters { _Pragma("clang fp contract(off)") return expression; }
__KILN_EXACT(__fadd_rn, (float x, float y), x + y)
__KILN_EXACT(__fsub_rn, (float x, float y), x - y)
__KILN_EXACT(__fmul_rn, (float x, float y), x* y)
__KILN_EXACT(__fdiv_rn, (float x, float y), x / y)
__KILN_EXACT(__frcp_rn, (float x), 1.0f / x)
__KILN_EXACT(__fsqrt_rn, (float x), __builtin_sqrtf(x))
__KILN_EXACT(__frsqrt_rn, (float x), (float)(1.0 / __builtin_sqrt((double)x)))
__KILN_EXACT(__fmaf_rn, (float x, float y, float z), __builtin_fmaf(x, y, z))
__KILN_EXACT(__dadd_rn, (double x, double y), x + y)
__KILN_EXACT(__dsub_rn, (double x, double y), x - y)
__KILN_EXACT(__dmul_rn, (double x, double y), x* y)
__KILN_EXACT(__ddiv_rn, (double x, double y), x / y)
__KILN_EXACT(__drcp_rn, (double x), 1.0 / x)
__KILN_EXACT(__dsqrt_rn, (double x), __builtin_sqrt(x))
__KILN_EXACT(__fma_rn, (double x, double y, double z), __builtin_fma(x, y, z))
#undef __KILN_EXACT
