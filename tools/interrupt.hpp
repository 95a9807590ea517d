// Ctrl-C as a request: the first ends the work early and keeps what it has, the second ends the
// process.
#pragma once

#include <atomic>
#include <stop_token>
#include <thread>

namespace kiln::tools {

/// Handles SIGINT and SIGTERM of this process while it exists. Create it before any other thread is
/// started: threads inherit that the two signals are blocked.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  std::stop_token token() const { return source_.get_token(); }
  /// The signal that came, or 0.
  int signal() const noexcept { return signal_; }

 private:
  std::stop_source source_;
  std::atomic<int> signal_{0};
  std::jthread waiter_;
};

}  // namespace kiln::tools
