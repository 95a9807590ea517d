// What a kernel does with symmetric memory (kiln/symmetric.hpp): reach the data of other ranks,
// signal them, and wait for their signals. Every kernel compiler and every program can read this
// header.
//
//   __global__ void exchange(const kiln::Peers* peers, unsigned epoch) {
//     const int next = (peers->rank + 1) % peers->size;
//     static_cast<float*>(kiln::peer_data(*peers, next))[threadIdx.x] = 1;
//     __syncthreads();  // all threads have stored
//     if (threadIdx.x == 0) kiln::signal(*peers, next, 0, epoch);
//     const int before = (peers->rank + peers->size - 1) % peers->size;
//     if (!kiln::wait(*peers, before, 0, epoch)) return;  // given up: leave
//     // what that rank has stored is here
//   }
//
// Flags. Each rank has `flags` flags for each source rank, which only that rank writes: so no two
// ranks ever write one flag. A flag holds an epoch, which only grows: 1, 2, 3, ..., and then 0
// after 2^32 - 1. A wait for an epoch ends when that one or a later one is there. So flags are
// never reset, and a rank may be up to 2^31 - 1 epochs ahead of a wait.
//
// Giving up. A wait also ends when the host of a rank gives up (SymmetricMemory::within, abort): it
// returns false, as all later waits that would have to wait do, and the kernel must leave without
// the data. Kernels that wait for each other must all be running: on CUDA, a grid fits the device
// (cooperative, or persistent). On the host device blocks of a launch may run one after the other,
// in any order: a block waits only for what other ranks do without another block of their launches.
#pragma once

#ifdef __CUDACC__
#define KILN_PEERS_FUNCTION __device__ inline
#else
#include <thread>

#include "kiln/version.hpp"
#define KILN_PEERS_FUNCTION inline
#endif

namespace kiln {

/// What a rank's host and its kernels tell each other while kernels run.
struct PeersControl {
  /// 0, or 1 + the rank that gave up. Written by hosts.
  unsigned aborted;
  /// 0, or what a wait that was given up had waited for: (1 + index of the flag) << 32 | epoch.
  /// Written by kernels; the last one counts.
  unsigned long long stalled;
};

/// What a rank's kernels tell each other of it, in the rank's own memory. For CUDA: a GPU's waiting
/// threads must not all read the host's memory, because that holds up what other GPUs send. (On two
/// H100s, 1000 threads that each read it every 30 us made an exchange of 32 MB take 7 to 20 ms
/// instead of 0.12.) So one of them looks, every 0.13 ms or so.
struct PeersNotice {
  unsigned given_up;   ///< 1: a look has found that a host gave up
  unsigned looked_at;  ///< when a thread last looked, in units of 2^17 ns
};

/// One rank's view of all ranks; in memory that its kernels can read. Addresses are those of the
/// rank that it was made for, and mean nothing to others.
struct Peers {
  struct Peer {
    void* data;
    unsigned* flags;  ///< of source r, flag f: [r * Peers::flags + f]
  };
  int rank, size;
  unsigned flags;         ///< of each rank, for each source
  PeersControl* control;  ///< this rank's
  const Peer* peer;       ///< `size` of them
  /// For kernels that count launches or blocks: `size` x `flags` numbers of this rank's own, which
  /// no other rank sees. 0 after the creation and after SymmetricMemory::reset().
  unsigned* counters;
  PeersNotice* notice;  ///< this rank's
};

/// `rank`'s data, as this rank reaches it. Aligned to 256 bytes.
KILN_PEERS_FUNCTION void* peer_data(const Peers& peers, int rank) { return peers.peer[rank].data; }

/// Whether `value` is `epoch` or a later one, also where epochs have wrapped round.
KILN_PEERS_FUNCTION bool epoch_reached(unsigned value, unsigned epoch) {
  return static_cast<int>(value - epoch) >= 0;
}

/// Called by one thread. Sets this rank's flag at `to` (which may be this rank), and returns at
/// once. What the block stored before a preceding __syncthreads() is there for a kernel that has
/// waited for the flag.
/// @pre flag < peers.flags, and `epoch` is later than the one before
KILN_PEERS_FUNCTION void signal(const Peers& peers, int to, unsigned flag, unsigned epoch) {
  unsigned* cell =
      peers.peer[to].flags + static_cast<unsigned long long>(peers.rank) * peers.flags + flag;
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(cell), "r"(epoch) : "memory");
#else
  __atomic_store_n(cell, epoch, __ATOMIC_RELEASE);
#endif
}

