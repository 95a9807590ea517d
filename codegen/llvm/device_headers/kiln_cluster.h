// What Hopper has beyond warps and blocks, as the host target's scheduler of clusters knows it:
// clusters, mbarriers, named barriers, asynchronous copies, products of warpgroups.
#pragma once

#include "cuda_runtime.h"

// The numbers of kiln::codegen::SuspendKind and HostService.
enum : unsigned {
  __kiln_mbarrier_wait_kind = 7,
  __kiln_mbarrier_test_kind = 8,
  __kiln_cluster_wait_kind = 9,
  __kiln_named_sync_kind = 10,
  __kiln_named_arrive_kind = 11,
  __kiln_warpgroup_wait_kind = 12,
};
enum : unsigned {
  __kiln_map_shared = 0,
  __kiln_shared_address = 1,
  __kiln_shared_pointer = 2,
  __kiln_mbarrier_init = 3,
  __kiln_mbarrier_inval = 4,
  __kiln_mbarrier_arrive = 5,
  __kiln_mbarrier_expect = 6,
  __kiln_mbarrier_complete = 7,
  __kiln_cluster_arrive = 8,
  __kiln_bulk_copy = 9,
  __kiln_bulk_commit = 10,
  __kiln_bulk_wait = 11,
  __kiln_warpgroup_mma = 12,
  __kiln_warpgroup_commit = 13,
};
enum : unsigned {
  __kiln_bulk_load = 0,
  __kiln_bulk_load_shared = 1,
  __kiln_bulk_store = 2,
  __kiln_bulk_add = 3,
  __kiln_bulk_minimum = 4,
  __kiln_bulk_maximum = 5,
  __kiln_bulk_prefetch = 6,
};
// kiln::codegen::kOnlyRead.
constexpr unsigned long long __kiln_only_read = 1ull << 32;

// kiln::codegen::HostBulkCopy and HostWarpgroupMma.
struct __kiln_bulk_copy_t {
  const void* map;
  void* shared;
  void* other;
  void* barrier;
  int at[5];
  unsigned kind, bytes, type, multicast, coordinates;
};
static_assert(sizeof(__kiln_bulk_copy_t) == 72);
struct __kiln_warpgroup_mma_t {
  float* d;
  unsigned long long a, b;
  unsigned n, type, zero, a_by_row, b_by_row, negate, a_in_registers, reserved;
  unsigned rows[2][8];
};
static_assert(sizeof(__kiln_warpgroup_mma_t) == 120);

__kiln_inline unsigned long long __kiln_serve(unsigned service, const void* p = nullptr,
                                              unsigned long long x = 0) {
  return __kiln_service(service, p, x);
}

// --- clusters

__kiln_inline unsigned __kiln_cluster_rank() {
  return (__kiln_cluster_index(2) * __kiln_cluster_dim(1) + __kiln_cluster_index(1)) *
             __kiln_cluster_dim(0) +
         __kiln_cluster_index(0);
}
__kiln_inline unsigned __kiln_cluster_size() {
  return __kiln_cluster_dim(0) * __kiln_cluster_dim(1) * __kiln_cluster_dim(2);
}
__kiln_inline void __kiln_cluster_wait() { __kiln_suspend(__kiln_cluster_wait_kind, ~0u); }
template <class T>
__kiln_inline T* __kiln_at_block(T* shared, unsigned rank) {
  return (T*)__kiln_serve(__kiln_map_shared, (const void*)shared, rank);
}

// --- barriers

