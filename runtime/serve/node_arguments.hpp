// What a node of a graph launches with, where the config in use takes other arguments than the
// captured one: tensor maps in the place of pointers, a workspace behind all arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/handle_core.hpp"
#include "kiln/workspace.cuh"
#include "kiln/workspace.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/entry_arguments.hpp"

namespace kiln::runtime {

/// The pointers that a launch's entry took inside of tensor maps, by argument.
using MappedPointers = std::vector<std::pair<std::size_t, void*>>;

/// @param args the caller's
MappedPointers mapped_pointers(const detail::Launchable& launched, void* const* args);

/// What an entry's workspace must have; nothing: it takes none.
std::optional<WorkspaceSize> workspace_of(const detail::Launchable& ready,
                                          std::span<const std::int64_t> problem);

/// Why a node that launches the one cannot launch the other, whatever its arguments are; empty: it
/// can.
std::string node_obstacle(const detail::Launchable& captured, const detail::Launchable& now);

/// The workspaces of refreshed nodes. Launches of one order share one, as they do on their stream,
/// but not with what is launched outside of the graph. Used by one thread at a time.
class NodeWorkspaces {
 public:
  /// `exec`: the executable graph. The semaphores of what is new are 0. @throws UserError when no
  /// device could have this size, EnvironmentError when it cannot be allocated
  std::pair<Workspace, std::shared_ptr<const void>> of(const std::shared_ptr<Device>& device,
                                                       const void* exec, const void* loader,
                                                       const StreamOrder& order,
                                                       const WorkspaceSize& size);

 private:
  struct Owned {
    const void *exec, *loader;
    StreamOrder order;
    WorkspaceSize size;
    std::shared_ptr<const DeviceMemory> memory;
  };
  std::vector<Owned> all_;
};

/// Turns the arguments of a captured node into those of the config in use.
class NodeArguments {
 public:
  /// @throws UserError when a map breaks a rule of the hardware
  NodeArguments(const detail::Launchable& now, std::span<const std::int64_t> problem,
                MappedPointers mapped, std::optional<Workspace> workspace);

  /// Calls `use` with the new arguments, which last as long as the call. `captured`: those of the
  /// node. @throws as EntryArguments::with
  void operator()(void* const* captured, const std::function<void(void**)>& use) const;

 private:
  std::size_t count_;
  MappedPointers mapped_;
  std::optional<Workspace> workspace_;
  std::shared_ptr<const EntryArguments> entry_;
};

}  // namespace kiln::runtime
