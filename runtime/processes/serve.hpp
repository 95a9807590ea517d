// The other side of a ProcessPool: the main function of a process that answers requests.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace kiln::runtime {

struct Service {
  /// Called once, with what the pool sends to each process first. What it returns is the hello.
  std::function<std::vector<std::byte>(std::span<const std::byte> setup)> begin;
  /// Called on several threads at once. Must not throw.
  std::function<std::vector<std::byte>(std::span<const std::byte> request)> answer;
};

/// Serves the process that started this one, on descriptor 0. Does not return before that process
/// ends or closes its end, and then ends this one at once, whatever it is at. Returns an exit code
/// where this process was not started by a ChildProcess.
int serve(int argument_count, char** arguments, const Service& service);

}  // namespace kiln::runtime
