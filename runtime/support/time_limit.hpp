// When a run must have its answer.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>

#include "runtime/support/trace.hpp"

namespace kiln::runtime {

class TimeLimit {
 public:
  /// Never.
  TimeLimit() = default;
  /// `seconds` after `start`; 0, or more than a lifetime: never.
  TimeLimit(double seconds, Clock::time_point start) {
    constexpr double kLifetime = 1e9;
    if (seconds > 0 && seconds < kLifetime)
      at_ = start +
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  static TimeLimit already_passed() {
    TimeLimit deadline;
    deadline.at_ = Clock::time_point{};
    return deadline;
  }

  const std::optional<Clock::time_point>& at() const noexcept { return at_; }
  bool passed() const noexcept { return at_ && Clock::now() >= *at_; }
  /// Seconds: at least 0, infinite where there is no deadline.
  double left() const noexcept {
    if (!at_) return std::numeric_limits<double>::infinity();
    return std::max(0.0, std::chrono::duration<double>(*at_ - Clock::now()).count());
  }
  /// When half of what is left has passed; of less than 20 ms, when all has.
  TimeLimit halfway() const {
    constexpr double kLeast = 0.02;
    return at_ && left() >= kLeast ? TimeLimit(left() / 2, Clock::now()) : *this;
  }

 private:
  std::optional<Clock::time_point> at_;
};

}  // namespace kiln::runtime
