// What ranks have agreed on in a commit that did not wait for it: each of them loads it behind its
// launches, and a later commit publishes it.
#pragma once

#include <future>
#include <mutex>
#include <optional>
#include <vector>

#include "kiln/background.hpp"
#include "runtime/background/ballot.hpp"
#include "runtime/background/proposal.hpp"

namespace kiln::runtime {

struct PendingChange {
  enum class State {
    waiting,  ///< to be loaded
    loading,
    loaded,
    failed  ///< cannot be loaded here
  };
  KernelChange kernel_change;
  State state = State::waiting;
  std::vector<Proposal> loaded{};  ///< of handles that have launched the problem
  /// Begun by a commit, for which it took too long; invalid: none was.
  std::shared_future<void> build{};
};

/// Of one rank. Thread-safe.
class PendingChanges {
 public:
  std::vector<PendingChange> all() const;
  bool any_waiting() const;
  /// One that waits, and is `loading` from now on.
  std::optional<PendingChange> take();
  /// What take() gave has been loaded; nothing: it cannot be.
  void loaded(const KernelChange& taken, std::optional<std::vector<Proposal>> proposals);
  /// After a commit. What is being loaded, or cannot be, stays so.
  void replace(std::vector<PendingChange> pending);
  /// Lets go of what was loaded for a handle.
  void forget(const void* handle);

 private:
  PendingChange* find(const KernelChange& kernel_change);

  mutable std::mutex mutex_;
  std::vector<PendingChange> pending_;
};

}  // namespace kiln::runtime
