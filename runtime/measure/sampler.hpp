// One sample at a time: what the clock shows for some launches, after what must come before them.
#pragma once

#include <functional>

#include "runtime/measure/race.hpp"

namespace kiln::runtime {

/// As Device::time. @throws also EnvironmentError when the clock shows zero, a negative number or
/// no number.
double timed(Device& device, Stream stream, const std::function<void()>& enqueue);
/// Before a sample in step, when its data are on their way: returns when they are there and all
/// ranks have come, where a RankMeeting makes them meet.
void wait_for_ranks(Device& device, Stream stream);

struct WarmUp {
  double seconds = 0;  ///< of the last launch
  int launches = 0;
  bool stable = false;  ///< the last two agree
};
/// Calls `once` (seconds of a launch) until two in a row agree within `tolerance`, `most` calls
/// were made, or `enough` says of the last one and their number that more would be a waste.
WarmUp warm_up(const std::function<double()>& once, double tolerance, int most,
               const std::function<bool(double, int)>& enough);

/// Launches that make a sample of `sample_seconds`: 1 to `most`.
std::size_t launches_for(double once, double sample_seconds, std::size_t most);

/// Samples contestants on their bench. A failure is noted in the contestant, which
/// is then no longer active.
class Sampler {
 public:
  /// Options and bench must outlive it.
  Sampler(TrialBench& bench, const RaceOptions& options);

  /// Whether a contestant is not worth more samples, given the seconds of its fastest launch.
  using Hopeless = std::function<bool(double seconds)>;
  /// Warms up, settles how many launches make a sample, drops earlier samples and takes the first
  /// one. After two launches, or one long one, `hopeless` is asked (empty: never). If it agrees,
  /// the contestant leaves the race with the one sample that it has.
  void start(Contestant& contestant, const Hopeless& hopeless);
  /// Takes one more.
  void sample(Contestant& contestant);
  /// Times one launch by itself, which is not added to the samples. Infinite when that fails.
  double probe(Contestant& contestant);

 private:
  double take(Contestant& contestant, std::size_t launches);
  void fail(Contestant& contestant, const Error& error);

  TrialBench& bench_;
  const RaceOptions& options_;
};

}  // namespace kiln::runtime
