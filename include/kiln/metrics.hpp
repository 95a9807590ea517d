// How well a candidate uses its device.
//
//   const kiln::Roofline roof = kiln::roofline(runtime);
//   const kiln::Metrics m = kiln::metrics(result, result.winner(), &roof);
//   m.tflops; m.gbs; m.roofline_fraction; m.bound == kiln::BoundBy::memory;
#pragma once

#include "kiln/roofline.hpp"
#include "kiln/tune.hpp"

namespace kiln {

/// What a kernel at its roofline would wait for.
enum class BoundBy { unknown, compute, memory };
const char* to_string(BoundBy bound) noexcept;

/// The metrics of one launch. Values that are not known are 0.
struct Metrics {
  double seconds = 0;       ///< median
  double tflops = 0;        ///< 10^12 operations per second
  double gbs = 0;           ///< 10^9 bytes per second: the least that the problem moves
  double host_seconds = 0;  ///< as Candidate::host_seconds
  /// The roofline's time over the candidate's: 1 is as fast as the device was seen to be. Above 1
  /// where the data fits a cache, or the work can use units that the roofline does not know of.
  double roofline_fraction = 0;
  BoundBy bound = BoundBy::unknown;
};

/// Without a roofline the last two stay unknown; so does everything when the candidate was not
/// measured. Kernels with 2-byte element types are compared with tensor cores where the device has
/// them.
Metrics metrics(const TuneResult& result, const Candidate& candidate,
                const Roofline* roofline = nullptr) noexcept;

}  // namespace kiln
