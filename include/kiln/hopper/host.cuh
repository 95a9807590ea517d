// Part of kiln/hopper.cuh: all of it on the host target, whose scheduler knows clusters, mbarriers,
// copies and products. What the functions do is said in the other parts.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <kiln_cluster.h>

#include "kiln/hopper/operand.cuh"
#include "kiln/hopper/tensor_map.cuh"

struct __nv_fp8_e4m3;

namespace kiln::hopper {

__device__ __forceinline__ unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__kiln_serve(__kiln_shared_address, shared));
}

__device__ __forceinline__ bool elect() {
  return __kiln_lane() == static_cast<unsigned>(__builtin_ctz(__ballot_sync(0xffffffffu, 1)));
}
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

struct alignas(8) Barrier {
  unsigned long long state;

  __device__ __forceinline__ void init(unsigned arrivals) {
    __kiln_serve(__kiln_mbarrier_init, this, arrivals);
  }
  __device__ __forceinline__ void arrive() { __kiln_serve(__kiln_mbarrier_arrive, this, 1); }
  __device__ __forceinline__ void arrive_expect(unsigned bytes) {
    __kiln_serve(__kiln_mbarrier_expect, this, bytes);
    arrive();
  }
  __device__ __forceinline__ void arrive_after_copies() { arrive(); }
  __device__ __forceinline__ void arrive_at(unsigned rank) {
    __kiln_serve(__kiln_mbarrier_arrive, __kiln_at_block(this, rank), 1);
  }
  __device__ __forceinline__ void publish_at(unsigned rank) { arrive_at(rank); }
  __device__ __forceinline__ bool passed(unsigned parity) {
    return __kiln_mbarrier_test(this, parity);
  }
  __device__ __forceinline__ bool passed_already(unsigned parity) { return passed(parity); }
  __device__ __forceinline__ void wait(unsigned parity) { __kiln_mbarrier_wait(this, parity); }
  __device__ __forceinline__ void wait_cluster(unsigned parity) { wait(parity); }
};

__device__ __forceinline__ void publish_barriers() {}

__device__ __forceinline__ void named_sync(int id, int threads) {
  __kiln_named_sync(static_cast<unsigned>(id), static_cast<unsigned>(threads));
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  __kiln_named_arrive(static_cast<unsigned>(id), static_cast<unsigned>(threads));
}

__device__ __forceinline__ unsigned cluster_rank() { return __kiln_cluster_rank(); }
__device__ __forceinline__ unsigned cluster_size() { return __kiln_cluster_size(); }
__device__ __forceinline__ void cluster_arrive() { __kiln_serve(__kiln_cluster_arrive); }
__device__ __forceinline__ void cluster_wait() { __kiln_cluster_wait(); }
__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
__device__ __forceinline__ void cluster_meet() { cluster_sync(); }
template <class T>
__device__ __forceinline__ T* at_block(T* shared, unsigned rank) {
  return __kiln_at_block(shared, rank);
}

template <int kRegisters>
__device__ __forceinline__ void more_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256);
}
template <int kRegisters>
__device__ __forceinline__ void fewer_registers() {
  more_registers<kRegisters>();
}
__device__ __forceinline__ void wait_for_previous() {}
__device__ __forceinline__ void let_next_start() {}

namespace detail {

template <class... At>
__device__ __forceinline__ void copy_box(unsigned kind, const TensorMap& map, const void* shared,
                                         const void* barrier, unsigned blocks, At... at) {
  static_assert(sizeof...(At) >= 1 && sizeof...(At) <= 5, "a tile has 1 to 5 dimensions");
  __kiln_bulk_copy_t copy = {&map, const_cast<void*>(shared), nullptr, const_cast<void*>(barrier)};
  int d = 0;
  ((copy.at[d++] = static_cast<int>(at)), ...);
  copy.kind = kind;
  copy.multicast = blocks;
  copy.coordinates = sizeof...(At);
  __kiln_serve(__kiln_bulk_copy, &copy);
}
__device__ __forceinline__ void copy_bytes(unsigned kind, const void* shared, const void* other,
                                           const void* barrier, unsigned bytes) {
  __kiln_bulk_copy_t copy = {nullptr, const_cast<void*>(shared), const_cast<void*>(other),
                             const_cast<void*>(barrier)};
  copy.kind = kind;
  copy.bytes = bytes;
  __kiln_serve(__kiln_bulk_copy, &copy);
}
}  // namespace detail

__device__ __forceinline__ void prefetch_map(const TensorMap&) {}

