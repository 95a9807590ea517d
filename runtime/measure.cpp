#include "runtime/measure.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kiln/error.hpp"

namespace kiln::runtime {

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::infinity();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double relative_deviation(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double center = median(values);
  std::vector<double> distances;
  for (double v : values) distances.push_back(std::abs(v - center));
  return median(std::move(distances)) / center;
}

namespace {

class Race {
 public:
  Race(Device& device, DeviceWorkload& workload, const MeasureOptions& options)
      : device_(device), workload_(workload), options_(options), stream_(device.tuning_stream()) {}

  /// Warms up and settles how many launches make a sample.
  void start(Contestant& c) {
    double once = sample(c, 1);
    // The first launch warms caches and clocks up and is not counted, unless it is so long that
    // this cannot matter.
    if (once < options_.warm_up_below) once = sample(c, 1);
    if (!c.failure.empty()) return;
    c.samples.push_back(once);
    // An in/out argument is restored before each launch, so a sample is one launch.
    if (!workload_.has_in_out())
      c.launches = static_cast<std::size_t>(
          std::clamp(std::ceil(options_.sample_seconds / once), 1.0, 1000.0));
    // The single launch was timed alone; samples of several launches are another measure.
    if (c.launches > 1) c.samples = {sample(c, c.launches)};
  }

  void round(Contestant& c) {
    const double seconds = sample(c, c.launches);
    if (c.failure.empty()) c.samples.push_back(seconds);
  }

 private:
  double sample(Contestant& c, std::size_t launches) {
    if (!c.failure.empty()) return 0;
    try {
      workload_.restore(stream_);
      const double seconds = device_.time(stream_, [&] {
        for (std::size_t i = 0; i < launches; ++i)
          device_.launch(*c.kernel, c.geometry, stream_, workload_.arguments());
      });
      c.spent += seconds;
      if (seconds > 0 && std::isfinite(seconds)) return seconds / static_cast<double>(launches);
      c.failure = "the device's clock did not advance over a launch";
    } catch (const Error& error) {
      c.failure = error.what();
    }
    c.active = false;
    return 0;
  }

  Device& device_;
  DeviceWorkload& workload_;
  const MeasureOptions& options_;
  Stream stream_;
};

double leader(const std::vector<Contestant>& contestants) {
  double best = std::numeric_limits<double>::infinity();
  for (const Contestant& c : contestants)
    if (c.failure.empty() && !c.samples.empty()) best = std::min(best, median(c.samples));
  return best;
}

}  // namespace

void measure(Device& device, DeviceWorkload& workload, std::vector<Contestant>& contestants,
             const MeasureOptions& options, const std::function<bool(std::size_t)>& keeps,
             const std::function<void(std::size_t, std::size_t)>& progress) {
  Race race(device, workload, options);
  std::size_t done = 0;
  std::size_t total = contestants.size() * static_cast<std::size_t>(options.rounds);
  auto said = [&] {
    ++done;
    if (progress) progress(std::min(done, total), total);
  };
  // Out: who is far behind, and who has had its time. Those to be kept give three samples before.
  auto drop_slower_than = [&](double factor) {
    const double limit = leader(contestants) * factor;
    for (Contestant& c : contestants) {
      if (!c.active || c.samples.empty()) continue;
      const bool few = c.samples.size() < 3;
      if ((median(c.samples) > limit && !(few && keeps(c.candidate))) ||
          (c.spent > options.contestant_seconds && !few))
        c.active = false;
    }
  };

  for (Contestant& c : contestants) {
    race.start(c);
    said();
    drop_slower_than(options.give_up_factor);
  }
  for (int round = 1; round < options.rounds; ++round) {
    for (Contestant& c : contestants) {
      if (c.active) race.round(c);
      said();
    }
    drop_slower_than(options.give_up_factor);
  }
  drop_slower_than(options.final_factor);
  for (int round = 0; round < options.final_rounds; ++round) {
    for (Contestant& c : contestants)
      if (c.active) race.round(c);
    drop_slower_than(options.final_factor);
  }
}

}  // namespace kiln::runtime
