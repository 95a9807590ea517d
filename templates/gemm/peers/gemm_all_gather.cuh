// Device half of gemm_all_gather.hpp: the entries.
#pragma once

#include "../gemm.cuh"
#include "gemm_all_gather.hpp"
#include "gemm_peers.cuh"
#ifndef KILN_HOST_TARGET
#include "gemm_all_gather_tma.cuh"
#endif

namespace kiln::templates {

/// Copies [0, count) as one of `threads` threads.
template <class Word>
__device__ __forceinline__ void copy_words(Word* to, const Word* from, long long count,
                                           long long thread, long long threads) {
  constexpr int kInFlight = 4;
  long long i = thread;
#pragma unroll 1
  for (; i + (kInFlight - 1) * threads < count; i += kInFlight * threads) {
    Word words[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) words[j] = from[i + j * threads];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) to[i + j * threads] = words[j];
  }
#pragma unroll 1
  for (; i < count; i += threads) to[i] = from[i];
}

/// Gathers all rows: all threads copy, the last block waits for the other ranks.
template <class T>
__device__ __forceinline__ void gather_rows(const T* a, const Peers& peers,
                                            const PeerGemmProblem& p) {
  const PeerOperation<1> operation(peers);
  const long long count = static_cast<long long>(p.m) * p.k;
  constexpr int kWide = 16 / sizeof(T);
  const bool wide = p.k % kWide == 0 && aligned(16, a);
  // Each block says it: on the host, another one may begin only when this one has ended.
  if (threadIdx.x == 0) operation.say_ready();
  const auto threads = static_cast<long long>(gridDim.x) * blockDim.x;
  const auto thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  bool given_up = false;
  for (int distance = 0; distance < peers.size; ++distance) {
    const int to = rank_before(peers, distance);  // first the one that needs them first
    if (distance > 0) {
      const bool there = given_up || threadIdx.x != 0 || operation.wait_until_ready(to);
      given_up = __syncthreads_or(!there) != 0 || given_up;
    }
    if (given_up) continue;
    T* const shard = static_cast<T*>(peer_data(peers, to)) + peers.rank * count;
    if (wide)  // compilers take unrolled stores of eight elements apart, but no words
      copy_words(reinterpret_cast<uint4*>(shard), reinterpret_cast<const uint4*>(a), count / kWide,
                 thread, threads);
    else
      copy_words(shard, a, count, thread, threads);
  }
  end_exchange(operation, peers, given_up);
}

/// The whole operation with c.overlap, else its first half. `own` is what is multiplied of `a`,
/// which is what is sent. Dynamic shared memory with c.overlap: gathering_shared_bytes(c).
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.overlap ? c.gemm().threads() : c.kCopyThreads, 1)
    gemm_all_gather(const __grid_constant__ GemmArgument<c.maps(), T> out,
                    const __grid_constant__ GemmArgument<c.overlap, const T> own,
                    const __grid_constant__ GemmArgument<c.maps(), const T> b,
                    const __grid_constant__ GemmArgument<c.maps(), const T> all, const T* a,
                    const Peers* peers, int m, int n, int k, int ranks) {
  const PeerGemmProblem p{m, n, k, ranks};
  if constexpr (c.overlap) {
#ifndef KILN_HOST_TARGET
    all_gather_tma_body<c>(out, own, b, all, a, *peers, p);
#endif
  } else {
    gather_rows(a, *peers, p);
  }
}

/// The second half.
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.gemm().threads(), c.gemm().plain() ? 0 : 1)
    gemm_all_gather_multiply(const __grid_constant__ GemmArgument<c.maps(), T> out, const T* own,
                             const __grid_constant__ GemmArgument<c.maps(), const T> b,
                             const __grid_constant__ GemmArgument<c.maps(), const T> all,
                             const T* a, const Peers* peers, int m, int n, int k, int ranks) {
  constexpr auto kOp = GemmTranspose::nt;
  gemm_body<c.gemm(), kOp, T>(out, all, b, gemm_shape<kOp>(all_ranks({m, n, k, ranks})),
                              StoreSum{});
}

}  // namespace kiln::templates
