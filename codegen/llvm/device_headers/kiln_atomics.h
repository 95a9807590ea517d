// Atomic functions on global and shared memory: relaxed, like the GPU's. The _block and _system
// forms are the same operations here.
#pragma once

#include "kiln_device.h"

template <unsigned bytes>
struct __kiln_bits;
template <>
struct __kiln_bits<2> {
  using type = unsigned short;
};
template <>
struct __kiln_bits<4> {
  using type = unsigned;
};
template <>
struct __kiln_bits<8> {
  using type = unsigned long long;
};

// A read-modify-write of any trivially copyable type, through the integer of its size.
template <class T, class Update>
__kiln_inline T __kiln_atomic_update(T* address, Update update) {
  using Bits = typename __kiln_bits<sizeof(T)>::type;
  Bits* cell = (Bits*)address;
  Bits seen = __atomic_load_n(cell, __ATOMIC_RELAXED);
  for (;;) {
    const T old = __builtin_bit_cast(T, seen);
    const Bits wanted = __builtin_bit_cast(Bits, update(old));
    if (__atomic_compare_exchange_n(cell, &seen, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      return old;
  }
}

#define __KILN_SCOPES(name, type, arguments, call)           \
  __kiln_inline type name##_block arguments { return call; } \
  __kiln_inline type name##_system arguments { return call; }
#define __KILN_ATOMIC(name, type, body)                               \
  __kiln_inline type name(type* address, type value) { return body; } \
  __KILN_SCOPES(name, type, (type * address, type value), name(address, value))
#define __KILN_INTEGER_ATOMICS(type)                                                   \
  __KILN_ATOMIC(atomicAdd, type, __atomic_fetch_add(address, value, __ATOMIC_RELAXED)) \
  __KILN_ATOMIC(atomicSub, type, __atomic_fetch_sub(address, value, __ATOMIC_RELAXED)) \
  __KILN_ATOMIC(atomicMin, type, __atomic_fetch_min(address, value, __ATOMIC_RELAXED)) \
  __KILN_ATOMIC(atomicMax, type, __atomic_fetch_max(address, value, __ATOMIC_RELAXED)) \
  __KILN_ATOMIC(atomicAnd, type, __atomic_fetch_and(address, value, __ATOMIC_RELAXED)) \
  __KILN_ATOMIC(atomicOr, type, __atomic_fetch_or(address, value, __ATOMIC_RELAXED))   \
  __KILN_ATOMIC(atomicXor, type, __atomic_fetch_xor(address, value, __ATOMIC_RELAXED)) \
  __KILN_ATOMIC(atomicExch, type, __atomic_exchange_n(address, value, __ATOMIC_RELAXED))
__KILN_INTEGER_ATOMICS(int)
__KILN_INTEGER_ATOMICS(unsigned)
__KILN_INTEGER_ATOMICS(long long)
__KILN_INTEGER_ATOMICS(unsigned long long)
#undef __KILN_INTEGER_ATOMICS

__KILN_ATOMIC(atomicInc, unsigned, __kiln_atomic_update(address, [=](unsigned old) {
                return old >= value ? 0u : old + 1;
              }))
__KILN_ATOMIC(atomicDec, unsigned, __kiln_atomic_update(address, [=](unsigned old) {
                return old == 0 || old > value ? value : old - 1;
              }))
// The compiler's own floating-point read-modify-write, a compare-and-swap loop on most CPUs.
__KILN_ATOMIC(atomicAdd, float, __atomic_fetch_add(address, value, __ATOMIC_RELAXED))
__KILN_ATOMIC(atomicAdd, double, __atomic_fetch_add(address, value, __ATOMIC_RELAXED))
__KILN_ATOMIC(atomicExch, float, __kiln_atomic_update(address, [=](float) { return value; }))

#define __KILN_CAS(type)                                                            \
  __kiln_inline type atomicCAS(type* address, type expected, type value) {          \
    __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, \
                                __ATOMIC_RELAXED);                                  \
    return expected;                                                                \
  }                                                                                 \
  __KILN_SCOPES(atomicCAS, type, (type * address, type expected, type value),       \
                atomicCAS(address, expected, value))
__KILN_CAS(int)
__KILN_CAS(unsigned)
__KILN_CAS(unsigned long long)
__KILN_CAS(unsigned short)
#undef __KILN_CAS
#undef __KILN_ATOMIC
#undef __KILN_SCOPES