/// As signal(), after a fence of the caller's for the whole system (__threadfence_system): for
/// several flags in a row, each of which would otherwise wait as long as that fence does.
/// @pre as signal()
KILN_PEERS_FUNCTION void signal_behind_fence(const Peers& peers, int to, unsigned flag,
                                             unsigned epoch) {
#ifdef __CUDA_ARCH__
  unsigned* cell =
      peers.peer[to].flags + static_cast<unsigned long long>(peers.rank) * peers.flags + flag;
  asm volatile("st.relaxed.sys.u32 [%0], %1;" ::"l"(cell), "r"(epoch) : "memory");
#else
  signal(peers, to, flag, epoch);
#endif
}

namespace detail {

/// Whether a host has given up.
KILN_PEERS_FUNCTION bool has_given_up(const Peers& peers) {
  unsigned aborted;
#ifdef __CUDA_ARCH__
  volatile PeersNotice* const notice = peers.notice;
  aborted = notice->given_up;
  if (!aborted) {
    unsigned long long nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    const unsigned now = static_cast<unsigned>(nanoseconds >> 17), last = notice->looked_at;
    if (now == last || atomicCAS(&peers.notice->looked_at, last, now) != last) return false;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];"
                 : "=r"(aborted)
                 : "l"(&peers.control->aborted)
                 : "memory");
    if (aborted) notice->given_up = 1;
  }
#else
  aborted = __atomic_load_n(&peers.control->aborted, __ATOMIC_RELAXED);
#endif
  return aborted != 0;
}
/// The same, and `stalled` then says what was waited for.
KILN_PEERS_FUNCTION bool has_given_up(const Peers& peers, unsigned long long stalled) {
  if (!has_given_up(peers)) return false;
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(&peers.control->stalled), "l"(stalled)
               : "memory");
#else
  __atomic_store_n(&peers.control->stalled, stalled, __ATOMIC_RELAXED);
#endif
  return true;
}

}  // namespace detail

/// Called by any thread, for itself; with a __syncthreads() behind it, for its block. Waits until
/// `from` has set its flag here to `epoch` or a later one. Returns false if the wait was given up,
/// and what was waited for is not there.
/// @pre flag < peers.flags
[[nodiscard]] KILN_PEERS_FUNCTION bool wait(const Peers& peers, int from, unsigned flag,
                                            unsigned epoch) {
  const unsigned index = static_cast<unsigned>(from) * peers.flags + flag;
  const unsigned* cell = peers.peer[peers.rank].flags + index;
  for (unsigned turn = 1;; ++turn) {
    unsigned value;
#ifdef __CUDA_ARCH__
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(cell) : "memory");
#else
    value = __atomic_load_n(cell, __ATOMIC_ACQUIRE);
#endif
    if (epoch_reached(value, epoch)) return true;
    if (turn % 64 == 0 && detail::has_given_up(peers, (1ull + index) << 32 | epoch)) return false;
#ifdef __CUDACC__
    if (turn > 16) __nanosleep(32);
#else
    if (turn > 16) std::this_thread::yield();
#endif
  }
}

/// Called by one thread of each rank: signals all ranks, then waits for all. Returns false if the
/// wait was given up.
/// @pre as signal()
[[nodiscard]] KILN_PEERS_FUNCTION bool peer_barrier(const Peers& peers, unsigned flag,
                                                    unsigned epoch) {
  for (int i = 1; i < peers.size; ++i) signal(peers, (peers.rank + i) % peers.size, flag, epoch);
  for (int i = 1; i < peers.size; ++i)
    if (!wait(peers, (peers.rank + i) % peers.size, flag, epoch)) return false;
  return true;
}

}  // namespace kiln

#undef KILN_PEERS_FUNCTION
