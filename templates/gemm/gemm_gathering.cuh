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
    // Words of 16 bytes: compilers take unrolled stores of eight elements apart.
    if (columns_ % kWide == 0 && aligned(16, a_))
      copy(reinterpret_cast<uint4*>(shard), reinterpret_cast<const uint4*>(a_), begin / kWide,
           end / kWide, thread, threads);
    else
      copy(shard, a_, begin, end, thread, threads);
  }

 private:
  template <class Word>
  __device__ __forceinline__ static void copy(Word* to, const Word* from, long long begin,
                                              long long end, long long thread, long long threads) {
    constexpr int kInFlight = 4;
    long long i = begin + thread;
#pragma unroll 1
    for (; i + (kInFlight - 1) * threads < end; i += kInFlight * threads) {
      Word words[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) words[j] = from[i + j * threads];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) to[i + j * threads] = words[j];
    }
#pragma unroll 1
    for (; i < end; i += threads) to[i] = from[i];
  }

  const T* a_;
  const Peers& peers_;
  long long columns_, all_;
};

}  // namespace kiln::templates
