// What code is generated for: an exact GPU architecture, or this host's CPU.
//
//   kiln::Target t = kiln::Target::parse("sm_90a");   // throws UserError on an unknown name
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kiln/version.hpp"

namespace kiln {

/// A code-generation target. A value type; two targets are equal when binaries are interchangeable.
struct Target {
  enum class Kind { cuda, host };

  Kind kind = Kind::host;
  /// `sm_80`, `sm_90a`, `sm_100a`, ... or a CPU level such as `x86-64-v3`.
  std::string arch;

  /// Accepts `sm_NN`, `sm_NNa`, `sm_NNf`, `host` (this machine's CPU) and CPU levels.
  /// @throws UserError naming the text and the known names.
  static Target parse(std::string_view text);

  /// The CPU this process runs on, as the widest level it supports.
  static Target this_host();

  bool operator==(const Target&) const = default;
};

/// 90 for `sm_90` and `sm_90a`; 0 for CPUs.
int compute_capability(const Target& target) noexcept;

/// The targets whose binaries run on a machine of this target: this one first, then the others, the
/// closest first. These are narrower CPU levels; for GPUs, earlier chips of the same major version
/// (CUDA C++ Programming Guide, "Binary Compatibility"; for `f` targets, "Family-Specific
/// Features").
std::vector<Target> targets_that_run_on(const Target& target);

}  // namespace kiln
