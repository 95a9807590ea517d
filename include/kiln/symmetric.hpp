// Symmetric memory: the same amount of device memory on every rank, which the kernels of all ranks
// reach, and flags by which those signal each other while they run (kiln/peers.cuh).
//
//   kiln::SymmetricMemory memory(runtime, ranks, {.bytes = 1 << 20, .flags = 2});
//   memory.within(kiln::deadline_in(10), [&] {
//     exchange(stream, memory.peers(), ++epoch);  // a kernel with a `const kiln::Peers*`
//     runtime.synchronize(stream);
//   });
//   memory.close();
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "kiln/communicator.hpp"
#include "kiln/peers.cuh"
#include "kiln/runtime.hpp"
#include "kiln/types.hpp"

namespace kiln {

/// The same on every rank.
struct SymmetricOptions {
  std::size_t bytes = 0;  ///< of data on each rank; zero when the object has been made
  unsigned flags = 1;     ///< that a rank has for each source rank
  double seconds = 30;    ///< that each collective call waits for the other ranks
};

/// What a kernel of this rank waited for in vain.
struct PeerStall {
  int rank;  ///< that was to signal
  unsigned flag, epoch;
};

namespace detail {
class SymmetricCore;
}

/// Move-only. Ranks are threads of one process or processes of one machine, all on CUDA devices or
/// all on the host device. On CUDA, threads need peer access between their devices, and processes
/// the driver's IPC; on the host, memory is shared without a name, so nothing of it is left behind
/// by processes that are killed. Multicast is never used.
///
/// Collective calls (the constructor, `barrier`, `reset`, `close`) come in the same order on all
/// ranks. When a rank is late, gone or different, each of them throws on every other rank, at the
/// latest when `seconds` are over, and names that rank where the communicator can.
///
/// Thread safety: collective calls by one thread at a time; `within`, `abort` and `stalled` from
/// any thread. @pre after close() nothing but the destructor is called, else UserError
class SymmetricMemory {
 public:
  /// Collective. @throws UserError on all ranks when bytes, flags or the kinds of device differ
  /// between ranks, or when bytes or flags are 0 or too many; EnvironmentError on all ranks when
  /// the memory cannot be had or reached on one of them, or when a rank does not join
  SymmetricMemory(const Runtime& runtime, std::shared_ptr<Communicator> ranks,
                  const SymmetricOptions& options);
  /// If close() was not called, gives up for all ranks, and waits for none of them. Memory that a
  /// process may still use by IPC is then never released. @pre as close(): this rank's kernels that
  /// use it have ended
  ~SymmetricMemory();
  SymmetricMemory(SymmetricMemory&&) noexcept;
  SymmetricMemory& operator=(SymmetricMemory&&) noexcept;

  int rank() const;
  int size() const;
  std::size_t bytes() const;
  unsigned flags() const;

  /// `rank`'s data as kernels of this rank reach it, aligned to 256 bytes. On the host device, the
  /// program does, too. @throws UserError when there is no such rank
  void* data(int rank) const;
  /// This rank's own.
  void* data() const { return data(rank()); }
  /// What kernels take: in device memory; lives as long as this object.
  const Peers* peers() const;

  /// Calls `work`, which launches kernels that wait for peers, and waits until they have ended.
  /// When it has not returned at the deadline, all ranks' waits are given up, so that their kernels
  /// end. A thread of Kiln's watches the deadline meanwhile. @throws EnvironmentError when a rank
  /// has given up, which says which rank waited for which one's signal; else what `work` throws
  void within(Deadline deadline, const std::function<void()>& work) const;
  /// Ends all waits of all ranks' kernels, now and later, until reset().
  void abort() const noexcept;
  bool aborted() const;
  /// What a wait of this rank that was given up had waited for, since the last reset(). Nothing if
  /// no wait was given up.
  std::optional<PeerStall> stalled() const;

  /// Collective. Returns when all ranks have called it; their kernels may still run. @throws
  /// EnvironmentError when a rank does not come, or has given up
  void barrier() const;
  /// Collective. All flags are 0 again, and nothing is given up. @pre no kernel of any rank that
  /// was launched before is still running. @throws EnvironmentError when a rank does not come
  void reset() const;
  /// For RankOptions::guard, on every rank: each launch (or run of a region) begins with all flags
  /// at 0, as after reset(), when all ranks have come, and has `seconds` from then on, as in
  /// within(); 0: what `$KILN_CANDIDATE_SECONDS` says, else 20. Collective; the ranks' `seconds`
  /// differ by less than SymmetricOptions::seconds. A rank that comes later than that is named,
  /// and the tuning ends. What one rank gives up is over when it throws, which it then does on all
  /// of them. The object may be moved, and must outlive the guard. @pre as reset(), for each launch
  std::function<void(const std::function<void()>&)> guard(double seconds = 0) const;
  /// Collective. Returns the memory when all ranks have come here. @pre this rank's kernels that
  /// use it have ended. @throws EnvironmentError when a rank does not come; the object is closed
  /// then, too, and gives up for all ranks
  void close();

 private:
  std::unique_ptr<detail::SymmetricCore> core_;
};

template <>
struct DeviceName<Peers> {
  static constexpr const char* value = "kiln::Peers";
};

}  // namespace kiln
