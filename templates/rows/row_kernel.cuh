// Device half of row_config.hpp: rows read by a block or a warp, and what its threads compute
// together.
#pragma once

#include "../device/elements.cuh"
#include "row_config.hpp"

namespace kiln::templates {

template <RowConfig c, class T>
__device__ constexpr void check_row_config() {
  static_assert((c.block & (c.block - 1)) == 0 && c.block >= 32 && c.block <= 1024,
                "block: a power of two from 32 to 1024 threads");
  static_assert(c.rows_per_block == 1 || c.rows_per_block * 32 == c.block,
                "rows_per_block: 1, or a warp (32 threads) per row");
  static_assert((c.vector & (c.vector - 1)) == 0 && c.vector * sizeof(T) <= 16,
                "vector: a power of two of elements, at most 16 bytes");
  static_assert(c.kept >= 1, "kept: at least one access per thread");
}

/// Calls `f(row)` for each row of this thread. All threads of a block get the same rows where a
/// block has one at a time, so that `f` may have barriers.
template <RowConfig c, class F>
__device__ void each_row(int rows, F f) {
  const unsigned warp = c.rows_per_block > 1 ? threadIdx.x / 32 : 0;
  long long row = static_cast<long long>(blockIdx.x) * c.rows_per_block + warp;
  if constexpr (c.persistent) {
    for (; row < rows; row += static_cast<long long>(gridDim.x) * c.rows_per_block) f(row);
  } else {
    if (c.rows_per_block == 1 || row < rows) f(row);
  }
}

/// Elements between `address` and the last one before it that is aligned to `N` elements.
template <int N, class T>
__device__ unsigned misalignment(const T* address) {
  return static_cast<unsigned>(reinterpret_cast<unsigned long long>(address) / sizeof(T)) & (N - 1);
}

/// Whether elements of the same place are aligned alike in both arrays.
template <int N, class A, class B>
__device__ bool aligned_alike(const A* a, const B* b) {
  return misalignment<N>(a) == misalignment<N>(b);
}

/// `N` elements, in one access if they are aligned.
template <int N, class T>
__device__ Pack<T, N> load_any(const T* address) {
  if constexpr (N > 1) {
    if (misalignment<N>(address) != 0) {
      Pack<T, N> pack;
#pragma unroll
      for (int e = 0; e < N; ++e) pack.value[e] = address[e];
      return pack;
    }
  }
  return load_pack<N>(address);
}

/// Elements of two bytes stay packed between the passes: the compiler would keep them as floats.
template <class T, int N>
__device__ void stay_packed(Pack<T, N>& pack) {
#ifndef KILN_HOST_TARGET
  if constexpr (sizeof(T) == 2 && N > 1) {
    auto& words = reinterpret_cast<unsigned(&)[N / 2]>(pack);
#pragma unroll
    for (int w = 0; w < N / 2; ++w) asm volatile("" : "+r"(words[w]));
  }
#endif
}

/// A row in accesses of `kVector` elements, of which `kKept` per thread are read at once and stay in
/// registers.
template <RowConfig c, int kVector, int kKept, class T>
class Row {
  static constexpr unsigned kThreads = c.threads_per_row(), kStep = kThreads * kVector;
  static constexpr int kInFlight = 4;  // accesses of what is not kept

 public:
  __device__ Row(const T* x, int columns)
      : x_(x), columns_(static_cast<unsigned>(columns)), thread_(threadIdx.x % kThreads) {
    const unsigned before = (kVector - misalignment<kVector>(x)) & (kVector - 1);
    head_ = before < columns_ ? before : columns_;
    end_ = head_ + (columns_ - head_) / kVector * kVector;
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (place(i) < end_) kept_[i] = load_pack<kVector>(x + place(i));
  }

