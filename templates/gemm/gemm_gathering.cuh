// How rows get from rank to rank in gemm_all_gather.cuh: stores to other ranks' memory, and flags.
//
// A rank's flags here: [0] it has begun the operation, and so reads nothing of the one before it; [1 + i]
// that part of its rows is here. Counters: [own][0] operations so far, [own][1] blocks that have ended,
// [r][1 + i] warps that have sent chunk i to rank r.
#pragma once

#include "../device/elements.cuh"
#include "gemm_all_gather.hpp"

namespace kiln::templates {

template <AllGather c, class T>
class Gathering {
 public:
  __device__ __forceinline__ Gathering(const T* a, const Peers& peers, const AllGatherProblem& p)
      : a_(a),
        peers_(peers),
        rows_(p.m),
        columns_(p.k),
        epoch_(*static_cast<volatile const unsigned*>(counter(peers.rank, 0)) + 1) {}

  /// The rank that needs this one's rows as the `distance`-th; at 0 it is this one.
  __device__ __forceinline__ int receiver(int distance) const {
    return (peers_.rank + peers_.size - distance) % peers_.size;
  }
  /// One thread of all. Others may send from now on.
  __device__ __forceinline__ void say_ready() const {
    for (int distance = 1; distance < peers_.size; ++distance)
      signal(peers_, receiver(distance), 0, epoch_);
  }
  /// False: given up.
  __device__ __forceinline__ bool wait_until_ready(int to) const {
    return wait(peers_, to, 0, epoch_);
  }
  /// Stores its part of a chunk as one of `threads` threads.
  __device__ __forceinline__ void send(int to, int chunk, long long thread,
                                       long long threads) const {
    const long long high = c.chunk_rows(rows_), all = static_cast<long long>(rows_) * columns_;
    const long long begin = min(chunk * high * columns_, all),
                    end = min(begin + high * columns_, all);
    T* const shard = static_cast<T*>(peer_data(peers_, to)) + peers_.rank * all;
    constexpr int kWide = 16 / sizeof(T);
    if (columns_ % kWide == 0 && aligned(16, a_))
      copy<kWide>(shard, begin, end, thread, threads);
    else
      copy<1>(shard, begin, end, thread, threads);
  }
  /// One thread of each of `senders`, when all of its stores of a chunk are done: the last of them tells
  /// the receiver.
  __device__ __forceinline__ void sent(int to, int chunk, unsigned senders) const {
    __threadfence_system();
    if (!is_last(counter(to, 1 + chunk), senders)) return;
    __threadfence_system();
    say_sent(to, chunk);
  }
  __device__ __forceinline__ void say_sent(int to, int chunk) const {
    for (int part = 0; part < kParts; ++part) signal(peers_, to, 1 + chunk * kParts + part, epoch_);
  }
  /// Waits for another rank's chunk. False: given up.
  __device__ __forceinline__ bool wait_for(int from, int chunk) const {
    return wait(peers_, from, 1 + chunk * kParts, epoch_);
  }
  /// One thread of each block, when the block has done all. The last one may end the operation.
  __device__ __forceinline__ bool is_last_block() const {
    __threadfence_system();
    return is_last(counter(peers_.rank, 1), gridDim.x);
  }
  __device__ __forceinline__ void end() const {
    *static_cast<volatile unsigned*>(counter(peers_.rank, 0)) = epoch_;
  }

 private:
  static constexpr int kParts =
      kAllGatherChunks / c.chunks;  // flags of a chunk: all change each time

  __device__ __forceinline__ unsigned* counter(int rank, int index) const {
    return peers_.counters + static_cast<unsigned>(rank) * peers_.flags + index;
  }
  __device__ __forceinline__ static bool is_last(unsigned* count, unsigned of) {
    if (atomicAdd(count, 1u) != of - 1) return false;
    *static_cast<volatile unsigned*>(count) = 0;
    return true;
  }
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
  int rows_, columns_;
  unsigned epoch_;
};

}  // namespace kiln::templates
