// Ctrl-C as a request: the first ends the work early and keeps what it has, the second ends the
// process.
#pragma once

#include <atomic>
#include <stop_token>
#include <thread>

namespace kiln::tools {

/// Takes SIGINT and SIGTERM for this process while it lives. Make it before any other thread is
/// started: those inherit that the two signals are not delivered to them.
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
