// Part of gemm_experts_combine.cuh: what a token's experts have computed, weighted and added.
#pragma once

#include "../../device/elements.cuh"
#include "gemm_experts.hpp"

namespace kiln::templates {

template <class T, int wide>
__device__ __forceinline__ void add_pack(float (&sums)[wide], const Pack<T, wide>& part,
                                         float weight = 1) {
#pragma unroll
  for (int e = 0; e < wide; ++e) sums[e] += weight * to_float(part.value[e]);
}
template <class T, int wide>
__device__ __forceinline__ Pack<T, wide> rounded(const float (&sums)[wide]) {
  Pack<T, wide> pack;
#pragma unroll
  for (int e = 0; e < wide; ++e) pack.value[e] = from_float<T>(sums[e]);
  return pack;
}
/// Past the L1 cache, which does not see what other multiprocessors and GPUs store meanwhile.
template <int wide, class T>
__device__ __forceinline__ Pack<T, wide> load_past_l1(const T* from) {
#ifndef KILN_HOST_TARGET
  if constexpr (sizeof(Pack<T, wide>) == 16) {
    const uint4 word = __ldcg(reinterpret_cast<const uint4*>(from));
    return reinterpret_cast<const Pack<T, wide>&>(word);
  }
#endif
  return load_pack<wide>(from);
}

/// One of the threads that add, and their number.
struct WorkingThreads {
  unsigned index, count;
};
struct Columns {
  int begin, end;
};

template <class T>
struct ExpertSums {
  const T* products;  // [rows][n]
  const int* places;
  const float* weights;
  const ExpertsProblem& p;

  /// Calls use(i, column, sums) for `wide` columns of the i-th of the m tokens from `first` on, as
  /// many times as are the thread's.
  template <int wide, class Use>
  __device__ __forceinline__ void add(int first, const Columns& columns,
                                      const WorkingThreads& threads, Use use) const {
    constexpr int kInFlight = wide == 1 ? 1 : 4;  // pieces of a thread
    const auto across = static_cast<unsigned>(columns.end - columns.begin) / wide;
    const unsigned all = across * static_cast<unsigned>(p.m);
    const int rows = p.rows();
#pragma unroll 1
    for (unsigned at = threads.index; at < all; at += kInFlight * threads.count) {
      float sums[kInFlight][wide] = {};
      int token[kInFlight], column[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        const unsigned piece = min(at + i * threads.count, all - 1);
        token[i] = static_cast<int>(piece / across);
        column[i] = columns.begin + static_cast<int>(piece % across) * wide;
      }
#pragma unroll 1
      for (int expert = 0; expert < p.top; ++expert) {
        bool counts[kInFlight];
        float weight[kInFlight];
        Pack<T, wide> part[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          const long long choice = static_cast<long long>(first + token[i]) * p.top + expert;
          const int place = places[choice];
          counts[i] = place >= 0 && place < rows;
          weight[i] = weights[choice];
          part[i] = load_past_l1<wide>(
              products + static_cast<long long>(counts[i] ? place : 0) * p.n + column[i]);
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i)
          if (counts[i]) add_pack(sums[i], part[i], weight[i]);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i)
        if (at + i * threads.count < all) use(token[i], column[i], sums[i]);
    }
  }
};

}  // namespace kiln::templates
