// What a device can do at best, measured on it: bytes moved and operations computed per second.
//
//   const kiln::Roofline roof = kiln::roofline(runtime);  // seconds at first, then from the store
//   roof.bytes_per_second; roof.flops_per_second;
//   roof.seconds(flops, bytes);                           // no kernel is expected to be faster
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "kiln/tune.hpp"

namespace kiln {

class Runtime;

struct Roofline {
  /// A copy between arrays that are together several times the last-level cache: bytes read and
  /// written.
  double bytes_per_second = 0;
  /// Fused multiply-adds of floats outside of tensor cores, two operations each.
  double flops_per_second = 0;
  /// Multiply-adds of 2-byte elements on tensor cores (mma.sync), summed in float, two operations
  /// each; 0 where there are none.
  double tensor_flops_per_second = 0;
  std::string device{};     ///< as DeviceInfo::name
  bool from_store = false;  ///< nothing was measured

  /// Operations per byte above which computing takes longer than moving; 0 when unknown.
  double ridge(bool tensor_cores = false) const noexcept;
  /// The least time for so much work, moving and computing at once; 0 when nothing is known.
  double seconds(double flops, double bytes, bool tensor_cores = false) const noexcept;
};

/// Measures with kernels of Kiln's own, tuned like any other and kept in the runtime's store, so
/// that a device is measured once. Blocks meanwhile; thread-safe.
/// @param options  `progress`, `stop` and `retune` apply; what was stopped before it was measured
/// is 0.
/// @throws EnvironmentError when the device or its compiler fails.
Roofline roofline(const Runtime& runtime, const TuneOptions& options = {});
/// The roofline in the runtime's store, as measured before. Measures nothing.
std::optional<Roofline> known_roofline(const Runtime& runtime);

}  // namespace kiln
