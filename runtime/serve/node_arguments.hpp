// What a node of a graph launches with, where the config in use takes other arguments than the
// captured one: tensor maps in the place of pointers, a workspace behind all arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/handle_core.hpp"
#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// The pointers that a launch's entry took inside of tensor maps, by argument.
using MappedPointers = std::vector<std::pair<std::size_t, void*>>;

/// @param args the caller's
MappedPointers mapped_pointers(const detail::Launchable& launched, void* const* args);

/// Why a node that launches the one cannot launch the other, whatever its arguments are; empty: it
/// can.
std::string node_obstacle(const detail::Launchable& captured, const detail::Launchable& now);

struct NodeArguments {
  NodeChange::Arguments arguments;              ///< empty: the node's own
  std::shared_ptr<const void> workspace_owner;  ///< of Kiln's memory
};

/// Of a node that is to launch `now` for this problem, whose handle lives. A workspace is that of
/// the stream that the node was captured on, as it would be if it were captured anew.
/// @throws what the kernel's functions throw; UserError when a map breaks a rule of the hardware or
/// the program has supplied too small a workspace; EnvironmentError when it cannot be allocated
NodeArguments node_arguments(const detail::Launchable& captured, const detail::Launchable& now,
                             std::span<const std::int64_t> problem, const MappedPointers& mapped,
                             const StreamOrder& order);

}  // namespace kiln::runtime
