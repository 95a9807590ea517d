// The vector types of CUDA, with its sizes and alignments.
#pragma once

#define __KILN_VECTOR(name, type, align2, align4)                                               \
  struct name##1 { type x; };                                                                   \
  struct __attribute__((aligned(align2))) name##2 { type x, y; };                               \
  struct name##3 { type x, y, z; };                                                             \
  struct __attribute__((aligned(align4))) name##4 { type x, y, z, w; };                         \
  static inline __attribute__((always_inline)) name##1 make_##name##1(type x) { return {x}; }   \
  static inline __attribute__((always_inline)) name##2 make_##name##2(type x, type y) {         \
    return {x, y};                                                                              \
  }                                                                                             \
  static inline __attribute__((always_inline)) name##3 make_##name##3(type x, type y, type z) { \
    return {x, y, z};                                                                           \
  }                                                                                             \
  static inline                                                                                 \
      __attribute__((always_inline)) name##4 make_##name##4(type x, type y, type z, type w) {   \
    return {x, y, z, w};                                                                        \
  }
__KILN_VECTOR(char, signed char, 2, 4)
__KILN_VECTOR(uchar, unsigned char, 2, 4)
__KILN_VECTOR(short, short, 4, 8)
__KILN_VECTOR(ushort, unsigned short, 4, 8)
__KILN_VECTOR(int, int, 8, 16)
__KILN_VECTOR(uint, unsigned int, 8, 16)
__KILN_VECTOR(long, long, 16, 16)
__KILN_VECTOR(ulong, unsigned long, 16, 16)
__KILN_VECTOR(longlong, long long, 16, 16)
__KILN_VECTOR(ulonglong, unsigned long long, 16, 16)
__KILN_VECTOR(float, float, 8, 16)
__KILN_VECTOR(double, double, 16, 16)
#undef __KILN_VECTOR

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};
