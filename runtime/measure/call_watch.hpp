// Calls that nothing can end: one that takes too long is told of while it still runs.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

/// Seconds that a verification or a sample may take where nobody gives a limit. `longest`: what one
/// has taken so far; 0: none has ended.
double usual_limit(double longest) noexcept;

/// Used by one thread, which makes the calls. It sleeps, unless a call is late.
class CallWatch {
 public:
  /// `tell` is called on another thread with the seconds that a call has taken so far: when its
  /// limit has passed, and each time that it has taken twice as long. Meanwhile end() waits, so
  /// that what the calling thread uses can be read. Exceptions of `tell` are dropped.
  explicit CallWatch(std::function<void(double seconds)> tell);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  /// @param limit seconds; not 0
  void begin(double limit);
  /// The seconds since begin().
  double end() noexcept;

 private:
  void watch(const std::stop_token& stop);

  const std::function<void(double)> tell_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool calling_ = false;
  Clock::time_point begin_{}, next_{};  ///< of the call, and when it is told of
  Clock::time_point wakes_{};           ///< the thread, at the latest
  Clock::duration pause_{};             ///< of the thread, without a call
  std::jthread thread_;                 ///< started by the first call
};

}  // namespace kiln::runtime
