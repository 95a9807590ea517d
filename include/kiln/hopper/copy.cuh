// Part of kiln/hopper.cuh: tensor maps and TMA copies.
#pragma once

#include "kiln/hopper/barrier.cuh"
#include "kiln/hopper/tensor_map.cuh"

namespace kiln::hopper {

/// Fetches the map itself; one thread, before the first copy.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

namespace detail {

// Operands 3 to 9 that an instruction does not name cost nothing.
#define KILN_LOAD(dimensions, multicast, hint, place, more)                                 \
  asm volatile("cp.async.bulk.tensor." dimensions                                           \
               ".shared::cluster.global.mbarrier::complete_tx::bytes" multicast hint        \
               " [%0], [%1, {" place "}], [%2]" more ";" ::"r"(shared_address(to)),         \
               "l"(&map), "r"(shared_address(&barrier)), "h"(blocks), "l"(keep), "r"(c[0]), \
               "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4])                                   \
               : "memory")
#define KILN_LOADS(dimensions, place)                                                   \
  if constexpr (kMany && keep != Keep::normally)                                        \
    KILN_LOAD(dimensions, ".multicast::cluster", ".L2::cache_hint", place, ", %3, %4"); \
  else if constexpr (kMany)                                                             \
    KILN_LOAD(dimensions, ".multicast::cluster", "", place, ", %3");                    \
  else if constexpr (keep != Keep::normally)                                            \
    KILN_LOAD(dimensions, "", ".L2::cache_hint", place, ", %4");                        \
  else                                                                                  \
    KILN_LOAD(dimensions, "", "", place, "")

template <Keep keep, bool kMany, class... At>
__device__ __forceinline__ void load(void* to, const TensorMap& map, Barrier& barrier,
                                     unsigned short blocks, At... at) {
  static_assert(sizeof...(At) >= 1 && sizeof...(At) <= 5, "a tile has 1 to 5 dimensions");
  const int c[] = {static_cast<int>(at)..., 0, 0, 0, 0};
  if constexpr (sizeof...(At) == 1) {
    KILN_LOADS("1d", "%5");
  } else if constexpr (sizeof...(At) == 2) {
    KILN_LOADS("2d", "%5, %6");
  } else if constexpr (sizeof...(At) == 3) {
    KILN_LOADS("3d", "%5, %6, %7");
  } else if constexpr (sizeof...(At) == 4) {
    KILN_LOADS("4d", "%5, %6, %7, %8");
  } else {
    KILN_LOADS("5d", "%5, %6, %7, %8, %9");
  }
}
#undef KILN_LOADS
#undef KILN_LOAD

#define KILN_STORE(dimensions, place)                                                             \
  if constexpr (kAdd)                                                                             \
    asm volatile("cp.reduce.async.bulk.tensor." dimensions                                        \
                 ".global.shared::cta.add.tile.bulk_group [%0, {" place "}], [%1];" ::"l"(&map),  \
                 "r"(shared_address(from)), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]) \
                 : "memory");                                                                     \
  else                                                                                            \
    asm volatile("cp.async.bulk.tensor." dimensions                                               \
                 ".global.shared::cta.tile.bulk_group [%0, {" place "}], [%1];" ::"l"(&map),      \
                 "r"(shared_address(from)), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4]) \
                 : "memory")

template <bool kAdd, class... At>
__device__ __forceinline__ void store(const TensorMap& map, const void* from, At... at) {
  static_assert(sizeof...(At) >= 1 && sizeof...(At) <= 5, "a tile has 1 to 5 dimensions");
  const int c[] = {static_cast<int>(at)..., 0, 0, 0, 0};
  if constexpr (sizeof...(At) == 1) {
    KILN_STORE("1d", "%2");
  } else if constexpr (sizeof...(At) == 2) {
    KILN_STORE("2d", "%2, %3");
  } else if constexpr (sizeof...(At) == 3) {
    KILN_STORE("3d", "%2, %3, %4");
  } else if constexpr (sizeof...(At) == 4) {
    KILN_STORE("4d", "%2, %3, %4, %5");
  } else {
    KILN_STORE("5d", "%2, %3, %4, %5, %6");
  }
}
#undef KILN_STORE

