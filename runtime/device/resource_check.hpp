// Why a launch cannot work, found without launching: by its description alone, and by what the
// compiler reports.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/binary.hpp"
#include "kiln/detail/launch_plan.hpp"
#include "kiln/device.hpp"
#include "kiln/occupancy.hpp"

namespace kiln::runtime {

/// Whether there is nothing to launch.
bool empty(const Launch& launch) noexcept;

/// Why no kernel can be launched like this on the device; empty when it may be. An empty
/// grid is no obstacle: there is nothing to launch.
std::string launch_obstacle(const Launch& launch, const DeviceLimits& limits);

/// In words: `64 bytes and 1 semaphore`.
std::string describe(const WorkspaceSize& size);
/// What is wrong with the step of this entry.
std::string step_obstacle(std::string_view entry, std::string_view why);

/// Why a device cannot have a workspace of this size; empty when it may.
std::string workspace_obstacle(const WorkspaceSize& size, const DeviceLimits& limits);

/// Why this compiled kernel cannot be launched like this: threads over __launch_bounds__,
/// registers or shared memory over what a block can have, no block that fits a multiprocessor.
/// Spilling is slow, not wrong, and is never a reason. Empty when the kernel can be launched.
/// Includes `launch_obstacle`.
std::string resource_obstacle(const codegen::ResourceUsage& usage, const Launch& launch,
                              const DeviceLimits& limits);

/// The same for a kernel with its steps, whose resources are behind those of its own entry.
/// @throws InternalError when these are not the plan's steps
std::string resource_obstacle(std::span<const codegen::ResourceUsage> entries,
                              const detail::LaunchPlan& plan, const DeviceLimits& limits);
/// For a kernel that is loaded, by another exact problem than it was loaded for: launch_obstacle,
/// and of a cooperative grid also whether it fits.
std::string loaded_obstacle(const codegen::ResourceUsage& usage, const Launch& launch,
                            const DeviceLimits& limits);

/// The resources of the kernel's own entry, then of its steps.
std::vector<codegen::ResourceUsage> resources_of_entries(const codegen::Binary& binary);

/// For a launch that `resource_obstacle` accepts; also for resources that are not known yet (0).
Occupancy occupancy(const codegen::ResourceUsage& usage, const Launch& launch,
                    const DeviceLimits& limits) noexcept;

}  // namespace kiln::runtime
