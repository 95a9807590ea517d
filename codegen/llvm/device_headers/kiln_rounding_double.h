// Directed rounding of double, in integers.
#pragma once

#include "kiln_rounding.h"

typedef unsigned __int128 __kiln_wide;

// A finite number: (-1)^negative * digits * 2^exponent; `digits` has 53 bits unless it is zero.
struct __kiln_number {
  bool negative;
  int exponent;
  unsigned long long digits;
};
__kiln_inline __kiln_number __kiln_taken_apart(double v) {
  const unsigned long long bits = __builtin_bit_cast(unsigned long long, v);
  const int exponent = (int)(bits >> 52 & 0x7ff);
  unsigned long long digits = bits & 0xfffffffffffffull;
  if (exponent) return {bits >> 63 != 0, exponent - 1075, digits | 1ull << 52};
  const int shift = digits ? __builtin_clzll(digits) - 11 : 0;
  return {bits >> 63 != 0, -1074 - shift, digits << shift};
}
__kiln_inline double __kiln_put_together(unsigned long long digits, int exponent) {
  return __builtin_bit_cast(
      double, (unsigned long long)(exponent + 1075) << 52 | (digits & 0xfffffffffffffull));
}

// (digits + a little if `more`) * 2^exponent as a double. With `more`, `digits` has 54 bits or
// more.
__kiln_inline double __kiln_to_double(__kiln_round mode, bool negative, __kiln_wide digits,
                                      int exponent, bool more) {
  if (!digits) return negative ? -0.0 : 0.0;
  const unsigned long long high = (unsigned long long)(digits >> 64);
  const int width =
      high ? 128 - __builtin_clzll(high) : 64 - __builtin_clzll((unsigned long long)digits);
  int drop = width - 53;
  if (exponent + drop < -1074) drop = -1074 - exponent;  // subnormal
  unsigned long long kept;
  bool inexact = more;
  if (drop <= 0) {
    kept = (unsigned long long)digits << -drop;
  } else if (drop >= 128) {
    kept = 0;
    inexact = true;
  } else {
    kept = (unsigned long long)(digits >> drop);
    inexact |= (digits & (((__kiln_wide)1 << drop) - 1)) != 0;
  }
  const bool away = mode == __kiln_round::up     ? !negative
                    : mode == __kiln_round::down ? negative
                                                 : false;
  if (inexact && away) ++kept;
  // An implicit top bit counts as one of the exponent, and a carry moves up into it.
  const int biased = exponent + drop + 1074;
  const unsigned long long infinity = 0x7ffull << 52;
  unsigned long long bits = biased >= 0x7ff ? infinity : ((unsigned long long)biased << 52) + kept;
  if (bits >= infinity) bits = away ? infinity : infinity - 1;
  return __builtin_bit_cast(double, bits | (negative ? 1ull << 63 : 0ull));
}

// The sum of two numbers of up to 106 digits.
__kiln_inline double __kiln_sum(__kiln_round mode, bool negative_a, __kiln_wide a, int exponent_a,
                                bool negative_b, __kiln_wide b, int exponent_b) {
  // Top bits at 125: a carry fits, and what is shifted out is more than 53 digits below the sum.
  const auto to_the_top = [](__kiln_wide& digits, int& exponent) {
    const unsigned long long high = (unsigned long long)(digits >> 64);
    const int shift =
        (high ? __builtin_clzll(high) : 64 + __builtin_clzll((unsigned long long)digits)) - 2;
    digits <<= shift;
    exponent -= shift;
  };
  to_the_top(a, exponent_a);
  to_the_top(b, exponent_b);
  if (exponent_a < exponent_b || (exponent_a == exponent_b && a < b)) {
    const __kiln_wide digits = a;
    const int exponent = exponent_a;
    const bool negative = negative_a;
    a = b, exponent_a = exponent_b, negative_a = negative_b;
    b = digits, exponent_b = exponent, negative_b = negative;
  }
  const int apart = exponent_a - exponent_b;
  bool more = apart > 0 && (apart >= 128 || (b & (((__kiln_wide)1 << apart) - 1)) != 0);
  b = apart >= 128 ? 0 : b >> apart;
  if (negative_a == negative_b) return __kiln_to_double(mode, negative_a, a + b, exponent_a, more);
  const __kiln_wide digits = a - b - (more ? 1 : 0);
  if (!digits) return mode == __kiln_round::down ? -0.0 : 0.0;
  return __kiln_to_double(mode, negative_a, digits, exponent_a, more);
}

