// Timing of many candidates so that the comparison is fair: warm-up, interleaved rounds, medians.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device.hpp"
#include "runtime/device_workload.hpp"

namespace kiln::runtime {

double median(std::vector<double> values);
/// Median absolute deviation over the median; 0 for fewer than two values.
double relative_deviation(const std::vector<double>& values);

/// One candidate being timed.
struct Contestant {
  std::size_t candidate = 0;  ///< the tuner's index
  std::shared_ptr<LoadedKernel> kernel;
  LaunchGeometry geometry;
  std::size_t launches = 1;  ///< per sample, so that a sample is well over the clock's resolution
  std::vector<double> samples;  ///< seconds per launch
  double spent = 0;             ///< seconds of device time on it
  bool active = true;           ///< still in the race
  std::string failure;          ///< why it cannot be timed
};

struct MeasureOptions {
  int rounds = 5;                   ///< for everybody
  int final_rounds = 12;            ///< more, for those near the front
  double sample_seconds = 1e-4;     ///< aimed at by launching repeatedly
  double warm_up_below = 1e-2;      ///< seconds: longer launches need no separate warm-up
  double contestant_seconds = 1.0;  ///< device time for one contestant; three samples in any case
  double give_up_factor = 2.0;      ///< over the leader's time: out after the first sample
  double final_factor = 1.10;       ///< over the leader's median: not in the final
};

/// Times all contestants on the device's tuning stream. In each round every active contestant gives
/// one sample, so that a drift of the machine meets all alike. Those for which `keeps(candidate)`
/// is true give at least three, however slow. A launch that fails, or a clock that does not
/// advance, ends that contestant with a failure; the others go on. `progress(done, total)` counts
/// samples.
void measure(Device& device, DeviceWorkload& workload, std::vector<Contestant>& contestants,
             const MeasureOptions& options, const std::function<bool(std::size_t)>& keeps,
             const std::function<void(std::size_t, std::size_t)>& progress);

}  // namespace kiln::runtime
