// What is right for gemm_experts_gather.hpp and gemm_experts_combine.hpp on the data that tunings
// use, as their kernels' device_reference. A rank computes it alone.
#pragma once

#include "../grouped/gemm_grouped.cuh"
#include "../peers/gemm_peers_reference.cuh"
#include "gemm_experts.hpp"

namespace kiln::templates {

template <Gemm c, class T>
__global__ void experts_gather_reference(T* out, const T* a, const T* b, const T* all,
                                         const int* tokens, const int* ends, const Peers* peers,
                                         int m, int n, int k, int groups, int top, int ranks,
                                         Workspace workspace) {
  const ExpertsProblem p{m, n, k, groups, top, ranks};
  T* const rows = static_cast<T*>(workspace.scratch);
  for_each_of(static_cast<long long>(p.rows()) * k, [&](long long i) {
    const int token = tokens[i / k];
    const long long element = static_cast<long long>(token % m) * k + i % k;
    const bool counts = token >= 0 && token < m * ranks;
    rows[i] =
        from_float<T>(counts ? element_of_rank(token / m, static_cast<unsigned>(element)) : 0.0f);
  });
}
template <Gemm c, class T>
__global__ void __launch_bounds__(c.threads())
    experts_gather_reference_multiply(T* out, const T* a, const T* b, const T* all,
                                      const int* tokens, const int* ends, const Peers* peers, int m,
                                      int n, int k, int groups, int top, int ranks,
                                      Workspace workspace) {
  gemm_grouped_body<c, T, GroupLayout::contiguous>(
      out, static_cast<const T*>(workspace.scratch), b, ends,
      experts_shape({m, n, k, groups, top, ranks}), StoreSum{});
}

template <Gemm c, class T>
__global__ void experts_combine_reference(T* out, const T* a, const T* b, const int* ends,
                                          const int* places, const float* weights,
                                          const Peers* peers, int m, int n, int k, int groups,
                                          int top, int ranks, Workspace workspace) {
  const ExpertsProblem p{m, n, k, groups, top, ranks};
  const ExpertsReferenceParts parts(p);
  T* const of_all = static_cast<T*>(workspace.scratch);
  const long long of_a = static_cast<long long>(p.rows()) * k,
                  of_b = static_cast<long long>(groups) * n * k;
  for (int r = 0; r < ranks; ++r) {
    make_elements(of_all + r * of_a, r, 0, of_a);
    make_elements(of_all + parts.a + r * of_b, r + ranks, 0, of_b);
  }
  int* const all_ends = reinterpret_cast<int*>(of_all + parts.a + parts.b + parts.products);
  for_each_of(static_cast<long long>(groups) * ranks, [&](long long i) {
    const int end = ends[i % groups];
    all_ends[i] = static_cast<int>(i / groups) * p.rows() + (end < p.rows() ? end : p.rows());
  });
}
template <Gemm c, class T>
__global__ void __launch_bounds__(c.threads())
    experts_combine_reference_multiply(T* out, const T* a, const T* b, const int* ends,
                                       const int* places, const float* weights, const Peers* peers,
                                       int m, int n, int k, int groups, int top, int ranks,
                                       Workspace workspace) {
  const ExpertsProblem p{m, n, k, groups, top, ranks};
  const ExpertsReferenceParts parts(p);
  T* const of_all = static_cast<T*>(workspace.scratch);
  T* const products = of_all + parts.a + parts.b;
  const GroupedProblem all = all_products(p);
  gemm_grouped_body<c, T, GroupLayout::contiguous>(
      products, static_cast<const T*>(of_all), static_cast<const T*>(of_all + parts.a),
      reinterpret_cast<const int*>(products + parts.products),
      grouped_shape(all.m, all.n, all.k, all.groups, false), StoreSum{});
}
template <Gemm c, class T>
__global__ void experts_combine_reference_add(T* out, const T* a, const T* b, const int* ends,
                                              const int* places, const float* weights,
                                              const Peers* peers, int m, int n, int k, int groups,
                                              int top, int ranks, Workspace workspace) {
  const ExpertsProblem p{m, n, k, groups, top, ranks};
  const ExpertsReferenceParts parts(p);
  const T* const products = static_cast<const T*>(workspace.scratch) + parts.a + parts.b;
  for_each_of(static_cast<long long>(m) * n, [&](long long i) {
    const long long token = static_cast<long long>(peers->rank) * m + i / n;
    float total = 0;
    for (int r = 0; r < ranks; ++r) {
      float sum = 0;
      for (int e = 0; e < top; ++e) {
        const int place = places[token * top + e];
        if (place < 0 || place >= p.rows()) continue;
        const long long row = static_cast<long long>(r) * p.rows() + place;
        sum += weights[token * top + e] * to_float(products[row * n + i % n]);
      }
      total += to_float(from_float<T>(sum));
    }
    out[i] = from_float<T>(total);
  });
}

}  // namespace kiln::templates
