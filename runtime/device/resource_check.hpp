// Why a launch cannot work, found without launching: by its geometry alone, and by what the
// compiler reports.
#pragma once

#include <string>

#include "codegen/binary.hpp"
#include "kiln/device.hpp"
#include "kiln/occupancy.hpp"

namespace kiln::runtime {

/// Whether there is nothing to launch.
bool empty(const LaunchGeometry& geometry) noexcept;

/// Why no kernel can be launched with this geometry on the device; empty when it may be. An empty
/// grid is no problem: there is nothing to launch.
std::string launch_problem(const LaunchGeometry& geometry, const DeviceLimits& limits);

/// Why this compiled kernel cannot be launched with this geometry: threads over __launch_bounds__,
/// registers or shared memory over what a block can have, no block that fits a multiprocessor.
/// Spilling is slow, not wrong, and is never a reason. Empty when the kernel can be launched.
/// Includes `launch_problem`.
std::string resource_problem(const codegen::ResourceUsage& usage, const LaunchGeometry& geometry,
                             const DeviceLimits& limits);

/// For a launch that `resource_problem` accepts; also for resources that are not known yet (0).
Occupancy occupancy(const codegen::ResourceUsage& usage, const LaunchGeometry& geometry,
                    const DeviceLimits& limits) noexcept;

}  // namespace kiln::runtime
