// The SIMD intrinsics: a word as two halfwords or four bytes, each for itself. Names end in the
// number of parts; `s` and `u` say how parts are read, `ss` and `us` that results saturate.
//
// They are macros for one template: every kernel's compilation reads this file, and 82 functions
// took a third of the front end's time.
#pragma once

#include "kiln_device.h"

enum class __kiln_part {
  abs,
  absss,
  neg,
  negss,
  add,
  addss,
  addus,
  sub,
  subss,
  subus,
  abs_diffs,
  abs_diffu,
  avgs,
  avgu,
  haddu,
  maxs,
  maxu,
  mins,
  minu,
  eq,
  ne,
  ges,
  geu,
  gts,
  gtu,
  les,
  leu,
  lts,
  ltu
};

template <__kiln_part operation, class Signed, class Unsigned>
__kiln_inline unsigned __kiln_by_parts(unsigned a, unsigned b) {
  constexpr int bits = 8 * sizeof(Signed), all = (1 << bits) - 1, highest = all / 2;
  const auto clamped = [](int v) {
    return v < -highest - 1 ? -highest - 1 : v > highest ? highest : v;
  };
  unsigned out = 0;
  for (int at = 0; at < 32; at += bits) {
    const int sx = (Signed)(a >> at), sy = (Signed)(b >> at);
    const int ux = (Unsigned)(a >> at), uy = (Unsigned)(b >> at);
    int part = 0;
    switch (operation) {
      case __kiln_part::abs:
        part = sx < 0 ? -sx : sx;
        break;
      case __kiln_part::absss:
        part = clamped(sx < 0 ? -sx : sx);
        break;
      case __kiln_part::neg:
        part = -sx;
        break;
      case __kiln_part::negss:
        part = clamped(-sx);
        break;
      case __kiln_part::add:
        part = ux + uy;
        break;
      case __kiln_part::addss:
        part = clamped(sx + sy);
        break;
      case __kiln_part::addus:
        part = ux + uy < all ? ux + uy : all;
        break;
      case __kiln_part::sub:
        part = ux - uy;
        break;
      case __kiln_part::subss:
        part = clamped(sx - sy);
        break;
      case __kiln_part::subus:
        part = ux < uy ? 0 : ux - uy;
        break;
      case __kiln_part::abs_diffs:
        part = sx < sy ? sy - sx : sx - sy;
        break;
      case __kiln_part::abs_diffu:
        part = ux < uy ? uy - ux : ux - uy;
        break;
      case __kiln_part::avgs:
        part = (sx + sy + (sx + sy >= 0)) >> 1;  // halves away from zero
        break;
      case __kiln_part::avgu:
        part = (ux + uy + 1) >> 1;
        break;
      case __kiln_part::haddu:
        part = (ux + uy) >> 1;
        break;
      case __kiln_part::maxs:
        part = sx < sy ? sy : sx;
        break;
      case __kiln_part::maxu:
        part = ux < uy ? uy : ux;
        break;
      case __kiln_part::mins:
        part = sx < sy ? sx : sy;
        break;
      case __kiln_part::minu:
        part = ux < uy ? ux : uy;
        break;
      case __kiln_part::eq:
        part = -(ux == uy);
        break;
      case __kiln_part::ne:
        part = -(ux != uy);
        break;
      case __kiln_part::ges:
        part = -(sx >= sy);
        break;
      case __kiln_part::geu:
        part = -(ux >= uy);
        break;
      case __kiln_part::gts:
        part = -(sx > sy);
        break;
      case __kiln_part::gtu:
        part = -(ux > uy);
        break;
      case __kiln_part::les:
        part = -(sx <= sy);
        break;
      case __kiln_part::leu:
        part = -(ux <= uy);
        break;
      case __kiln_part::lts:
        part = -(sx < sy);
        break;
      case __kiln_part::ltu:
        part = -(ux < uy);
        break;
    }
    out |= (unsigned)(part & all) << at;
  }
  return out;
}
template <__kiln_part operation>
__kiln_inline unsigned __kiln_halves(unsigned a, unsigned b = 0) {
  return __kiln_by_parts<operation, short, unsigned short>(a, b);
}
template <__kiln_part operation>
__kiln_inline unsigned __kiln_bytes(unsigned a, unsigned b = 0) {
  return __kiln_by_parts<operation, signed char, unsigned char>(a, b);
}
template <__kiln_part comparison>
__kiln_inline unsigned __kiln_set_halves(unsigned a, unsigned b) {
  return __kiln_halves<comparison>(a, b) & 0x00010001u;
}
template <__kiln_part comparison>
__kiln_inline unsigned __kiln_set_bytes(unsigned a, unsigned b) {
  return __kiln_bytes<comparison>(a, b) & 0x01010101u;
}

