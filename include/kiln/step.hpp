// Further entries of a kernel's source, which run on the same stream after its own entry: the
// reduction of a split product, the second pass of a sum.
//
//   kernel.steps = {{.entry = "reduce",
//                    .launch = [](const Sum& c, const Line& p) {
//                      return kiln::Launch{{unsigned(c.blocks(p) + 255) / 256}, {256}};
//                    },
//                    .only_if = [](const Sum& c) { return c.split > 1; }}};
//
// All entries of a config are instantiated with the same config and types, and take the same
// parameters: the arguments, tensor maps in the place of some of them, and the workspace. They are
// compiled as one module. A config with its steps is one candidate: it is compiled, verified,
// timed, recorded and launched as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "kiln/launch_rule.hpp"

namespace kiln {

/// A step of a kernel whose values are in field order (KernelDefinition).
struct KernelStep {
  using Span = std::span<const std::int64_t>;
  std::string entry{};  ///< as KernelDefinition::entry; another one than all others
  /// As KernelDefinition::launch. A step whose grid is empty is skipped; where the grid of the
  /// kernel's own entry is empty, no step runs.
  LaunchRule launch{};
  std::function<bool(Span config)> only_if{};  ///< empty: all configs have the step

  bool applies(Span config) const { return !only_if || only_if(config); }
};

/// The same over a typed kernel's structs.
template <class Config, class Problem>
struct TypedKernelStep {
  std::string entry{};
  TypedLaunchRule<Config, Problem> launch{};
  bool (*only_if)(const Config&) = nullptr;
};

}  // namespace kiln
