// What it takes to launch one config for one problem, without a device: the launches of its entry
// and of its steps, the tensor maps, the workspace. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

/// Nothing: the config's entries take no workspace.
std::optional<WorkspaceSize> planned_workspace(const KernelDefinition& kernel,
                                               std::span<const std::int64_t> config,
                                               std::span<const std::int64_t> problem,
                                               const DeviceLimits& limits);
/// The entries of all steps.
std::vector<std::string> step_entries(const KernelDefinition& kernel);
struct LaunchPlan {
  Launch launch;
  std::vector<PlannedMap> maps{};
  std::optional<WorkspaceSize> workspace{};  ///< where the entries take one, however small
  std::vector<Launch> steps{};               ///< the launches of the config's steps, in order
  std::vector<std::string> step_names{};     ///< their entries
  bool operator==(const LaunchPlan&) const = default;

  bool empty() const noexcept;  ///< neither the entry nor any step is launched
  /// Why no device with these limits could launch it, whatever the compiler makes of the kernel;
  /// empty: a device may be able to. An empty grid is allowed.
  std::string problem(const DeviceLimits& limits) const;
};

LaunchPlan plan(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                std::span<const std::int64_t> problem, const DeviceLimits& limits);

}  // namespace kiln::detail