__kiln_inline unsigned __kiln_sum_of_halves(unsigned v) { return (v & 0xffffu) + (v >> 16); }
__kiln_inline unsigned __kiln_sum_of_bytes(unsigned v) {
  return __kiln_sum_of_halves((v & 0x00ff00ffu) + (v >> 8 & 0x00ff00ffu));
}
__kiln_inline unsigned __vsads2(unsigned a, unsigned b) {
  return __kiln_sum_of_halves(__kiln_halves<__kiln_part::abs_diffs>(a, b));
}
__kiln_inline unsigned __vsadu2(unsigned a, unsigned b) {
  return __kiln_sum_of_halves(__kiln_halves<__kiln_part::abs_diffu>(a, b));
}
__kiln_inline unsigned __vsads4(unsigned a, unsigned b) {
  return __kiln_sum_of_bytes(__kiln_bytes<__kiln_part::abs_diffs>(a, b));
}
__kiln_inline unsigned __vsadu4(unsigned a, unsigned b) {
  return __kiln_sum_of_bytes(__kiln_bytes<__kiln_part::abs_diffu>(a, b));
}

#define __vabs2 __kiln_halves<__kiln_part::abs>
#define __vabs4 __kiln_bytes<__kiln_part::abs>
#define __vabsss2 __kiln_halves<__kiln_part::absss>
#define __vabsss4 __kiln_bytes<__kiln_part::absss>
#define __vneg2 __kiln_halves<__kiln_part::neg>
#define __vneg4 __kiln_bytes<__kiln_part::neg>
#define __vnegss2 __kiln_halves<__kiln_part::negss>
#define __vnegss4 __kiln_bytes<__kiln_part::negss>
#define __vadd2 __kiln_halves<__kiln_part::add>
#define __vadd4 __kiln_bytes<__kiln_part::add>
#define __vaddss2 __kiln_halves<__kiln_part::addss>
#define __vaddss4 __kiln_bytes<__kiln_part::addss>
#define __vaddus2 __kiln_halves<__kiln_part::addus>
#define __vaddus4 __kiln_bytes<__kiln_part::addus>
#define __vsub2 __kiln_halves<__kiln_part::sub>
#define __vsub4 __kiln_bytes<__kiln_part::sub>
#define __vsubss2 __kiln_halves<__kiln_part::subss>
#define __vsubss4 __kiln_bytes<__kiln_part::subss>
#define __vsubus2 __kiln_halves<__kiln_part::subus>
#define __vsubus4 __kiln_bytes<__kiln_part::subus>
#define __vabsdiffs2 __kiln_halves<__kiln_part::abs_diffs>
#define __vabsdiffs4 __kiln_bytes<__kiln_part::abs_diffs>
#define __vabsdiffu2 __kiln_halves<__kiln_part::abs_diffu>
#define __vabsdiffu4 __kiln_bytes<__kiln_part::abs_diffu>
#define __vavgs2 __kiln_halves<__kiln_part::avgs>
#define __vavgs4 __kiln_bytes<__kiln_part::avgs>
#define __vavgu2 __kiln_halves<__kiln_part::avgu>
#define __vavgu4 __kiln_bytes<__kiln_part::avgu>
#define __vhaddu2 __kiln_halves<__kiln_part::haddu>
#define __vhaddu4 __kiln_bytes<__kiln_part::haddu>
#define __vmaxs2 __kiln_halves<__kiln_part::maxs>
#define __vmaxs4 __kiln_bytes<__kiln_part::maxs>
#define __vmaxu2 __kiln_halves<__kiln_part::maxu>
#define __vmaxu4 __kiln_bytes<__kiln_part::maxu>
#define __vmins2 __kiln_halves<__kiln_part::mins>
#define __vmins4 __kiln_bytes<__kiln_part::mins>
#define __vminu2 __kiln_halves<__kiln_part::minu>
#define __vminu4 __kiln_bytes<__kiln_part::minu>
#define __vcmpeq2 __kiln_halves<__kiln_part::eq>
#define __vseteq2 __kiln_set_halves<__kiln_part::eq>
#define __vcmpeq4 __kiln_bytes<__kiln_part::eq>
#define __vseteq4 __kiln_set_bytes<__kiln_part::eq>
#define __vcmpne2 __kiln_halves<__kiln_part::ne>
#define __vsetne2 __kiln_set_halves<__kiln_part::ne>
#define __vcmpne4 __kiln_bytes<__kiln_part::ne>
#define __vsetne4 __kiln_set_bytes<__kiln_part::ne>
#define __vcmpges2 __kiln_halves<__kiln_part::ges>
#define __vsetges2 __kiln_set_halves<__kiln_part::ges>
#define __vcmpges4 __kiln_bytes<__kiln_part::ges>
#define __vsetges4 __kiln_set_bytes<__kiln_part::ges>
#define __vcmpgeu2 __kiln_halves<__kiln_part::geu>
#define __vsetgeu2 __kiln_set_halves<__kiln_part::geu>
#define __vcmpgeu4 __kiln_bytes<__kiln_part::geu>
#define __vsetgeu4 __kiln_set_bytes<__kiln_part::geu>
#define __vcmpgts2 __kiln_halves<__kiln_part::gts>
#define __vsetgts2 __kiln_set_halves<__kiln_part::gts>
#define __vcmpgts4 __kiln_bytes<__kiln_part::gts>
#define __vsetgts4 __kiln_set_bytes<__kiln_part::gts>
#define __vcmpgtu2 __kiln_halves<__kiln_part::gtu>
#define __vsetgtu2 __kiln_set_halves<__kiln_part::gtu>
#define __vcmpgtu4 __kiln_bytes<__kiln_part::gtu>
#define __vsetgtu4 __kiln_set_bytes<__kiln_part::gtu>
#define __vcmples2 __kiln_halves<__kiln_part::les>
#define __vsetles2 __kiln_set_halves<__kiln_part::les>
#define __vcmples4 __kiln_bytes<__kiln_part::les>
#define __vsetles4 __kiln_set_bytes<__kiln_part::les>
#define __vcmpleu2 __kiln_halves<__kiln_part::leu>
#define __vsetleu2 __kiln_set_halves<__kiln_part::leu>
#define __vcmpleu4 __kiln_bytes<__kiln_part::leu>
#define __vsetleu4 __kiln_set_bytes<__kiln_part::leu>
#define __vcmplts2 __kiln_halves<__kiln_part::lts>
#define __vsetlts2 __kiln_set_halves<__kiln_part::lts>
#define __vcmplts4 __kiln_bytes<__kiln_part::lts>
#define __vsetlts4 __kiln_set_bytes<__kiln_part::lts>
#define __vcmpltu2 __kiln_halves<__kiln_part::ltu>
#define __vsetltu2 __kiln_set_halves<__kiln_part::ltu>
#define __vcmpltu4 __kiln_bytes<__kiln_part::ltu>
#define __vsetltu4 __kiln_set_bytes<__kiln_part::ltu>
