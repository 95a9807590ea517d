// What it takes to launch one config for one problem, without a device: the launch itself and the
// tensor maps. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kiln/definition.hpp"

namespace kiln::detail {

/// An argument that the entry takes as a map.
struct PlannedMap {
  std::size_t argument = 0;
  TensorMap map;
  bool operator==(const PlannedMap&) const = default;
};

std::vector<PlannedMap> planned_maps(const KernelDefinition& kernel,
                                     std::span<const std::int64_t> config,
                                     std::span<const std::int64_t> problem);

struct LaunchPlan {
  Launch launch;
  std::vector<PlannedMap> maps{};
  bool operator==(const LaunchPlan&) const = default;

  bool empty() const noexcept;  ///< there is nothing to launch
  /// Why no device with these limits could launch it, whatever the compiler makes of the kernel;
  /// empty: a device may be able to. An empty grid is allowed.
  std::string problem(const DeviceLimits& limits) const;
};

LaunchPlan plan(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                std::span<const std::int64_t> problem, const DeviceLimits& limits);

}  // namespace kiln::detail
