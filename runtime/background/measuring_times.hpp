// When the background may measure: in windows that the program opens, and in slices of its duty.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "runtime/support/own_process.hpp"
#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

/// Thread-safe. Outlives the runtime where a window does.
class MeasuringTimes {
 public:
  using Now = std::function<Clock::time_point()>;

  /// `duty`: the share of time outside of windows. `now` tells pauses; slices end by the real
  /// clock.
  explicit MeasuringTimes(double duty, Now now = Clock::now) : duty_(duty), now_(std::move(now)) {}
  /// For measuring on a device that the program does not use: at all times, and closing a window
  /// does not wait for it.
  struct AtAllTimes {};
  explicit MeasuringTimes(AtAllTimes) : duty_(0), now_(Clock::now), at_all_times_(true) {}

  void open_window();
  /// Where it was the last one, ends what is measured, waits until that has left the device, and
  /// lets a pause of the duty begin.
  void close_window() noexcept;
  /// Another thread wants to tune: what is measured ends soon.
  void interrupt() noexcept;
  /// What is measured ends soon, and nothing begins ever again.
  void end() noexcept;
  bool ended() const;
  Clock::time_point now() const { return now_(); }

  /// One stretch of measuring.
  class Stretch {
   public:
    ~Stretch();
    /// Requested when it has to end.
    std::stop_token stop() const noexcept { return stop_.get_token(); }
    /// Whether it is a slice of the duty.
    bool by_duty() const noexcept { return by_duty_; }
    /// Tells that nothing of it runs on the device any more, though the stretch has not ended.
    void left_device() noexcept;

   private:
    friend MeasuringTimes;
    Stretch(MeasuringTimes& times, bool by_duty, double slices);

    MeasuringTimes& times_;
    const Clock::time_point begin_;
    const bool by_duty_;
    bool on_device_ = true;  ///< under the mutex of `times_`
    std::stop_source stop_;
    std::jthread alarm_;  ///< ends a slice
  };
  /// Whether begin() would give one.
  bool may_measure() const;
  /// Null: nothing may be measured now. One at a time. Outside of windows it lasts for as many
  /// slices. @throws std::system_error where no thread can be had that ends it
  std::unique_ptr<Stretch> begin(double slices = 1);

  /// Sleeps until `ready()` holds, or until the end. It is asked when something here changes, and
  /// after notify().
  void wait(const std::function<bool()>& ready);
  /// How often something here has changed so far.
  unsigned long changes() const;
  /// Sleeps until something that `seen` does not count changes, measuring may begin, or now()
  /// reaches `until`. If measuring may begin already, sleeps only for a moment.
  void doze(unsigned long seen, Clock::time_point until);
  /// What `ready` depends on has changed.
  void notify();

 private:
  bool may_begin() const;                      ///< the mutex is held
  void pause_after(Clock::duration measured);  ///< the mutex is held
  void note_change();                          ///< the mutex is held

  const OwnProcess process_;
  const double duty_;
  const Now now_;
  const bool at_all_times_ = false;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  int windows_ = 0;
  Stretch* stretch_ = nullptr;
  unsigned long stretches_ = 0;  ///< that have begun
  unsigned long changes_ = 0;
  Clock::time_point next_slice_{};
  bool ended_ = false;
};

}  // namespace kiln::runtime