template <Keep keep = Keep::normally, class... At>
__device__ __forceinline__ void load_tile(void* to, const TensorMap& map, Barrier& barrier,
                                          At... at) {
  detail::copy_box(__kiln_bulk_load, map, to, &barrier, 0, at...);
}
template <Keep keep = Keep::normally, class... At>
__device__ __forceinline__ void load_tile_to(unsigned blocks, void* to, const TensorMap& map,
                                             Barrier& barrier, At... at) {
  detail::copy_box(__kiln_bulk_load, map, to, &barrier, blocks, at...);
}
template <class... At>
__device__ __forceinline__ void prefetch_tile(const TensorMap& map, At... at) {
  detail::copy_box(__kiln_bulk_prefetch, map, nullptr, nullptr, 0, at...);
}
__device__ __forceinline__ void prefetch_line(const void*) {}
template <class... At>
__device__ __forceinline__ void store_tile(const TensorMap& map, const void* from, At... at) {
  detail::copy_box(__kiln_bulk_store, map, from, nullptr, 0, at...);
}
template <class... At>
__device__ __forceinline__ void add_tile(const TensorMap& map, const void* from, At... at) {
  detail::copy_box(__kiln_bulk_add, map, from, nullptr, 0, at...);
}
__device__ __forceinline__ void commit_stores() { __kiln_serve(__kiln_bulk_commit); }
template <int kPending>
__device__ __forceinline__ void wait_stores_read() {
  __kiln_serve(__kiln_bulk_wait, nullptr, __kiln_only_read | kPending);
}
template <int kPending>
__device__ __forceinline__ void wait_stores() {
  __kiln_serve(__kiln_bulk_wait, nullptr, kPending);
}
__device__ __forceinline__ void load_bytes(void* to, const void* from, unsigned bytes,
                                           Barrier& barrier) {
  detail::copy_bytes(__kiln_bulk_load, to, from, &barrier, bytes);
}
template <class T>
__device__ __forceinline__ void copy_word(T* to, const T* from, bool present) {
  static_assert(sizeof(T) == 4);
  *to = present ? *from : T{};
}
__device__ __forceinline__ void store_bytes(void* to, const void* from, unsigned bytes) {
  detail::copy_bytes(__kiln_bulk_store, from, to, nullptr, bytes);
}
__device__ __forceinline__ void publish_shared() {}
__device__ __forceinline__ void publish_global() {}

template <bool transposed = false, int kCount>
__device__ __forceinline__ void store_matrices(void* row, const unsigned (&m)[kCount]) {
  static_assert(kCount == 2 || kCount == 4, "two or four matrices are stored");
  __kiln_store_matrices<transposed>(row, m);
}
template <bool transposed = false, int kCount>
__device__ __forceinline__ void load_matrices(unsigned (&m)[kCount], const void* row) {
  static_assert(kCount == 4, "four matrices are loaded");
  __kiln_load_matrices<transposed>(m, row);
}
__device__ __forceinline__ unsigned transpose_matrix(unsigned m) {
  return __kiln_transpose_matrix(m);
}

__device__ __forceinline__ void multiply_fence() {}
__device__ __forceinline__ void multiply_commit() { __kiln_serve(__kiln_warpgroup_commit); }
template <int kPending>
__device__ __forceinline__ void multiply_wait() {
  __kiln_warpgroup_wait(kPending);
}

__device__ __forceinline__ void multiplied(float&) {}

namespace detail {
template <class T>
inline constexpr unsigned kProduct = ~0u;
template <>
inline constexpr unsigned kProduct<__nv_bfloat16> = 0;
template <>
inline constexpr unsigned kProduct<__half> = 1;
template <>
inline constexpr unsigned kProduct<__nv_fp8_e4m3> = 3;
}  // namespace detail

template <class T, Lies rows_lie = Lies::along_k, Lies columns_lie = Lies::along_k, int kTiles>
__device__ __forceinline__ void multiply(float (&d)[kTiles][4], Operand rows, Operand columns,
                                         bool adding) {
  static_assert(kTiles >= 1 && kTiles <= 32, "N: 8 to 256 columns");
  static_assert(detail::kProduct<T> != ~0u, "T: __half, __nv_bfloat16 or __nv_fp8_e4m3");
  __kiln_warpgroup_mma_t product = {&d[0][0], rows.bits, columns.bits};
  product.n = 8 * kTiles;
  product.type = detail::kProduct<T>;
  product.zero = !adding;
  product.a_by_row = rows_lie == Lies::across;
  product.b_by_row = columns_lie == Lies::across;
  __kiln_serve(__kiln_warpgroup_mma, &product);
}

}  // namespace kiln::hopper