// A thread sends what it waits for, then suspends.
__kiln_inline void __kiln_mbarrier_wait(const void* barrier, unsigned parity) {
  __kiln_send64((unsigned long long)barrier);
  __kiln_send32(parity & 1);
  __kiln_suspend(__kiln_mbarrier_wait_kind, ~0u);
}
__kiln_inline bool __kiln_mbarrier_test(const void* barrier, unsigned parity) {
  __kiln_send64((unsigned long long)barrier);
  __kiln_send32(parity & 1);
  __kiln_suspend(__kiln_mbarrier_test_kind, ~0u);
  return __kiln_receive32(__kiln_linear_thread()) != 0;
}
__kiln_inline unsigned __kiln_named(unsigned id, unsigned threads) {
  return (id < 255 ? id : 255) | threads << 8;
}
__kiln_inline void __kiln_named_sync(unsigned id, unsigned threads) {
  __kiln_send32(__kiln_named(id, threads));
  __kiln_suspend(__kiln_named_sync_kind, ~0u);
}
__kiln_inline void __kiln_named_arrive(unsigned id, unsigned threads) {
  __kiln_send32(__kiln_named(id, threads));
  __kiln_suspend(__kiln_named_arrive_kind, ~0u);
}

__kiln_inline void __kiln_warpgroup_wait(unsigned pending) {
  __kiln_send32(pending);
  __kiln_suspend(__kiln_warpgroup_wait_kind, ~0u);
}

// --- 8x8 matrices of two-byte elements between registers and shared memory

// Lane 8q + r has the address of row r of matrix q. Rows are read before any lane goes on.
template <bool transposed, int count>
__kiln_inline void __kiln_load_matrices(unsigned (&m)[count], const void* row) {
  const unsigned lane = __kiln_lane(), base = __kiln_warp_base();
  unsigned long long halves[2] = {};
  if (lane < 8 * count) __builtin_memcpy(halves, row, 16);
  unsigned words[2][count][2];  // by half of the rows, matrix, row of the lane's pair of rows
  for (int half = 0; half < 2; ++half) {
    __kiln_send64(halves[half]);
    __kiln_suspend(__kiln_warp_exchange64, ~0u);
    for (int q = 0; q < count; ++q)
      for (unsigned i = 0; i < 2; ++i) {
        const unsigned r = transposed ? lane % 4 * 2 + i : lane / 4;
        const unsigned word = transposed ? lane / 8 : lane % 4;
        words[half][q][i] = (unsigned)(__kiln_receive64(base + 8 * q + r) >> (word % 2 * 32));
      }
  }
  for (int q = 0; q < count; ++q) {
    if constexpr (transposed) {
      const unsigned half = lane / 16, shift = lane / 4 % 2 * 16;
      m[q] = (words[half][q][0] >> shift & 0xffffu) | (words[half][q][1] >> shift) << 16;
    } else {
      m[q] = words[lane % 4 / 2][q][0];
    }
  }
}
template <bool transposed, int count>
__kiln_inline void __kiln_store_matrices(void* row, const unsigned (&m)[count]) {
  const unsigned lane = __kiln_lane(), base = __kiln_warp_base();
  __kiln_send64((unsigned long long)row);
  __kiln_suspend(__kiln_warp_exchange64, ~0u);
  for (int q = 0; q < count; ++q) {
    if constexpr (transposed) {
      for (unsigned i = 0; i < 2; ++i) {
        auto* to = (unsigned short*)__kiln_receive64(base + 8 * q + lane % 4 * 2 + i);
        to[lane / 4] = (unsigned short)(m[q] >> (16 * i));
      }
    } else {
      ((unsigned*)__kiln_receive64(base + 8 * q + lane / 4))[lane % 4] = m[q];
    }
  }
}
// The same matrix with rows and columns exchanged.
__kiln_inline unsigned __kiln_transpose_matrix(unsigned m) {
  const unsigned lane = __kiln_lane(), base = __kiln_warp_base();
  __kiln_send32(m);
  __kiln_suspend(__kiln_warp_exchange32, ~0u);
  unsigned t = 0;
  for (unsigned i = 0; i < 2; ++i) {
    const unsigned from = __kiln_receive32(base + (lane % 4 * 2 + i) * 4 + lane / 8);
    t |= (from >> (lane / 4 % 2 * 16) & 0xffffu) << (16 * i);
  }
  return t;
}
