// Warp-level primitives. Lanes exchange values through per-thread mailboxes: each lane sends,
// suspends until every lane of the mask has, and reads the mailbox of the lane it wants.
#pragma once

#include "kiln_device.h"

__kiln_inline unsigned __kiln_lane() { return __kiln_linear_thread() & 31u; }
__kiln_inline unsigned __kiln_warp_base() { return __kiln_linear_thread() & ~31u; }
__kiln_inline void __syncwarp(unsigned mask = 0xffffffffu) {
  __kiln_suspend(__kiln_warp_barrier, mask);
}

template <class T>
__kiln_inline T __kiln_exchange(unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= 8, "a shuffled value has at most 8 bytes");
  if constexpr (sizeof(T) <= 4) {
    unsigned bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    __kiln_send32(bits);
    __kiln_suspend(__kiln_warp_exchange32, mask);
    bits = __kiln_receive32(__kiln_warp_base() + lane);
    __builtin_memcpy(&value, &bits, sizeof(T));
  } else {
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    __kiln_send64(bits);
    __kiln_suspend(__kiln_warp_exchange64, mask);
    bits = __kiln_receive64(__kiln_warp_base() + lane);
    __builtin_memcpy(&value, &bits, sizeof(T));
  }
  return value;
}

template <class T>
__kiln_inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = __kiln_lane();
  return __kiln_exchange(
      mask, value, (lane & ~(unsigned)(width - 1)) | ((unsigned)source & (unsigned)(width - 1)));
}
template <class T>
__kiln_inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = __kiln_lane();
  const unsigned in_group = lane & (unsigned)(width - 1);
  return __kiln_exchange(mask, value, in_group >= delta ? lane - delta : lane);
}
template <class T>
__kiln_inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = __kiln_lane();
  const unsigned in_group = lane & (unsigned)(width - 1);
  return __kiln_exchange(mask, value, delta < (unsigned)width - in_group ? lane + delta : lane);
}
template <class T>
__kiln_inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const unsigned lane = __kiln_lane();
  const unsigned source = lane ^ (unsigned)lane_mask;
  // A source in a later group keeps the own value; one in an earlier group is read, as on the GPU.
  return __kiln_exchange(
      mask, value, source < (lane & ~(unsigned)(width - 1)) + (unsigned)width ? source : lane);
}

__kiln_inline unsigned __ballot_sync(unsigned mask, int predicate) {
  __kiln_send32(predicate != 0);
  __kiln_suspend(__kiln_warp_ballot, mask);
  return __kiln_receive32(__kiln_linear_thread());
}
__kiln_inline int __any_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) != 0;
}
__kiln_inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, !predicate) == 0;
}
__kiln_inline int __uni_sync(unsigned mask, int predicate) {
  const unsigned set = __ballot_sync(mask, predicate);
  return predicate ? __ballot_sync(mask, 1) == set : set == 0;
}
__kiln_inline unsigned __activemask() {
  __kiln_suspend(__kiln_warp_active, ~0u);
  return __kiln_receive32(__kiln_linear_thread());
}

// The lanes that really took part: those of the mask that have not exited.
#define __KILN_FOR_LANES(lane, set)       \
  for (unsigned __rest = (set), lane = 0; \
       __rest && (lane = (unsigned)__builtin_ctz(__rest), true); __rest &= __rest - 1)

template <class T>
__kiln_inline unsigned __match_any_sync(unsigned mask, T value) {
  const unsigned present = __ballot_sync(mask, 1);
  const unsigned base = __kiln_warp_base();
  unsigned long long own = 0;
  __builtin_memcpy(&own, &value, sizeof(T));
  __kiln_send64(own);
  __kiln_suspend(__kiln_warp_exchange64, mask);
  unsigned same = 0;
  __KILN_FOR_LANES(lane, present) same |= (__kiln_receive64(base + lane) == own ? 1u : 0u) << lane;
  return same;
}
template <class T>
__kiln_inline unsigned __match_all_sync(unsigned mask, T value, int* predicate) {
  const unsigned present = __ballot_sync(mask, 1);
  const unsigned same = __match_any_sync(mask, value);
  *predicate = __all_sync(mask, same == present);
  return *predicate ? present : 0;
}

#define __KILN_REDUCE(name, type, expression)             \
  __kiln_inline type name(unsigned mask, type value) {    \
    const unsigned present = __ballot_sync(mask, 1);      \
    const unsigned base = __kiln_warp_base();             \
    __kiln_send32((unsigned)value);                       \
    __kiln_suspend(__kiln_warp_exchange32, mask);         \
    bool first = true;                                    \
    type a = value;                                       \
    __KILN_FOR_LANES(lane, present) {                     \
      const type b = (type)__kiln_receive32(base + lane); \
      a = first ? b : (expression);                       \
      first = false;                                      \
    }                                                     \
    return a;                                             \
  }
__KILN_REDUCE(__reduce_add_sync, unsigned, a + b)
__KILN_REDUCE(__reduce_add_sync, int, (int)((unsigned)a + (unsigned)b))
__KILN_REDUCE(__reduce_min_sync, unsigned, b < a ? b : a)
__KILN_REDUCE(__reduce_min_sync, int, b < a ? b : a)
__KILN_REDUCE(__reduce_max_sync, unsigned, b > a ? b : a)
__KILN_REDUCE(__reduce_max_sync, int, b > a ? b : a)
__KILN_REDUCE(__reduce_and_sync, unsigned, a& b)
__KILN_REDUCE(__reduce_or_sync, unsigned, a | b)
__KILN_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef __KILN_REDUCE