  /// `f(pack, h)` for each pack of this thread; its first element is x[h].
  template <class F>
  __device__ void each(F f) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) stay_packed(kept_[i]);
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (place(i) < end_) f(static_cast<const Pack<T, kVector>&>(kept_[i]), place(i));
    unsigned h = place(kKept);
    for (; h + (kInFlight - 1) * kStep < end_; h += kInFlight * kStep) {
      Pack<T, kVector> packs[kInFlight];
#pragma unroll
      for (unsigned j = 0; j < kInFlight; ++j) packs[j] = load_pack<kVector>(x_ + h + j * kStep);
#pragma unroll
      for (unsigned j = 0; j < kInFlight; ++j) f(packs[j], h + j * kStep);
    }
    for (; h < end_; h += kStep) f(load_pack<kVector>(x_ + h), h);
    each_edge([&](unsigned e) { f(load_pack<1>(x_ + e), e); });
  }

  /// `f(pack, pack of other, h)` for each; `other` lies in memory as this row does. What `f` makes of
  /// a pack is what later passes see. It must store the pack to x, too, because not all are kept.
  template <class F>
  __device__ void join(const Row& other, F f) {
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (place(i) < end_) f(kept_[i], other.kept_[i], place(i));
    unsigned h = place(kKept);
    for (; h + kStep < end_; h += 2 * kStep) {
      Pack<T, kVector> a[2], b[2];
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) {
        a[j] = load_pack<kVector>(x_ + h + j * kStep);
        b[j] = load_pack<kVector>(other.x_ + h + j * kStep);
      }
#pragma unroll
      for (unsigned j = 0; j < 2; ++j) f(a[j], b[j], h + j * kStep);
    }
    if (h < end_) {
      Pack<T, kVector> pack = load_pack<kVector>(x_ + h);
      f(pack, load_pack<kVector>(other.x_ + h), h);
    }
    each_edge([&](unsigned e) {
      Pack<T, 1> pack = load_pack<1>(x_ + e);
      f(pack, load_pack<1>(other.x_ + e), e);
    });
  }

 private:
  /// Where this thread's i-th access begins.
  __device__ unsigned place(int i) const {
    return head_ + thread_ * kVector + static_cast<unsigned>(i) * kStep;
  }
  /// The elements around the whole accesses: at most one of each side per thread.
  template <class F>
  __device__ void each_edge(F f) const {
    if constexpr (kVector > 1) {
      if (thread_ < head_) f(thread_);
      if (end_ + thread_ < columns_) f(end_ + thread_);
    }
  }

  const T* x_;
  unsigned columns_, thread_, head_, end_;
  Pack<T, kVector> kept_[kKept > 0 ? kKept : 1];
};

/// Calls `f(row)` with a Row& of x: of the config's accesses if `other`, which has one element per
/// element of x, is aligned alike; else element by element.
template <RowConfig c, class T, class U, class F>
__device__ void with_row(const T* x, const U* other, int columns, F f) {
  if (aligned_alike<c.vector>(x, other)) {
    Row<c, c.vector, c.kept, T> row(x, columns);
    f(row);
  } else {
    Row<c, 1, 0, T> row(x, columns);
    f(row);
  }
}

/// What threads combine: `N` numbers each.
template <int N>
struct Statistics {
  float value[N];
};

struct Sum {
  __device__ Statistics<1> operator()(const Statistics<1>& a, const Statistics<1>& b) const {
    return {{a.value[0] + b.value[0]}};
  }
};
/// NaNs do not count.
struct Largest {
  __device__ Statistics<1> operator()(const Statistics<1>& a, const Statistics<1>& b) const {
    return {{fmaxf(a.value[0], b.value[0])}};
  }
};

template <int kLanes, int N, class Combine>
__device__ Statistics<N> over_lanes(Statistics<N> mine, Combine combine) {
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) {
    Statistics<N> other;
#pragma unroll
    for (int i = 0; i < N; ++i) other.value[i] = __shfl_xor_sync(0xffffffffu, mine.value[i], lane);
    mine = combine(mine, other);
  }
  return mine;
}

/// Combines the statistics of a row's threads; all of them get the result. A kernel has one `turn`
/// for all calls: it alternates, so that a warp may be ahead by one call.
template <RowConfig c, int N, class Combine>
__device__ Statistics<N> over_row(Statistics<N> mine, unsigned& turn, Combine combine) {
  mine = over_lanes<32>(mine, combine);
  if constexpr (c.warps_per_row() > 1) {
    constexpr unsigned kWarps = c.warps_per_row();
    __shared__ Statistics<N> of_warp[2][kWarps];
    if (threadIdx.x % 32 == 0) of_warp[turn][threadIdx.x / 32] = mine;
    __syncthreads();
    mine = over_lanes<kWarps>(of_warp[turn][threadIdx.x % kWarps], combine);
    turn ^= 1;
  }
  return mine;
}

template <RowConfig c>
__device__ float sum_over_row(float mine, unsigned& turn) {
  return over_row<c>(Statistics<1>{{mine}}, turn, Sum{}).value[0];
}
template <RowConfig c>
__device__ float largest_over_row(float mine, unsigned& turn) {
  return over_row<c>(Statistics<1>{{mine}}, turn, Largest{}).value[0];
}

}  // namespace kiln::templates
