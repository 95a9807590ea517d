// Device half of gemm_experts_combine.hpp: the entries.
#pragma once

#include "../grouped/gemm_grouped.cuh"
#include "../peers/gemm_peers.cuh"
#include "gemm_expert_sums.cuh"
#include "gemm_experts_combine.hpp"
#include "kiln/workspace.cuh"
#ifndef KILN_HOST_TARGET
#include "gemm_experts_combine_tma.cuh"
#endif

namespace kiln::templates {

/// Adds for each token what its experts have computed here, and leaves the sums with the token's
/// rank; the last block waits for the other ranks.
template <class T>
__device__ __forceinline__ void send_expert_sums(const T* products, const int* places,
                                                 const float* weights, const Peers& peers,
                                                 const ExpertsProblem& p) {
  const PeerOperation<1, kExpertChunks> operation(peers);
  // Each block says it: on the host, another one may begin only when this one has ended.
  if (threadIdx.x == 0) operation.say_ready();
  const ExpertSums<T> sums{products, places, weights, p};
  const WorkingThreads all{blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
  bool given_up = false;
  for (int distance = 1; distance <= peers.size; ++distance) {
    const int to = rank_after(peers, distance);
    if (distance < peers.size) {
      const bool there = given_up || threadIdx.x != 0 || operation.wait_until_ready(to);
      given_up = __syncthreads_or(!there) != 0 || given_up;
    }
    if (given_up) continue;
    T* const its =
        static_cast<T*>(peer_data(peers, to)) + static_cast<long long>(peers.rank) * p.m * p.n;
    const auto send = [&]<int wide>(Pack<T, wide>*) {
      sums.template add<wide>(to * p.m, {0, p.n}, all, [&](int row, int column, const auto& sum) {
        store_pack(its + static_cast<long long>(row) * p.n + column, rounded<T>(sum));
      });
    };
    constexpr int kWide = 16 / sizeof(T);
    if (p.n % kWide == 0)
      send(static_cast<Pack<T, kWide>*>(nullptr));
    else
      send(static_cast<Pack<T, 1>*>(nullptr));
  }
  end_exchange(operation, peers, given_up);
}

/// Adds the sums that all ranks have sent here.
template <class T>
__device__ __forceinline__ void add_expert_sums(T* out, const Peers& peers,
                                                const ExpertsProblem& p) {
  const long long count = static_cast<long long>(p.m) * p.n;
  const T* const sent = static_cast<const T*>(peer_data(peers, peers.rank));
  const auto add = [&]<int wide>(Pack<T, wide>*, long long i) {
    float sums[wide] = {};
    for (int r = 0; r < peers.size; ++r)
      add_pack(sums, load_pack<wide>(sent + rank_after(peers, r) * count + i));
    store_pack(out + i, rounded<T>(sums));
  };
  const auto threads = static_cast<long long>(gridDim.x) * blockDim.x;
  const auto thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  constexpr int kWide = 16 / sizeof(T);
  if (count % kWide == 0 && aligned(16, out))
    for (long long i = thread * kWide; i < count; i += threads * kWide)
      add(static_cast<Pack<T, kWide>*>(nullptr), i);
  else
    for (long long i = thread; i < count; i += threads) add(static_cast<Pack<T, 1>*>(nullptr), i);
}

/// The whole operation with c.overlap, else its first third, which leaves what experts compute in
/// the workspace. Dynamic shared memory: that of the GEMM.
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.gemm().threads(), c.gemm().plain() ? 0 : 1)
    gemm_experts_combine(T* out, const __grid_constant__ GemmArgument<c.maps(), const T> a,
                         const __grid_constant__ GemmArgument<c.maps(), const T> b, const int* ends,
                         const int* places, const float* weights, const Peers* peers, int m, int n,
                         int k, int groups, int top, int ranks, Workspace workspace) {
  const ExpertsProblem p{m, n, k, groups, top, ranks};
  if constexpr (c.overlap) {
#ifndef KILN_HOST_TARGET
    experts_combine_tma_body<c>(out, a, b, ends, places, weights, *peers, p, workspace);
#endif
  } else {
    gemm_grouped_body<c.gemm(), T, GroupLayout::contiguous>(static_cast<T*>(workspace.scratch), a,
                                                            b, ends, experts_shape(p), StoreSum{});
  }
}

/// The second third.
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.kCopyThreads)
    gemm_experts_combine_send(T* out, const __grid_constant__ GemmArgument<c.maps(), const T> a,
                              const __grid_constant__ GemmArgument<c.maps(), const T> b,
                              const int* ends, const int* places, const float* weights,
                              const Peers* peers, int m, int n, int k, int groups, int top,
                              int ranks, Workspace workspace) {
  send_expert_sums(static_cast<const T*>(workspace.scratch), places, weights, *peers,
                   {m, n, k, groups, top, ranks});
}

/// The last third.
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.kCopyThreads)
    gemm_experts_combine_add(T* out, const __grid_constant__ GemmArgument<c.maps(), const T> a,
                             const __grid_constant__ GemmArgument<c.maps(), const T> b,
                             const int* ends, const int* places, const float* weights,
                             const Peers* peers, int m, int n, int k, int groups, int top,
                             int ranks, Workspace workspace) {
  add_expert_sums(out, *peers, {m, n, k, groups, top, ranks});
}

}  // namespace kiln::templates