// `nearest` * 2^exponent, and `lost` of the sign of what is missing to the exact result.
__kiln_inline double __kiln_corrected(__kiln_round mode, bool negative, double nearest, double lost,
                                      int exponent) {
  const __kiln_number number = __kiln_taken_apart(nearest);
  const unsigned long long digits = (number.digits << 2) - (lost < 0.0 ? 1u : 0u);
  return __kiln_to_double(mode, negative, digits, number.exponent + exponent - 2, lost != 0.0);
}

__kiln_inline bool __kiln_is_ordinary(double v) { return __builtin_isfinite(v) && v != 0.0; }

__kiln_inline double __kiln_add(__kiln_round mode, double x, double y) {
  if (!__kiln_is_ordinary(x) || !__kiln_is_ordinary(y))
    return __kiln_signed_zero(mode, x, y, x + y);
  const __kiln_number a = __kiln_taken_apart(x), b = __kiln_taken_apart(y);
  return __kiln_sum(mode, a.negative, a.digits, a.exponent, b.negative, b.digits, b.exponent);
}
__kiln_inline double __kiln_multiply(__kiln_round mode, double x, double y) {
  if (!__kiln_is_ordinary(x) || !__kiln_is_ordinary(y)) return x * y;
  const __kiln_number a = __kiln_taken_apart(x), b = __kiln_taken_apart(y);
  return __kiln_to_double(mode, a.negative != b.negative, (__kiln_wide)a.digits * b.digits,
                          a.exponent + b.exponent, false);
}
__kiln_inline double __kiln_fma(__kiln_round mode, double x, double y, double z) {
  if (!__kiln_is_ordinary(x) || !__kiln_is_ordinary(y) || !__builtin_isfinite(z))
    return __kiln_signed_zero(mode, x * y, z, __builtin_fma(x, y, z));
  if (z == 0.0) return __kiln_multiply(mode, x, y);
  const __kiln_number a = __kiln_taken_apart(x), b = __kiln_taken_apart(y),
                      c = __kiln_taken_apart(z);
  return __kiln_sum(mode, a.negative != b.negative, (__kiln_wide)a.digits * b.digits,
                    a.exponent + b.exponent, c.negative, c.digits, c.exponent);
}
__kiln_inline double __kiln_divide(__kiln_round mode, double x, double y) {
#pragma clang fp contract(off)
  if (!__kiln_is_ordinary(x) || !__kiln_is_ordinary(y)) return x / y;
  const __kiln_number a = __kiln_taken_apart(x), b = __kiln_taken_apart(y);
  const double p = __kiln_put_together(a.digits, -52), q = __kiln_put_together(b.digits, -52);
  const double quotient = p / q;
  return __kiln_corrected(mode, a.negative != b.negative, quotient, __builtin_fma(-quotient, q, p),
                          a.exponent - b.exponent);
}
__kiln_inline double __kiln_root(__kiln_round mode, double x) {
#pragma clang fp contract(off)
  if (!__kiln_is_ordinary(x) || x < 0.0) return __builtin_sqrt(x);
  const __kiln_number a = __kiln_taken_apart(x);
  const int odd = a.exponent & 1;
  const double p = __kiln_put_together(a.digits, odd - 52);
  const double root = __builtin_sqrt(p);
  return __kiln_corrected(mode, false, root, __builtin_fma(-root, root, p),
                          (a.exponent - odd + 52) / 2);
}

#define __KILN_DOUBLE(suffix, mode)                                                                \
  __kiln_inline double __dadd_##suffix(double x, double y) { return __kiln_add(mode, x, y); }      \
  __kiln_inline double __dsub_##suffix(double x, double y) { return __kiln_add(mode, x, -y); }     \
  __kiln_inline double __dmul_##suffix(double x, double y) { return __kiln_multiply(mode, x, y); } \
  __kiln_inline double __fma_##suffix(double x, double y, double z) {                              \
    return __kiln_fma(mode, x, y, z);                                                              \
  }                                                                                                \
  __kiln_inline double __ddiv_##suffix(double x, double y) { return __kiln_divide(mode, x, y); }   \
  __kiln_inline double __drcp_##suffix(double x) { return __kiln_divide(mode, 1.0, x); }           \
  __kiln_inline double __dsqrt_##suffix(double x) { return __kiln_root(mode, x); }
__KILN_DOUBLE(rz, __kiln_round::zero)
__KILN_DOUBLE(ru, __kiln_round::up)
__KILN_DOUBLE(rd, __kiln_round::down)
#undef __KILN_DOUBLE