#define KILN_PREFETCH(dimensions, place)                                             \
  asm volatile("cp.async.bulk.prefetch.tensor." dimensions ".L2.global [%0, {" place \
               "}];" ::"l"(&map),                                                    \
               "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]), "r"(c[4])                 \
               : "memory")
}  // namespace detail

/// Starts copying the map's box at `at` (elements, innermost dimension first; what lies outside is
/// zeros) to `to`, aligned to 128 bytes, swizzled to 8 rows. All bytes of the box count at
/// `barrier`. One thread. The first coordinate is a multiple of 16 bytes; another one is an illegal
/// instruction (seen on an H200, as what store_tile() says).
template <Keep keep = Keep::normally, class... At>
__device__ __forceinline__ void load_tile(void* to, const TensorMap& map, Barrier& barrier,
                                          At... at) {
  detail::load<keep, false>(to, map, barrier, 0, at...);
}
/// The same, to the same place in each block of the cluster whose bit is set in `blocks`; the bytes
/// count there, at the barrier at the same place.
template <Keep keep = Keep::normally, class... At>
__device__ __forceinline__ void load_tile_to(unsigned blocks, void* to, const TensorMap& map,
                                             Barrier& barrier, At... at) {
  detail::load<keep, true>(to, map, barrier, static_cast<unsigned short>(blocks), at...);
}

/// Starts copying a box to the L2 cache. One thread. Right even before wait_for_previous(): what is
/// written there later is what is read.
template <class... At>
__device__ __forceinline__ void prefetch_tile(const TensorMap& map, At... at) {
  static_assert(sizeof...(At) >= 1 && sizeof...(At) <= 5, "a tile has 1 to 5 dimensions");
  const int c[] = {static_cast<int>(at)..., 0, 0, 0, 0};
  if constexpr (sizeof...(At) == 1)
    KILN_PREFETCH("1d", "%1");
  else if constexpr (sizeof...(At) == 2)
    KILN_PREFETCH("2d", "%1, %2");
  else if constexpr (sizeof...(At) == 3)
    KILN_PREFETCH("3d", "%1, %2, %3");
  else if constexpr (sizeof...(At) == 4)
    KILN_PREFETCH("4d", "%1, %2, %3, %4");
  else
    KILN_PREFETCH("5d", "%1, %2, %3, %4, %5");
}
#undef KILN_PREFETCH
/// The same for the line around an address.
__device__ __forceinline__ void prefetch_line(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/// Starts copying a box from shared memory; what lies outside stays as it is. The threads that
/// wrote `from` have called publish_shared() and then met this thread at a barrier. One thread,
/// which commits. The box begins at 16 bytes or a multiple, as that of load_tile(), and not before
/// the row. It reaches the end of rows of multiples of 16 bytes only: whole pieces of 16 bytes are
/// written.
template <class... At>
__device__ __forceinline__ void store_tile(const TensorMap& map, const void* from, At... at) {
  detail::store<false>(map, from, at...);
}
/// The same, but adds to what is there, element by element, as one access each.
template <class... At>
__device__ __forceinline__ void add_tile(const TensorMap& map, const void* from, At... at) {
  detail::store<true>(map, from, at...);
}
/// Ends a group of this thread's stores.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until at most `kPending` groups of this thread's stores still read shared memory.
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
/// Waits until at most `kPending` groups of this thread's stores are still under way.
template <int kPending>
__device__ __forceinline__ void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Starts copying `bytes` contiguous bytes (a multiple of 16, as both addresses) to shared memory.
/// They count at `barrier`. One thread.
__device__ __forceinline__ void load_bytes(void* to, const void* from, unsigned bytes,
                                           Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}
/// Starts copying a word of 4 bytes to shared memory, or a zero if there is none.
/// Barrier::arrive_after_copies() tells when it has come. One thread.
template <class T>
__device__ __forceinline__ void copy_word(T* to, const T* from, bool present) {
  static_assert(sizeof(T) == 4);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(present ? 4 : 0)
               : "memory");
}
/// Starts copying from shared memory, as store_tile() does.
__device__ __forceinline__ void store_bytes(void* to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}

/// This thread's writes to shared memory are visible to copies and products that start after the
/// next barrier.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// The same for global memory.
__device__ __forceinline__ void publish_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace kiln::hopper
