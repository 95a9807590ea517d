#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "kiln/measure.hpp"
#include "runtime/device/cache_flush.hpp"
#include "runtime/measure/sampler.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/support/trace.hpp"

namespace kiln {

namespace {

using detail::format;
using runtime::Clock;
using runtime::seconds_since;

constexpr int kMostWarmUp = 20;
constexpr double kWarmUpTolerance = 0.03;
/// A single call that takes longer needs no second one to be warm.
constexpr double kLongCall = 0.1;
constexpr std::size_t kMostCalls = 1000;
constexpr std::size_t kMostSamples = 1000000;
constexpr double kNoisy = 0.05;

void check(const std::function<void(Stream)>& work, const MeasureOptions& o) {
  if (!work) throw UserError("measure: `work` is empty");
  if (!(o.seconds > 0) || !std::isfinite(o.seconds))
    throw UserError(format("measure: `seconds` is {}; a positive number is needed", o.seconds));
  if (!(o.sample_seconds > 0) || !std::isfinite(o.sample_seconds))
    throw UserError(
        format("measure: `sample_seconds` is {}; a positive number is needed", o.sample_seconds));
  if (o.least_samples == 0) throw UserError("measure: `least_samples` is 0; at least 1 is needed");
}

class Measurement {
 public:
  Measurement(std::shared_ptr<runtime::Device> device, const std::function<void(Stream)>& work,
              const MeasureOptions& options)
      : device_(std::move(device)),
        work_(work),
        options_(options),
        stream_(options.stream ? *options.stream : device_->tuning_stream()) {}

  Timing run() {
    const auto start = Clock::now();
    if (options_.cold_cache) make_flush();
    const runtime::WarmUp warm =
        runtime::warm_up([&] { return sample(1); }, kWarmUpTolerance, kMostWarmUp,
                         [&](double seconds, int) {
                           return seconds >= kLongCall || out_of_time(start, options_.seconds / 2);
                         });
    timing_.warm_up = static_cast<std::size_t>(warm.launches);
    if (!options_.before && !flush_)
      timing_.launches = runtime::launches_for(warm.seconds, options_.sample_seconds, kMostCalls);
    if (options_.graph_replay && !options_.before) record();
    while (!enough(start)) timing_.samples.push_back(sample(timing_.launches));
    summarize();
    return std::move(timing_);
  }

 private:
  bool out_of_time(Clock::time_point start, double seconds) const {
    return std::max(seconds_since(start), device_seconds_) >= seconds;
  }

  bool enough(Clock::time_point start) const {
    const std::size_t taken = timing_.samples.size();
    const std::size_t most = options_.samples ? options_.samples : kMostSamples;
    if (taken >= most) return true;
    return taken >= std::min(options_.least_samples, most) && out_of_time(start, options_.seconds);
  }

  void make_flush() {
    try {
      flush_ = runtime::CacheFlush(device_);
      timing_.cold = static_cast<bool>(flush_);
      if (!timing_.cold)
        timing_.warnings.push_back("the size of the device's cache is unknown: calls find it warm");
    } catch (const std::exception& error) {
      timing_.warnings.push_back(std::string("no memory to keep the cache cold: ") + error.what());
    }
  }

  void record() {
    replay_ = device_->capture(stream_, [&] { call(timing_.launches); });
    if (!replay_) return;
    timing_.replayed = true;
    sample(timing_.launches);  // the first replay pays for its upload
    timing_.warm_up += timing_.launches;
  }

  void call(std::size_t times) {
    for (std::size_t i = 0; i < times; ++i) work_(stream_);
  }

  /// Seconds per call.
  double sample(std::size_t calls) {
    if (options_.before) options_.before(stream_);
    flush_.run(stream_);
    const double seconds = runtime::timed(*device_, stream_, [&] {
      if (replay_)
        replay_->run(stream_);
      else
        call(calls);
    });
    device_seconds_ += seconds;
    return seconds / static_cast<double>(calls);
  }

  void summarize() {
    const std::vector<double>& s = timing_.samples;
    timing_.median = runtime::median(s);
    timing_.mean = std::accumulate(s.begin(), s.end(), 0.0) / static_cast<double>(s.size());
    timing_.min = *std::min_element(s.begin(), s.end());
    timing_.max = *std::max_element(s.begin(), s.end());
    timing_.p05 = timing_.quantile(0.05);
    timing_.p25 = timing_.quantile(0.25);
    timing_.p75 = timing_.quantile(0.75);
    timing_.p95 = timing_.quantile(0.95);
    timing_.relative_deviation = runtime::relative_deviation(s);
    if (const auto drift = runtime::find_drift(s))
      timing_.warnings.push_back(describe(*drift, "this work"));
    if (timing_.relative_deviation > kNoisy)
      timing_.warnings.push_back(
          format("samples differ by {:.1f} % of their median: other work runs on this machine, or "
                 "the work's own time varies",
                 timing_.relative_deviation * 100));
  }

  std::shared_ptr<runtime::Device> device_;
  const std::function<void(Stream)>& work_;
  const MeasureOptions& options_;
  Stream stream_;
  runtime::CacheFlush flush_;
  std::unique_ptr<runtime::Replay> replay_;
  double device_seconds_ = 0;
  Timing timing_;
};

}  // namespace

double Timing::quantile(double fraction) const {
  if (!(fraction >= 0 && fraction <= 1))
    throw UserError(format("quantile of {}: a fraction between 0 and 1 is needed", fraction));
  return runtime::quantile(samples, fraction);
}

Timing measure(const Runtime& runtime, const std::function<void(Stream)>& work,
               const MeasureOptions& options) {
  check(work, options);
  return Measurement(detail::Access::engine(runtime)->device(), work, options).run();
}

}  // namespace kiln
