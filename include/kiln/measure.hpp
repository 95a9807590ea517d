// How long does it take? Times any work on a runtime's device, as carefully as the tuner does.
//
//   kiln::Timing t = kiln::measure(runtime, [&](kiln::Stream s) { add(s, out, a, b, n); });
//   std::printf("%.3f ms (p05 %.3f, p95 %.3f, %zu samples)\n", t.median * 1e3, t.p05 * 1e3,
//               t.p95 * 1e3, t.samples.size());
//   for (const std::string& w : t.warnings) std::puts(w.c_str());
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kiln/runtime.hpp"

namespace kiln {

struct MeasureOptions {
  double seconds = 0.5;     ///< wall time at most, unless the least number of samples takes longer
  std::size_t samples = 0;  ///< ends earlier, after this many; 0: as many as the time allows
  std::size_t least_samples = 5;
  double sample_seconds = 1e-4;  ///< aimed at by calling repeatedly, where that is allowed
  /// Each sample is one call, and finds the device's last-level cache full of something else. Off:
  /// a call finds what the one before left, and short calls share a sample.
  bool cold_cache = true;
  /// Where the device can record them, a sample's calls become one graph, so that the time is that
  /// on the device, without the launches. `work` is then called while its stream is being captured,
  /// and what it does on the CPU is not part of the time. Not used together with `before`.
  bool graph_replay = true;
  /// Called before each sample, outside the timed region, with the stream that `work` gets; a
  /// sample is then one call. Resets what the work changes.
  std::function<void(Stream)> before{};
  std::optional<Stream> stream{};  ///< nothing: one of the runtime's own
};

/// Seconds per call.
struct Timing {
  double median = 0, mean = 0, min = 0, max = 0;
  double p05 = 0, p25 = 0, p75 = 0, p95 = 0;
  double relative_deviation = 0;  ///< median absolute deviation over the median
  std::vector<double> samples;    ///< in the order taken
  std::size_t launches = 1;       ///< calls per sample
  std::size_t warm_up = 0;        ///< calls before the first sample
  bool replayed = false;          ///< as graphs
  bool cold = false;              ///< the cache was filled with something else before each sample
  std::vector<std::string> warnings;  ///< drift or throttling, noise, what could not be done

  /// `fraction` in [0, 1]: 0.99 is the 99th percentile. @throws UserError outside of it.
  double quantile(double fraction) const;
};

/// Times `work`, which puts its launches on the stream it is given: launches of Kiln handles, of
/// the caller's own kernels, copies. On the host it may be any function. Waits for the device.
/// Launches that tune or compile do so while warming up. Not to be called from several threads at
/// once, nor while something is tuned: the two would disturb each other's clocks.
/// @throws UserError when `work` is empty or an option makes no sense; EnvironmentError when the
/// device fails, or its clock does not advance over a call; what `work` and `before` throw.
Timing measure(const Runtime& runtime, const std::function<void(Stream)>& work,
               const MeasureOptions& options = {});

}  // namespace kiln
