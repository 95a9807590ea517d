#include "runtime/support/counters.hpp"

#include <algorithm>
#include <numeric>

#include "kiln/error.hpp"

namespace kiln {

std::uint64_t Histogram::count() const noexcept {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

namespace runtime {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void Tally::add(std::string_view value, std::int64_t by) {
  for (std::size_t i = 0; i < size_; ++i)
    if (value == values_[i]) {
      counts_[i].fetch_add(static_cast<std::uint64_t>(by), kRelaxed);
      return;
    }
  throw InternalError("a metric has no label value '" + std::string(value) + "'");
}

void Tally::clear() noexcept {
  for (auto& count : counts_) count.store(0, kRelaxed);
}

MetricSeries Tally::read() const {
  MetricSeries series;
  for (std::size_t i = 0; i < size_; ++i) series[{values_[i]}] = counts_[i].load(kRelaxed);
  return series;
}

void Durations::add(double seconds) noexcept {
  const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
  counts_[static_cast<std::size_t>(bucket - kBounds.begin())].fetch_add(1, kRelaxed);
  sum_.fetch_add(seconds, kRelaxed);
}

Histogram Durations::read() const {
  Histogram histogram;
  histogram.bounds.assign(kBounds.begin(), kBounds.end());
  for (const auto& count : counts_) histogram.counts.push_back(count.load(kRelaxed));
  histogram.sum = sum_.load(kRelaxed);
  return histogram;
}

PerKernel::Number PerKernel::of(const std::string& kernel) {
  std::lock_guard lock(mutex_);
  const auto known = numbers_.find(kernel);
  if (known != numbers_.end()) return known->second;
  Number& number = numbers_[numbers_.size() < kMost ? kernel : "other"];
  if (!number) number = std::make_shared<std::atomic<std::int64_t>>(0);
  return number;
}

MetricSeries PerKernel::read() const {
  MetricSeries series;
  std::lock_guard lock(mutex_);
  for (const auto& [kernel, number] : numbers_)
    series[{kernel}] =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, number->load(kRelaxed)));
  return series;
}

UnpreparedLaunches::UnpreparedLaunches(Counters& counters, const std::string& kernel)
    : served_(counters.unprepared_served.of(kernel)),
      refused_(counters.unprepared_refused.of(kernel)) {}

void Counters::read(RuntimeMetrics& metrics) const {
  metrics.compiles_total = compiles.read();
  metrics.compile_seconds = compile_seconds.read();
  metrics.tunings_total = tunings.read();
  metrics.tuning_seconds = tuning_seconds.read();
  metrics.candidates_total = candidates.read();
  metrics.problems = problems.read();
  for (const auto& [kernel, count] : unprepared_served.read())
    metrics.unprepared_launches_total[{kernel.front(), "true"}] = count;
  for (const auto& [kernel, count] : unprepared_refused.read())
    metrics.unprepared_launches_total[{kernel.front(), "false"}] = count;
  metrics.wanted_cut_total = wanted_cut.load(kRelaxed);
  metrics.prepare_keys = prepare_keys.read();
  metrics.worker_restarts_total = worker_restarts.read();
  metrics.swaps_total = swaps.load(kRelaxed);
  metrics.problems_evicted_total = problems_evicted.load(kRelaxed);
  metrics.modules_unloaded_total = modules_unloaded->load(kRelaxed);
  metrics.workspace_allocations_total = workspace_allocations.load(kRelaxed);
  metrics.agreements_total = agreements.read();
  metrics.agreement_seconds = agreement_seconds.read();
  metrics.background_errors_total = background_errors.load(kRelaxed);
  metrics.overdue_calls = overdue.load(kRelaxed);
  metrics.overdue_calls_total = overdue_total.load(kRelaxed);
}

}  // namespace runtime

}  // namespace kiln
