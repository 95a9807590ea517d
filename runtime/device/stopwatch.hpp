// Times of work on a device, within other work.
#pragma once

#include <chrono>

#include "kiln/device.hpp"

namespace kiln::runtime {

/// Measures one interval on a stream by the device's own clock: the work put there between `start`
/// and `stop`. Calling `start` again begins a new interval. Not thread-safe; keeps alive what it
/// needs of its device.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  /// Neither waits for the device.
  virtual void start(Stream stream) = 0;
  virtual void stop(Stream stream) = 0;
  /// Waits until the interval is over. @pre started and stopped
  virtual double seconds() = 0;
};

/// Uses the steady clock; for devices whose work is done when the call returns.
class HostStopwatch final : public Stopwatch {
 public:
  void start(Stream) override { start_ = Clock::now(); }
  void stop(Stream) override { stop_ = Clock::now(); }
  double seconds() override { return std::chrono::duration<double>(stop_ - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_{}, stop_{};
};

}  // namespace kiln::runtime
