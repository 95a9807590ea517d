// What a runtime counts. Nothing of it is touched by a launch of a problem that is ready.
//
// A new metric: its counter here, its member in RuntimeMetrics, its row in kRuntimeMetrics
// (kiln/detail/runtime_metric_table.hpp), and its line in read().
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/runtime_metrics.hpp"

namespace kiln::runtime {

/// Counts by one label, whose values are known beforehand. Thread-safe.
class Tally {
 public:
  static constexpr std::size_t kMost = 16;

  constexpr Tally(std::initializer_list<const char*> values) {
    for (const char* value : values) values_.at(size_++) = value;
  }
  /// @throws InternalError for a value that it was not made for
  void add(std::string_view value, std::int64_t by = 1);
  /// All are 0 again.
  void clear() noexcept;
  MetricSeries read() const;

 private:
  std::array<const char*, kMost> values_{};
  std::size_t size_ = 0;
  std::array<std::atomic<std::uint64_t>, kMost> counts_{};
};

/// Durations, in buckets from a millisecond to a quarter of an hour. Thread-safe.
class Durations {
 public:
  static constexpr std::array kBounds{0.001, 0.003, 0.01, 0.03,  0.1,   0.3,   1.0,
                                      3.0,   10.0,  30.0, 100.0, 300.0, 1000.0};

  void add(double seconds) noexcept;
  Histogram read() const;

 private:
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<double> sum_{0};
};

/// Numbers by kernel that go up and down. After the first kMost kernels, others share one number.
class PerKernel {
 public:
  static constexpr std::size_t kMost = 256;
  using Number = std::shared_ptr<std::atomic<std::int64_t>>;

  Number of(const std::string& kernel);
  MetricSeries read() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Number> numbers_;
};

struct Counters;

/// Launches of one kernel that were not prepared. Thread-safe; adding allocates nothing and takes
/// no lock.
class UnpreparedLaunches {
 public:
  UnpreparedLaunches(Counters& counters, const std::string& kernel);
  void add(bool served) const noexcept {
    (served ? served_ : refused_)->fetch_add(1, std::memory_order_relaxed);
  }

 private:
  const PerKernel::Number served_, refused_;
};

struct Counters {
  Tally compiles{"compiled", "failed", "error"};
  Durations compile_seconds;
  Tally tunings{"finished", "evaluations", "seconds", "target", "stopped", "failed"};
  Durations tuning_seconds;
  Tally candidates{"measured",      "violates_constraint", "exceeds_limits", "compile_failed",
                   "launch_failed", "wrong_result",        "crashed",        "hung",
                   "out_of_memory"};
  PerKernel problems;
  PerKernel unprepared_served, unprepared_refused;
  std::atomic<std::uint64_t> wanted_cut{0};
  std::atomic<std::uint64_t> problems_evicted{0};
  /// Modules may outlive what counts them.
  const std::shared_ptr<std::atomic<std::uint64_t>> modules_unloaded =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  std::atomic<std::uint64_t> workspace_allocations{0};  ///< by launches
  std::atomic<std::uint64_t> swaps{0};
  Tally prepare_keys{"waiting", "found", "compiled", "missing", "failed"};
  Tally worker_restarts{"fault", "killed", "late", "stopped", "memory", "device", "peer"};
  Tally agreements{"plan", "defaults", "failed"};
  Durations agreement_seconds;
  std::atomic<std::uint64_t> background_errors{0};
  std::atomic<std::uint64_t> overdue{0}, overdue_total{0};  ///< trials in this process

  /// Fills in the members that come from here.
  void read(RuntimeMetrics& metrics) const;
};

}  // namespace kiln::runtime
