// Launches that wait for other ranks, under the program's guard (RankOptions::guard).
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace kiln::runtime {

struct GuardedEnd {
  std::exception_ptr own;  ///< what this rank's launches threw; null: nothing
  std::string given_up;    ///< why the ranks' waits were ended; empty: they were not
};

using Guard = std::function<void(const std::function<void()>& launches)>;

/// Calls `launches` under `guard`, or just so if there is none. @throws what the guard throws
/// before it has called them
GuardedEnd launch_guarded(const Guard& guard, const std::function<void()>& launches);

}  // namespace kiln::runtime
