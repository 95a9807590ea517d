// Launches that wait for other ranks, each under the program's guard (RankOptions::guard).
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <utility>

#include "kiln/error.hpp"

namespace kiln::runtime {

using Guard = std::function<void(const std::function<void()>& launches)>;

/// A guard has ended what all ranks launched.
class GivenUp : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

/// Those of one candidate, or of one run of a region. All ranks make them in the same order. Only a
/// launch and the wait for its end are under the guard: what a rank does in between, such as a
/// check of the program's, takes as long as it takes. Not thread-safe.
class GuardedLaunches {
 public:
  /// @param guard empty: nothing ends a launch
  explicit GuardedLaunches(Guard guard = {}) : guard_(std::move(guard)) {}

  /// Calls `launch`, which returns when what it launches has ended. Once the guard has ended a
  /// launch, nothing is launched any more. @throws what `launch` throws; GivenUp; what the guard
  /// throws before it has called `launch`, or an UserError where it returns without having called
  /// it, as each later call does
  void run(const std::function<void()>& launch);
  /// Calls `work`. When it throws and has launched nothing, the guard is called with that: other
  /// ranks may be in the launch that is missing here.
  void share_failure(const std::function<void()>& work);

  /// What the guard threw before it called anything, which is no launch's fault; null: nothing.
  std::exception_ptr failure() const noexcept { return failure_; }

 private:
  const Guard guard_;
  std::size_t begun_ = 0;
  std::string given_up_;  ///< why; empty: nothing was
  std::exception_ptr failure_;
};

}  // namespace kiln::runtime
