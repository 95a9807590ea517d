// How ranks signal each other in the GEMMs of ranks.
//
// A rank's flags: [0] it has begun the operation, and so reads nothing of the one before it; [1 +
// i] a part of a chunk is here. Counters: [own][0] operations so far, [own][1] blocks that have
// ended, [r][2 + i] warps that have sent their part of chunk i to rank r, or left it for
// those that send it.
#pragma once

#include "../../device/elements.cuh"
#include "gemm_peers.hpp"

namespace kiln::templates {

/// Ranks stand in a ring: the rank that many places after this one, and the one before it.
__device__ __forceinline__ int rank_after(const Peers& peers, int distance) {
  return (peers.rank + distance) % peers.size;
}
__device__ __forceinline__ int rank_before(const Peers& peers, int distance) {
  return (peers.rank + peers.size - distance) % peers.size;
}

/// One operation, as a thread sees it. `chunks` divides `most`, for each of which there is a flag.
template <int chunks, int most = kPeerGemmChunks>
class PeerOperation {
  static_assert(most % chunks == 0, "all flags change with each operation");

 public:
  __device__ __forceinline__ explicit PeerOperation(const Peers& peers)
      : peers_(peers), epoch_(*static_cast<volatile const unsigned*>(counter(peers.rank, 0)) + 1) {}

  /// One thread of all. Others may send from now on.
  __device__ __forceinline__ void say_ready() const {
    for (int i = 1; i < peers_.size; ++i) signal(peers_, rank_after(peers_, i), 0, epoch_);
    delay(0);
  }
  /// False: given up, as of all waits.
  __device__ __forceinline__ bool wait_until_ready(int to) const {
    return wait(peers_, to, 0, epoch_);
  }
  /// One thread of each of `senders`, when all of its warp's stores of a chunk are done: the last
  /// of them tells the receiver. Those that leave a tile to be sent count as well.
  __device__ __forceinline__ void sent(int to, int chunk, unsigned senders) const {
    __threadfence_system();
    if (is_last(counter(to, 2 + chunk), senders)) say_sent(to, chunk);
  }
  /// The same for a chunk that goes to all ranks, this one among them. Fences are slow while stores
  /// are on their way to other GPUs, so that not many threads should call this.
  __device__ __forceinline__ void sent_to_all(int chunk, unsigned senders) const {
    __threadfence_system();
    if (!is_last(counter(peers_.rank, 2 + chunk), senders)) return;
    __threadfence_system();
    for (int i = 0; i < peers_.size; ++i) set_flags(rank_before(peers_, i), chunk);
  }
  /// One thread, which has not called sent() for the chunk yet: waits until `count` others have,
  /// and sees what they have stored. False: given up, as of all waits.
  __device__ __forceinline__ bool wait_until_stored(int to, int chunk, unsigned count) const {
    const volatile unsigned* const there = counter(to, 2 + chunk);
    // After an operation that was given up a counter may be anything until the memory is reset.
    while (*there < count) {
      if (detail::has_given_up(peers_)) return false;
      __nanosleep(200);
    }
    __threadfence();
    return true;
  }
  __device__ __forceinline__ void say_sent(int to, int chunk) const {
    __threadfence_system();
    set_flags(to, chunk);
  }
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
  static constexpr int kParts = most / chunks;  // flags of a chunk: all change each time

  /// Tests define KILN_PEER_DELAY, by how many microseconds or so a rank is late: at place 0 when
  /// others know that it has begun, at place 1 + i before they know that chunk i is there.
  __device__ __forceinline__ void delay([[maybe_unused]] int place) const {
#ifdef KILN_PEER_DELAY
    const unsigned turns = KILN_PEER_DELAY(static_cast<unsigned>(peers_.rank), epoch_, place);
    for (unsigned i = 0; i < turns && !kiln::detail::has_given_up(peers_); ++i) __nanosleep(1000);
#endif
  }

  __device__ __forceinline__ void set_flags(int to, int chunk) const {
    delay(1 + chunk);
    for (int part = 0; part < kParts; ++part)
      signal_behind_fence(peers_, to, 1 + chunk * kParts + part, epoch_);
  }

  __device__ __forceinline__ unsigned* counter(int rank, int index) const {
    return peers_.counters + static_cast<unsigned>(rank) * peers_.flags + index;
  }
  __device__ __forceinline__ static bool is_last(unsigned* count, unsigned of) {
    if (atomicAdd(count, 1u) != of - 1) return false;
    *static_cast<volatile unsigned*>(count) = 0;
    return true;
  }

  const Peers& peers_;
  unsigned epoch_;
};

/// The end of a launch that sends no chunks, called by all threads of all blocks: the last block
/// tells the other ranks that all has been sent, or read, and waits until they say the same.
template <class Operation>
__device__ __forceinline__ void end_exchange(const Operation& operation, const Peers& peers,
                                             bool given_up) {
  __syncthreads();
  if (threadIdx.x != 0 || !operation.is_last_block()) return;
  for (int distance = 1; distance < peers.size && !given_up; ++distance)
    operation.say_sent(rank_before(peers, distance), 0);
  for (int distance = 1; distance < peers.size && !given_up; ++distance)
    given_up = !operation.wait_for(rank_after(peers, distance), 0);
  operation.end();
}

/// Chunks that a thread has waited for, one rank's after another's.
template <int chunks>
class KnownChunks {
 public:
  /// Waits for those of `from` with the rows [begin, begin + count), of which a chunk has `high`,
  /// and there are `rows`. Whether it has waited. Once a rank has given up, it waits no more:
  /// results have no meaning then, but the launch must end.
  __device__ __forceinline__ bool wait_for(const PeerOperation<chunks>& operation, int from,
                                           int begin, int count, int rows, int high) {
    if (from != from_) from_ = from, known_ = 0;
    const int last = (min(begin + count, rows) - 1) / high;
    bool waited = false;
    for (int chunk = begin / high; chunk <= last; ++chunk) {
      if ((known_ >> chunk & 1) != 0) continue;
      if (!given_up_) given_up_ = !operation.wait_for(from, chunk);
      known_ |= 1u << chunk;
      waited = true;
    }
    return waited;
  }

 private:
  int from_ = -1;
  unsigned known_ = 0;
  bool given_up_ = false;
};

}  // namespace kiln::templates
