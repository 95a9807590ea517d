// The CUDA C++ language on the host target: qualifiers, indices, synchronisation.
#pragma once

typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;

#define __global__
#define __device__
#define __host__
// Kept where this config does not read it: the program that fills it need not know.
#define __constant__ __attribute__((used))
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...) __attribute__((annotate("kiln.launch_bounds", __VA_ARGS__)))
#define __maxnreg__(...)
#define __cluster_dims__(...) __attribute__((annotate("kiln.cluster_dims", __VA_ARGS__)))
// One instance per block: thread-local storage is what the compiler later maps to the block's
// arena.
#define __shared__ thread_local

#define __kiln_inline static inline __attribute__((always_inline))

extern "C" {
__attribute__((const)) unsigned __kiln_thread_index(unsigned dim);
__attribute__((const)) unsigned __kiln_block_index(unsigned dim);
__attribute__((const)) unsigned __kiln_block_dim(unsigned dim);
__attribute__((const)) unsigned __kiln_grid_dim(unsigned dim);
__attribute__((const)) unsigned __kiln_cluster_index(unsigned dim);
__attribute__((const)) unsigned __kiln_cluster_dim(unsigned dim);
__attribute__((const)) unsigned __kiln_linear_thread();
__attribute__((const)) void* __kiln_argument(unsigned index);
__attribute__((convergent, nothrow)) void __kiln_suspend(unsigned kind, unsigned mask);
__attribute__((nothrow)) void __kiln_send32(unsigned value);
__attribute__((nothrow)) void __kiln_send64(unsigned long long value);
__attribute__((pure)) unsigned __kiln_receive32(unsigned thread);
__attribute__((pure)) unsigned long long __kiln_receive64(unsigned thread);
__attribute__((nothrow)) unsigned long long __kiln_service(unsigned service, const void* p,
                                                           unsigned long long x);
__attribute__((noreturn, nothrow, cold)) void __kiln_fault(const char* message);
}

// The numbers of kiln::codegen::SuspendKind.
enum : unsigned {
  __kiln_block_barrier = 0,
  __kiln_block_count = 1,
  __kiln_warp_barrier = 2,
  __kiln_warp_exchange32 = 3,
  __kiln_warp_exchange64 = 4,
  __kiln_warp_ballot = 5,
  __kiln_warp_active = 6,
};

#include "kiln_vector_types.h"

#define __KILN_INDEX(name, function)                                                 \
  struct __kiln_##name##_t {                                                         \
    __declspec(property(get = __get_x)) unsigned x;                                  \
    __declspec(property(get = __get_y)) unsigned y;                                  \
    __declspec(property(get = __get_z)) unsigned z;                                  \
    __attribute__((always_inline)) unsigned __get_x() const { return function(0); }  \
    __attribute__((always_inline)) unsigned __get_y() const { return function(1); }  \
    __attribute__((always_inline)) unsigned __get_z() const { return function(2); }  \
    __attribute__((always_inline)) operator dim3() const { return dim3(x, y, z); }   \
    __attribute__((always_inline)) operator uint3() const { return uint3{x, y, z}; } \
  };                                                                                 \
  static constexpr __kiln_##name##_t name {}
__KILN_INDEX(threadIdx, __kiln_thread_index);
__KILN_INDEX(blockIdx, __kiln_block_index);
__KILN_INDEX(blockDim, __kiln_block_dim);
__KILN_INDEX(gridDim, __kiln_grid_dim);
#undef __KILN_INDEX
static constexpr int warpSize = 32;

__kiln_inline void __syncthreads() { __kiln_suspend(__kiln_block_barrier, ~0u); }
__kiln_inline int __syncthreads_count(int predicate) {
  __kiln_send32(predicate != 0);
  __kiln_suspend(__kiln_block_count, ~0u);
  return (int)__kiln_receive32(__kiln_linear_thread());
}
__kiln_inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }
__kiln_inline int __syncthreads_and(int predicate) { return __syncthreads_count(!predicate) == 0; }

__kiln_inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
__kiln_inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
__kiln_inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
__kiln_inline void __trap() { __kiln_fault("__trap()"); }
extern "C" int sched_yield() noexcept;
__kiln_inline void __nanosleep(unsigned) { sched_yield(); }  // what it waits for may need this core
__kiln_inline void __brkpt() {}
__kiln_inline long long clock64() { return (long long)__builtin_readcyclecounter(); }
__kiln_inline int clock() { return (int)clock64(); }
__kiln_inline size_t __cvta_generic_to_shared(const void* p) { return (size_t)p; }

extern "C" int printf(const char*, ...) __attribute__((format(printf, 1, 2)));
#define __KILN_STRING(x) #x
#define __KILN_TEXT(x) __KILN_STRING(x)
#ifdef NDEBUG
#define assert(c) ((void)0)
#else
#define assert(c)             \
  (__builtin_expect(!!(c), 1) \
       ? (void)0              \
       : __kiln_fault(__FILE__ ":" __KILN_TEXT(__LINE__) ": assertion failed: " #c))
#endif
