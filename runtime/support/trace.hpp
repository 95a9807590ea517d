// Collects the spans of one tuning run.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kiln/trace.hpp"

namespace kiln::runtime {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Safe to use from several threads.
class TraceLog {
 public:
  static constexpr std::size_t kMaxSpans = 50000;  ///< later ones are dropped

  /// `kernel`: what is tuned.
  explicit TraceLog(std::string kernel = {}) : kernel_(std::move(kernel)) {}
  const std::string& kernel() const noexcept { return kernel_; }

  /// A span that began at `begin` and ends now; returns its seconds.
  double add(std::string name, std::string lane, std::string detail, Clock::time_point begin);
  std::vector<TraceSpan> take();

 private:
  const std::string kernel_;
  std::mutex mutex_;
  std::vector<TraceSpan> spans_;
};

}  // namespace kiln::runtime
