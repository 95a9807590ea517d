// How a rank's rows get to others in gemm_all_gather.cuh: by stores to their memory.
#pragma once

#include "gemm_peers.cuh"

namespace kiln::templates {

/// [rows][columns] of this rank, which have their place in each rank's memory.
template <class T>
class RowsToSend {
 public:
  __device__ __forceinline__ RowsToSend(const T* a, const Peers& peers, int rows, int columns)
      : a_(a), peers_(peers), columns_(columns), all_(static_cast<long long>(rows) * columns) {}

  /// The rank that needs this one's rows as the `distance`-th; at 0 it is this one.
  __device__ __forceinline__ int receiver(int distance) const {
    return (peers_.rank + peers_.size - distance) % peers_.size;
  }
  /// Stores its part of a chunk of `high` rows as one of `threads` threads.
  __device__ __forceinline__ void send(int to, int chunk, long long high, long long thread,
                                       long long threads) const {
    const long long begin = min(chunk * high * columns_, all_);
    const long long end = min(begin + high * columns_, all_);
    T* const shard = static_cast<T*>(peer_data(peers_, to)) + peers_.rank * all_;
    constexpr int kWide = 16 / sizeof(T);
    if (columns_ % kWide == 0 && aligned(16, a_))
      copy<kWide>(shard, begin, end, thread, threads);
    else
      copy<1>(shard, begin, end, thread, threads);
  }

 private:
  template <int N>
  __device__ __forceinline__ void copy(T* to, long long begin, long long end, long long thread,
                                       long long threads) const {
    constexpr int kInFlight = 4;
    const long long step = threads * N;
    long long i = begin + thread * N;
#pragma unroll 1
    for (; i + (kInFlight - 1) * step < end; i += kInFlight * step) {
      Pack<T, N> packs[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) packs[j] = load_pack<N>(a_ + i + j * step);
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) store_pack(to + i + j * step, packs[j]);
    }
#pragma unroll 1
    for (; i < end; i += step) store_pack(to + i, load_pack<N>(a_ + i));
  }

  const T* a_;
  const Peers& peers_;
  long long columns_, all_;
};

}  // namespace kiln::templates
