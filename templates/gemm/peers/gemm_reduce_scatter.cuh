// Device half of gemm_reduce_scatter.hpp: the entries.
#pragma once

#include "../gemm.cuh"
#include "gemm_peers.cuh"
#include "gemm_reduce_scatter.hpp"
#ifndef KILN_HOST_TARGET
#include "gemm_reduce_scatter_tma.cuh"
#endif

namespace kiln::templates {

/// Adds the sums that all ranks have of this rank's rows, each where that rank has computed them.
/// Flags: [0] a rank has its sums, [1] it has read those of others.
template <class T>
__device__ __forceinline__ void add_sums(T* out, const Peers& peers, const PeerGemmProblem& p) {
  const PeerOperation<1> operation(peers);
  // Each block says it: on the host, another one may begin only when this one has ended.
  if (threadIdx.x == 0) operation.say_ready();
  bool given_up = false;
  for (int i = 1; i < peers.size; ++i) {
    const bool there =
        given_up || threadIdx.x != 0 || operation.wait_until_ready(rank_after(peers, i));
    given_up = __syncthreads_or(!there) != 0 || given_up;
  }
  const long long count = static_cast<long long>(p.m) * p.n, first = peers.rank * count;
  const auto add = [&]<int N>(Pack<T, N>*, long long i) {
    float sums[N] = {};
    for (int r = 0; r < peers.size; ++r) {
      const Pack<T, N> part =
          load_pack<N>(static_cast<const T*>(peer_data(peers, rank_after(peers, r))) + first + i);
#pragma unroll
      for (int e = 0; e < N; ++e) sums[e] += to_float(part.value[e]);
    }
    Pack<T, N> sum;
#pragma unroll
    for (int e = 0; e < N; ++e) sum.value[e] = from_float<T>(sums[e]);
    store_pack(out + i, sum);
  };
  const auto threads = static_cast<long long>(gridDim.x) * blockDim.x;
  const auto thread = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  constexpr int kWide = 16 / sizeof(T);
  if (!given_up) {
    if (count % kWide == 0 && aligned(16, out))
      for (long long i = thread * kWide; i < count; i += threads * kWide)
        add(static_cast<Pack<T, kWide>*>(nullptr), i);
    else
      for (long long i = thread; i < count; i += threads) add(static_cast<Pack<T, 1>*>(nullptr), i);
  }
  // What others have not read yet must not be overwritten.
  end_exchange(operation, peers, given_up);
}

/// The whole operation with c.overlap, else its first half, which leaves the rank's sums of all
/// rows in `sums`. Dynamic shared memory: that of the GEMM.
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.gemm().threads(), c.gemm().plain() ? 0 : 1)
    gemm_reduce_scatter(T* out, const __grid_constant__ GemmArgument<c.maps(), const T> a,
                        const __grid_constant__ GemmArgument<c.maps(), const T> b,
                        const __grid_constant__ GemmArgument<c.maps() && !c.overlap, T> sums,
                        const Peers* peers, int m, int n, int k, int ranks) {
  const PeerGemmProblem p{m, n, k, ranks};
  constexpr auto kOp = GemmTranspose::nt;
  if constexpr (!c.overlap) {
    gemm_body<c.gemm(), kOp, T>(sums, a, b, gemm_shape<kOp>(all_ranks(p)), StoreSum{});
  } else {
#ifndef KILN_HOST_TARGET
    reduce_scatter_tma_body<c>(out, a, b, *peers, p);
#endif
  }
}

/// The second half.
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.kCopyThreads)
    gemm_reduce_scatter_add(T* out, const __grid_constant__ GemmArgument<c.maps(), const T> a,
                            const __grid_constant__ GemmArgument<c.maps(), const T> b,
                            const __grid_constant__ GemmArgument<c.maps() && !c.overlap, T> sums,
                            const Peers* peers, int m, int n, int k, int ranks) {
  add_sums(out, *peers, {m, n, k, ranks});
}

}  // namespace kiln::templates
