// Device half of row_config.hpp: rows read by a block or a warp, and what its threads compute
// together.
#pragma once

#include "../device/elements.cuh"
#include "kiln/hopper.cuh"
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
  static_assert(c.cluster == 1 || (c.rows_per_block == 1 && !c.persistent),
                "cluster: blocks of a cluster share one row, and do not walk");
  static_assert(c.stages == 0 || (c.persistent && c.vector * sizeof(T) == 16),
                "stages: of blocks that walk, by accesses of 16 bytes");
}

/// This thread's number among those of its row.
template <RowConfig c>
__device__ unsigned thread_of_row() {
  if constexpr (c.cluster > 1) return blockIdx.x % c.cluster * c.block + threadIdx.x;
  return threadIdx.x % c.threads_per_row();
}

/// The first row of this thread, and how far the next one is.
template <RowConfig c>
__device__ long long first_row() {
  const unsigned warp = c.rows_per_block > 1 ? threadIdx.x / 32 : 0;
  return static_cast<long long>(blockIdx.x / c.cluster) * c.rows_per_block + warp;
}
template <RowConfig c>
__device__ long long row_step() {
  return static_cast<long long>(gridDim.x) * c.rows_per_block;
}

/// Calls `f(row)` for each row of this thread. All threads of a block get the same rows where a
/// block has one at a time, so that `f` may have barriers.
template <RowConfig c, class F>
__device__ void each_row(int rows, F f) {
  long long row = first_row<c>();
  if constexpr (c.persistent) {
    for (; row < rows; row += row_step<c>()) f(row);
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

/// A row in accesses of `kVector` elements, of which `kKept` per thread are read at once and stay
/// in registers. `kWhole`: they are all of it, and aligned.
template <RowConfig c, int kVector, int kKept, class T, bool kWhole = false>
class Row {
  static constexpr unsigned kThreads = c.threads_per_row(), kStep = kThreads * kVector;
  // Accesses of what is not kept: as many as there are registers for.
  static constexpr int kInFlight = c.resident > 1024 ? 1 : c.resident > 512 ? 4 : 8;

 public:
  __device__ Row(const T* x, int columns)
      : x_(x), columns_(static_cast<unsigned>(columns)), thread_(thread_of_row<c>()) {
    if constexpr (c.cluster > 1) hopper::cluster_arrive();  // over_row waits for the others
    const unsigned before = kWhole ? 0 : (kVector - misalignment<kVector>(x)) & (kVector - 1);
    head_ = before < columns_ ? before : columns_;
    end_ = kWhole ? columns_ : head_ + (columns_ - head_) / kVector * kVector;
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (place(i) < end_) kept_[i] = load_pack<kVector>(x + place(i));
    if (columns_ > 0) first_ = *x;
  }

  /// `f(pack, h, packs of w...)` for each pack of this thread; its first element is x[h]. Each w is
  /// an array as long as the row, which it follows.
  template <class F, class... W>
  __device__ void each(F f, W&... w) {
#pragma unroll
    for (int i = 0; i < kKept; ++i) stay_packed(kept_[i]);
    (w.stay_packed_too(), ...);
#pragma unroll
    for (int i = 0; i < kKept; ++i)
      if (place(i) < end_)
        f(static_cast<const Pack<T, kVector>&>(kept_[i]), place(i), w.kept(i, place(i))...);
    if constexpr (!kWhole) {
      unsigned h = place(kKept);
      for (; kInFlight > 1 && h + (kInFlight - 1) * kStep < end_; h += kInFlight * kStep) {
        Pack<T, kVector> packs[kInFlight];
#pragma unroll
        for (unsigned j = 0; j < kInFlight; ++j) packs[j] = load_pack<kVector>(x_ + h + j * kStep);
#pragma unroll
        for (unsigned j = 0; j < kInFlight; ++j)
          f(packs[j], h + j * kStep, w.template at<kVector>(h + j * kStep)...);
      }
#pragma unroll 1
      for (; h < end_; h += kStep) f(load_pack<kVector>(x_ + h), h, w.template at<kVector>(h)...);
      each_edge([&](unsigned e) { f(load_pack<1>(x_ + e), e, w.template at<1>(e)...); });
    }
  }

  /// `f(pack, pack of other, h)` for each; `other` lies in memory as this row does. What `f` makes
  /// of a pack is what later passes see. It must store the pack to x, too, because not all are
  /// kept.
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

  /// Where this thread's i-th access begins, and whether it is one of those that are kept.
  __device__ unsigned place(int i) const {
    return head_ + thread_ * kVector + static_cast<unsigned>(i) * kStep;
  }
  __device__ bool keeps(int i) const { return place(i) < end_; }
  __device__ T first() const { return first_; }

 private:
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
  T first_;
  Pack<T, kVector> kept_[kKept > 0 ? kKept : 1];
};

/// Weights beside the rows. What goes with the accesses that are kept of whole rows stays in
/// registers, too, where it is little, and is read before the first row is looked at.
template <int kVector, int kKept, class T, bool kWhole>
class Beside {
  static constexpr int kStay = kWhole && kKept <= 4 ? kKept : 0;

 public:
  template <class R>
  __device__ Beside(const T* w, const R& row) : w_(w) {
#pragma unroll
    for (int i = 0; i < kStay; ++i)
      if (row.keeps(i)) kept_[i] = load_pack<kVector>(w + row.place(i));
  }
  __device__ void stay_packed_too() {
#pragma unroll
    for (int i = 0; i < kStay; ++i) stay_packed(kept_[i]);
  }
  __device__ Pack<T, kVector> kept(int i, unsigned h) const {
    return i < kStay ? kept_[i] : at<kVector>(h);
  }
  template <int N>
  __device__ Pack<T, N> at(unsigned h) const {
    return kWhole ? load_pack<N>(w_ + h) : load_any<N>(w_ + h);
  }

 private:
  const T* w_;
  Pack<T, kVector> kept_[kStay > 0 ? kStay : 1];
};

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
    const unsigned lane = threadIdx.x % 32, warp = thread_of_row<c>() / 32;
    Statistics<N>* const of_all = of_warp[turn & 1];
    if constexpr (c.cluster > 1) {
      // Each block gets the numbers of all: then none reads another's, which may have ended.
      if (turn == 0) hopper::cluster_wait();  // for all to have started
      if (lane < c.cluster) *hopper::at_block(of_all + warp, lane) = mine;
      hopper::cluster_sync();
    } else {
      if (lane == 0) of_all[warp] = mine;
      __syncthreads();
    }
    mine = of_all[lane % kWarps];
#pragma unroll
    for (unsigned more = 32; more < kWarps; more += 32) mine = combine(mine, of_all[more + lane]);
    mine = over_lanes<(kWarps < 32 ? kWarps : 32)>(mine, combine);
    ++turn;
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
