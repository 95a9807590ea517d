// What is right for gemm_all_gather.hpp and gemm_reduce_scatter.hpp on the data that tunings use, as
// their kernels' device_reference. A rank computes it alone: it makes the elements of all ranks.
#pragma once

#include "../gemm.cuh"
#include "gemm_peers.hpp"
#include "kiln/peers.cuh"

namespace kiln::templates {

/// Calls use(i) for the thread's part of [0, count).
template <class Use>
__device__ __forceinline__ void for_each_of(long long count, Use use) {
  const auto threads = static_cast<long long>(gridDim.x) * blockDim.x;
  for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += threads)
    use(i);
}
/// Writes elements [first, first + count) of a rank.
template <class T>
__device__ __forceinline__ void make_elements(T* to, int rank, long long first, long long count) {
  for_each_of(count, [&](long long i) {
    to[i] = from_float<T>(element_of_rank(rank, static_cast<unsigned>(first + i)));
  });
}

template <Gemm c, class T>
__global__ void all_gather_reference(T* out, const T* own, const T* b, const T* all, const T* a,
                                     const Peers* peers, int m, int n, int k, int ranks,
                                     Workspace workspace) {
  const long long count = static_cast<long long>(m) * k;
  for (int r = 0; r < ranks; ++r)
    make_elements(static_cast<T*>(workspace.scratch) + r * count, r, 0, count);
}
template <Gemm c, class T>
__global__ void __launch_bounds__(c.threads())
    all_gather_reference_multiply(T* out, const T* own, const T* b, const T* all, const T* a,
                                  const Peers* peers, int m, int n, int k, int ranks,
                                  Workspace workspace) {
  constexpr auto kOp = GemmTranspose::nt;
  gemm_body<c, kOp, T>(out, static_cast<const T*>(workspace.scratch), b,
                       gemm_shape<kOp>(all_ranks({m, n, k, ranks})), StoreSum{});
}

template <Gemm c, class T>
__global__ void reduce_scatter_reference(T* out, const T* a, const T* b, T* shared,
                                         const Peers* peers, int m, int n, int k, int ranks,
                                         Workspace workspace) {
  const ReferenceParts parts({m, n, k, ranks});
  T* const to = static_cast<T*>(workspace.scratch);
  const long long of_a = static_cast<long long>(m) * k, of_b = static_cast<long long>(n) * k;
  for (int r = 0; r < ranks; ++r) {
    make_elements(to + r * of_a, r, peers->rank * of_a, of_a);
    make_elements(to + parts.a + r * of_b, r + ranks, 0, of_b);
  }
}
template <Gemm c, class T>
__global__ void __launch_bounds__(c.threads())
    reduce_scatter_reference_multiply(T* out, const T* a, const T* b, T* shared, const Peers* peers,
                                      int m, int n, int k, int ranks, Workspace workspace) {
  const PeerGemmProblem p{m, n, k, ranks};
  const ReferenceParts parts(p);
  T* const of_all = static_cast<T*>(workspace.scratch);
  gemm_body<c, GemmTranspose::nt, T>(of_all + parts.a + parts.b, static_cast<const T*>(of_all),
                                     static_cast<const T*>(of_all + parts.a), by_part(p),
                                     StoreSum{});
}
template <Gemm c, class T>
__global__ void reduce_scatter_reference_add(T* out, const T* a, const T* b, T* shared,
                                             const Peers* peers, int m, int n, int k, int ranks,
                                             Workspace workspace) {
  const ReferenceParts parts({m, n, k, ranks});
  const T* const sums = static_cast<const T*>(workspace.scratch) + parts.a + parts.b;
  const long long count = static_cast<long long>(m) * n;
  for_each_of(count, [&](long long i) {
    float total = 0;
    for (int r = 0; r < ranks; ++r) total += to_float(sums[r * count + i]);
    out[i] = from_float<T>(total);
  });
}

}  // namespace kiln::templates
