// Integer intrinsics, bit by bit as CUDA documents them, and the bits of floats as integers.
#pragma once

#include "kiln_device.h"

__kiln_inline constexpr int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
__kiln_inline constexpr unsigned __float_as_uint(float v) {
  return __builtin_bit_cast(unsigned, v);
}
__kiln_inline constexpr float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
__kiln_inline constexpr float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
__kiln_inline constexpr long long __double_as_longlong(double v) {
  return __builtin_bit_cast(long long, v);
}
__kiln_inline constexpr double __longlong_as_double(long long v) {
  return __builtin_bit_cast(double, v);
}
__kiln_inline int __double2hiint(double v) { return (int)(__double_as_longlong(v) >> 32); }
__kiln_inline int __double2loint(double v) { return (int)__double_as_longlong(v); }
__kiln_inline double __hiloint2double(int high, int low) {
  return __longlong_as_double(
      (long long)((unsigned long long)(unsigned)high << 32 | (unsigned)low));
}

__kiln_inline int __popc(unsigned v) { return __builtin_popcount(v); }
__kiln_inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
__kiln_inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz((unsigned)v); }
__kiln_inline int __clzll(long long v) {
  return v == 0 ? 64 : __builtin_clzll((unsigned long long)v);
}
__kiln_inline int __ffs(int v) { return __builtin_ffs(v); }
__kiln_inline int __ffsll(long long v) { return __builtin_ffsll(v); }
__kiln_inline unsigned __brev(unsigned v) { return __builtin_bitreverse32(v); }
__kiln_inline unsigned long long __brevll(unsigned long long v) {
  return __builtin_bitreverse64(v);
}
// The position of the set bit that is `offset` set bits from `base`, upwards if positive (the
// first at `base` itself), else downwards; ~0 if there is none. `offset` 0: is `base` set?
__kiln_inline unsigned __fns(unsigned mask, unsigned base, int offset) {
  if (base > 31) return ~0u;
  if (offset == 0) return mask >> base & 1u ? base : ~0u;
  unsigned rest = offset > 0 ? mask & (~0u << base) : mask & (~0u >> (31u - base));
  for (unsigned left = offset > 0 ? (unsigned)offset : 0u - (unsigned)offset; left > 1 && rest;
       --left)
    rest &= offset > 0 ? rest - 1 : ~(1u << (31 - __builtin_clz(rest)));
  if (!rest) return ~0u;
  return (unsigned)(offset > 0 ? __builtin_ctz(rest) : 31 - __builtin_clz(rest));
}
__kiln_inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
  const unsigned long long both = ((unsigned long long)b << 32) | a;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i)
    out |= ((unsigned)(both >> (8 * ((s >> (4 * i)) & 7u))) & 255u) << (8 * i);
  return out;
}
__kiln_inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)((((unsigned long long)hi << 32 | lo) << (s & 31u)) >> 32);
}
__kiln_inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) {
  return (unsigned)(((unsigned long long)hi << 32 | lo) >> (s & 31u));
}
__kiln_inline unsigned __funnelshift_lc(unsigned lo, unsigned hi, unsigned s) {
  return s >= 32u ? lo : __funnelshift_l(lo, hi, s);
}
__kiln_inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned s) {
  return s >= 32u ? hi : __funnelshift_r(lo, hi, s);
}

__kiln_inline int __mul24(int a, int b) {
  return (int)((unsigned)((a << 8) >> 8) * (unsigned)((b << 8) >> 8));
}
__kiln_inline unsigned __umul24(unsigned a, unsigned b) {
  return (a & 0xffffffu) * (b & 0xffffffu);
}
__kiln_inline int __mulhi(int a, int b) { return (int)(((long long)a * b) >> 32); }
__kiln_inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a * b) >> 32);
}
__kiln_inline long long __mul64hi(long long a, long long b) {
  return (long long)(((__int128)a * b) >> 64);
}
__kiln_inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)(((unsigned __int128)a * b) >> 64);
}
__kiln_inline unsigned __sad(int a, int b, unsigned c) {
  return c + (a > b ? (unsigned)a - (unsigned)b : (unsigned)b - (unsigned)a);
}
__kiln_inline unsigned __usad(unsigned a, unsigned b, unsigned c) {
  return c + (a > b ? a - b : b - a);
}
__kiln_inline int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
__kiln_inline int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
__kiln_inline unsigned __uhadd(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a + b) >> 1);
}
__kiln_inline unsigned __urhadd(unsigned a, unsigned b) {
  return (unsigned)(((unsigned long long)a + b + 1) >> 1);
}

// --- dot products of bytes, and of halfwords with bytes
#define __KILN_DOT(I, Byte, Half, pair, quad)                                                 \
  __kiln_inline I __dp4a(I a, I b, I c) {                                                     \
    unsigned sum = (unsigned)c;                                                               \
    for (int i = 0; i < 32; i += 8) sum += (unsigned)((I)(Byte)(a >> i) * (I)(Byte)(b >> i)); \
    return (I)sum;                                                                            \
  }                                                                                           \
  __kiln_inline I __dp2a_lo(I a, I b, I c) {                                                  \
    return (I)((unsigned)c + (unsigned)((I)(Half)a * (I)(Byte)b) +                            \
               (unsigned)((I)(Half)(a >> 16) * (I)(Byte)(b >> 8)));                           \
  }                                                                                           \
  __kiln_inline I __dp2a_hi(I a, I b, I c) { return __dp2a_lo(a, b >> 16, c); }               \
  __kiln_inline I __dp4a(quad a, quad b, I c) {                                               \
    return __dp4a(__builtin_bit_cast(I, a), __builtin_bit_cast(I, b), c);                     \
  }                                                                                           \
  __kiln_inline I __dp2a_lo(pair a, quad b, I c) {                                            \
    return __dp2a_lo(__builtin_bit_cast(I, a), __builtin_bit_cast(I, b), c);                  \
  }                                                                                           \
  __kiln_inline I __dp2a_hi(pair a, quad b, I c) {                                            \
    return __dp2a_hi(__builtin_bit_cast(I, a), __builtin_bit_cast(I, b), c);                  \
  }
__KILN_DOT(int, signed char, short, short2, char4)
__KILN_DOT(unsigned, unsigned char, unsigned short, ushort2, uchar4)
#undef __KILN_DOT
