// Why a launch cannot work, found without launching: by its description alone, and by what the
// compiler reports.
#pragma once

#include <string>

#include "codegen/binary.hpp"
#include "kiln/device.hpp"
#include "kiln/occupancy.hpp"

namespace kiln::runtime {

/// Whether there is nothing to launch.
bool empty(const Launch& launch) noexcept;

/// Why no kernel can be launched like this on the device; empty when it may be. An empty
/// grid is no problem: there is nothing to launch.
std::string launch_problem(const Launch& launch, const DeviceLimits& limits);

/// Why this compiled kernel cannot be launched like this: threads over __launch_bounds__,
/// registers or shared memory over what a block can have, no block that fits a multiprocessor.
/// Spilling is slow, not wrong, and is never a reason. Empty when the kernel can be launched.
/// Includes `launch_problem`.
std::string resource_problem(const codegen::ResourceUsage& usage, const Launch& launch,
                             const DeviceLimits& limits);

/// For a launch that `resource_problem` accepts; also for resources that are not known yet (0).
Occupancy occupancy(const codegen::ResourceUsage& usage, const Launch& launch,
                    const DeviceLimits& limits) noexcept;

}  // namespace kiln::runtime
