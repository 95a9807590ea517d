// A lock file, which tells other processes which one is making an entry. It only saves work:
// correctness does not depend on it, and one acquire() waits for LockTimes::longest at most.
//
//   <directory>/v1/locks/<hex>.lock     text: host, process, a random word, a count of heartbeats
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cache/disk_level.hpp"
#include "cache/process_identity.hpp"

namespace kiln::cache {

struct LockTimes {
  std::chrono::milliseconds beat{500};  ///< between signs of life of a holder
  /// Without a sign of life for this long, by the waiter's own steady clock, a holder counts as
  /// gone. 0: never wait.
  std::chrono::milliseconds deadline{5000};
  /// The longest wait of one acquire(), even for a holder that gives signs of life.
  std::chrono::milliseconds longest{std::chrono::minutes(10)};
};

/// Held until destruction, beating meanwhile on a thread of its own. Move-only.
class WorkLock {
 public:
  enum class Outcome {
    held,      ///< ours: no other process was making it, or that process is gone
    ready,     ///< `ready` came true while we waited
    given_up,  ///< `give_up` came true before that
    released,  ///< the holder ended without making it: go on without a lock
    unusable   ///< no lock (disk, rights, planted file, waited too long): go on without one
  };

  static constexpr const char* kExtension = ".lock";

  WorkLock();
  ~WorkLock();
  WorkLock(WorkLock&&) noexcept;
  WorkLock& operator=(WorkLock&&) noexcept;

  /// Takes the lock named `hex`, or waits until `ready()` (whether the entry is there), or until
  /// `give_up()` (whether the caller has no time left; empty: never), or until the holder ends or
  /// is gone. Both are asked now and then, in this order; a lock that is free is taken without
  /// asking. Needs no lock of the file system, only creation that fails if the file is there, so it
  /// works on NFS. A holder on this machine that has died is known at once. Throws nothing but
  /// bad_alloc.
  Outcome acquire(DiskLevel& disk, const std::string& hex, const LockTimes& times,
                  const std::function<bool()>& ready, const std::function<bool()>& give_up = {});

  bool held() const noexcept { return held_ != nullptr; }
  /// Gives it back. What acquire() has found stays known.
  void release() noexcept;
  /// Whether acquire() had to wait.
  bool waited() const noexcept { return waited_; }
  /// Whether an earlier holder ended without releasing it: it died over what it made, or was
  /// killed.
  bool was_left() const noexcept { return was_left_; }

 private:
  struct Held;

  std::optional<Outcome> create(DiskLevel& disk, const DiskLevel::SharedFd& directory,
                                const std::string& name, const ProcessIdentity& self,
                                std::chrono::milliseconds beat);

  std::unique_ptr<Held> held_;
  bool waited_ = false, was_left_ = false;
};

}  // namespace kiln::cache
