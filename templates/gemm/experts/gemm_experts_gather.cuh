// Device half of gemm_experts_gather.hpp: the entries.
#pragma once

#include "../grouped/gemm_grouped.cuh"
#include "../peers/gemm_peers.cuh"
#include "gemm_experts_gather.hpp"
#ifndef KILN_HOST_TARGET
#include "gemm_experts_gather_tma.cuh"
#endif

namespace kiln::templates {

/// Copies the rank's tokens to their rows on all ranks, a warp for each row; the last block waits
/// for the other ranks.
template <class T>
__device__ __forceinline__ void gather_expert_rows(const T* a, const int* tokens,
                                                   const Peers& peers, const ExpertsProblem& p) {
  const PeerOperation<1, kExpertChunks> operation(peers);
  // Each block says it: on the host, another one may begin only when this one has ended.
  if (threadIdx.x == 0) operation.say_ready();
  constexpr int kWide = 16 / sizeof(T), kWarp = 32;
  const bool wide = p.k % kWide == 0 && aligned(16, a);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto warps = static_cast<int>(gridDim.x * blockDim.x / kWarp);
  const auto warp = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) / kWarp);
  bool given_up = false;
  for (int distance = 0; distance < peers.size; ++distance) {
    const int to = rank_before(peers, distance);
    if (distance > 0) {
      const bool there = given_up || threadIdx.x != 0 || operation.wait_until_ready(to);
      given_up = __syncthreads_or(!there) != 0 || given_up;
    }
    if (given_up) continue;
    T* const gathered = static_cast<T*>(peer_data(peers, to));
    for (int row = warp; row < p.rows(); row += warps) {
      const long long own = static_cast<long long>(tokens[row]) - peers.rank * p.m;
      if (own < 0 || own >= p.m) continue;
      const T* const from = a + own * p.k;
      T* const its = gathered + static_cast<long long>(row) * p.k;
      if (wide)
        for (int l = lane; l < p.k / kWide; l += kWarp)
          reinterpret_cast<uint4*>(its)[l] = reinterpret_cast<const uint4*>(from)[l];
      else
        for (int l = lane; l < p.k; l += kWarp) its[l] = from[l];
    }
  }
  end_exchange(operation, peers, given_up);
}

/// The whole operation with c.overlap, else its first half. `all`: the gathered rows. Dynamic
/// shared memory with c.overlap: expert_gathering_bytes(c).
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.overlap ? c.gemm().threads() : c.kCopyThreads, 1)
    gemm_experts_gather(T* out, const T* a,
                        const __grid_constant__ GemmArgument<c.maps(), const T> b,
                        const __grid_constant__ GemmArgument<c.maps(), const T> all,
                        const int* tokens, const int* ends, const Peers* peers, int m, int n, int k,
                        int groups, int top, int ranks) {
  const ExpertsProblem p{m, n, k, groups, top, ranks};
  if constexpr (c.overlap) {
#ifndef KILN_HOST_TARGET
    experts_gather_tma_body<c>(out, a, b, all, tokens, ends, *peers, p);
#endif
  } else {
    gather_expert_rows(a, tokens, *peers, p);
  }
}

/// The second half.
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.gemm().threads(), c.gemm().plain() ? 0 : 1)
    gemm_experts_gather_multiply(T* out, const T* a,
                                 const __grid_constant__ GemmArgument<c.maps(), const T> b,
                                 const __grid_constant__ GemmArgument<c.maps(), const T> all,
                                 const int* tokens, const int* ends, const Peers* peers, int m,
                                 int n, int k, int groups, int top, int ranks) {
  gemm_grouped_body<c.gemm(), T, GroupLayout::contiguous>(
      out, all, b, ends, experts_shape({m, n, k, groups, top, ranks}), StoreSum{});
}

}  // namespace kiln::templates
