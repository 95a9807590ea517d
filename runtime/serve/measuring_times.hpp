// When the background may measure: in windows that the program opens, and in slices of its duty.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>

#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

/// Thread-safe. Outlives the runtime where a window does.
class MeasuringTimes {
 public:
  /// `duty`: the share of time outside of windows.
  explicit MeasuringTimes(double duty) : duty_(duty) {}

  void open_window();
  /// Where it was the last one, waits until nothing is measured.
  void close_window() noexcept;
  /// Another thread wants to tune: what is measured ends soon.
  void interrupt() noexcept;
  /// For ever: what is measured ends soon, and nothing begins any more.
  void end() noexcept;
  bool ended() const;

  /// One stretch of measuring.
  class Stretch {
   public:
    ~Stretch();
    /// Requested when it has to end.
    std::stop_token stop() const noexcept { return stop_.get_token(); }

   private:
    friend MeasuringTimes;
    Stretch(MeasuringTimes& times, bool by_duty);

    MeasuringTimes& times_;
    const Clock::time_point begin_ = Clock::now();
    const bool by_duty_;
    std::stop_source stop_;
    std::jthread alarm_;  ///< ends a slice
  };
  /// Null: nothing may be measured now. One at a time.
  std::unique_ptr<Stretch> begin();

  /// Sleeps until `ready()` holds, or until the end. It is asked when something here changes, and
  /// after notify().
  void wait(const std::function<bool()>& ready);
  /// Sleeps for a moment, or until a window is opened or the end.
  void doze();
  /// What `ready` depends on has changed.
  void notify();

 private:
  bool may_begin() const;  ///< the mutex is held

  const double duty_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  int windows_ = 0;
  Stretch* stretch_ = nullptr;
  unsigned long stretches_ = 0;  ///< that have begun
  Clock::time_point next_slice_{};
  bool ended_ = false;
};

}  // namespace kiln::runtime
