// How the ranks of a job talk to each other. Nothing here depends on MPI or NCCL.
//
//   std::vector<std::byte> all(comm.size() * mine.size());
//   if (auto failure = comm.gather(mine, all, kiln::deadline_in(10))) return failure->describe();
//
// An engine with its own communicator may implement this class; Kiln's communicators are in
// communicators.hpp.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/key.hpp"

namespace kiln {

using Deadline = std::chrono::steady_clock::time_point;

/// `start` plus `seconds`, but at most 30 years (1e9 s) after it, also for infinity; `start` itself
/// if `seconds` is negative or NaN.
inline Deadline deadline_after(Deadline start, double seconds) {
  const double waited = seconds > 0 ? std::min(seconds, 1e9) : 0;
  return start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                     std::chrono::duration<double>(waited));
}
inline Deadline deadline_in(double seconds) {
  return deadline_after(std::chrono::steady_clock::now(), seconds);
}

/// Why a call failed, as seen from one rank; or what a rank that gave up because of it told the
/// others.
struct RankFailure {
  enum class Kind {
    timeout,   ///< a rank had not taken part when the deadline passed
    aborted,   ///< `ranks` gave up because of `text`, and can blame no other rank
    lost,      ///< a connection or a process is gone
    mismatch,  ///< ranks made different calls at the same point: a bug in the program
    system     ///< the transport's library failed; `text` is its message
  };
  Kind kind = Kind::timeout;
  std::vector<int> ranks;  ///< the ranks at fault; empty where the transport cannot tell
  std::string text;

  /// `rank 3 is late: gather was not joined in time`.
  std::string describe() const;
};

enum class Reduction {
  max,
  sum,
  mean  ///< sum / size()
};

/// One rank's end of a group. Calls are collective: every rank makes the same ones in the same
/// order with the same sizes. There is no barrier: a call returns as soon as this rank has its
/// result, while others may still be waiting for theirs.
///
/// Failure. Each call has a deadline and returns at the latest shortly after it. A result that is
/// there when the deadline has passed still counts. A call that is made after its deadline (because
/// this process was stopped, say) joins nothing and fails, since the others have given up on it.
/// When one rank dies, stalls or aborts, every other rank's call that needs it fails, at once where
/// the transport can tell, else at the deadline; the caller then aborts. After its first failure or
/// abort an end is broken: each further call on it fails at once, so no other rank can finish one
/// either. It is NOT promised that a call fails on all ranks or on none: the rank that dies in the
/// middle of a call may have reached some and not others. Ranks that know different things of
/// the last call come to one answer by `settle`, where the transport has it (docs/ranks.md).
///
/// Thread safety: one thread at a time; `abort` may be called from any thread.
class Communicator {
 public:
  using Failure = std::optional<RankFailure>;

  virtual ~Communicator() = default;
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// `all` receives everyone's `mine`, rank 0's first. @pre all.size() == size() * mine.size()
  [[nodiscard]] virtual Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                                       Deadline deadline) = 0;
  /// Element by element, in place, on every rank. Infinity is a value like others; NaN is not
  /// allowed. A maximum has the same bits everywhere; this is not promised for a sum or mean.
  [[nodiscard]] virtual Failure reduce(std::span<float> values, Reduction op,
                                       Deadline deadline) = 0;
  /// Copies `root`'s bytes to all ranks.
  [[nodiscard]] virtual Failure broadcast(std::span<std::byte> bytes, int root,
                                          Deadline deadline) = 0;

  /// Hold this across all exchanges of an operation that makes several, such as an agreement, so
  /// that two threads of a process do not interleave theirs. The operations must still come in the
  /// same order on all ranks; otherwise the ranks find that they were asked different things.
  std::unique_lock<std::recursive_mutex> turn() { return std::unique_lock(turn_); }

  /// Breaks this end and tells the others why, where the transport can. Does not wait for them.
  virtual void abort(const RankFailure& why) noexcept = 0;

  /// Whether `settle` works; the same on every rank.
  virtual bool settles() const noexcept { return false; }
  /// One answer for all ranks, whichever of them die: the first proposal to arrive for a question
  /// is the answer for every rank that asks, then and later. Not a collective; works on a broken
  /// end. Returns nothing if the place where answers are kept could not be reached before the
  /// deadline.
  [[nodiscard]] virtual std::optional<bool> settle(const Digest& /*question*/, bool /*proposal*/,
                                                   Deadline /*deadline*/) {
    return {};
  }

  /// Collective. The ranks that name the same group, in the order of their ranks here, as a
  /// communicator of their own. Failure of one group does not break another. @param group not
  /// negative on any rank, else all get a mismatch, and no end is broken
  [[nodiscard]] virtual Failure split(int group, std::unique_ptr<Communicator>& part,
                                      Deadline deadline) = 0;

 private:
  std::recursive_mutex turn_;
};

}  // namespace kiln
