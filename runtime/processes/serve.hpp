// The other side of a ProcessPool: the main function of a process that answers requests.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace kiln::runtime {

struct Service {
  /// Called once, with PoolOptions::setup. Returns the reply to it.
  std::function<std::vector<std::byte>(std::span<const std::byte> setup)> begin;
  /// Called on several threads at once. Must not throw.
  std::function<std::vector<std::byte>(std::span<const std::byte> request)> answer;
};

/// Answers the requests of the parent process on descriptor 0. When the parent ends or closes the
/// channel, this process ends at once, also in the middle of a request. Returns only if no
/// ChildProcess has started this process: the exit code.
int serve(int argument_count, char** arguments, const Service& service);

}  // namespace kiln::runtime
