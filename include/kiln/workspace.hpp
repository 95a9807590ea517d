// Memory that a kernel needs besides its arguments: scratch for partial results, and semaphores by
// which a block finds out that it is the last one.
//
//   kernel.workspace = {.size = [](const Sum& c, const Line& p, const kiln::DeviceLimits&) {
//                         const auto blocks = c.blocks(p);
//                         return kiln::WorkspaceSize{.bytes = blocks * sizeof(float),
//                                                    .semaphores = 1};
//                       },
//                       .only_if = [](const Sum& c) { return c.split > 1; }};
//
// Entries of configs that the rule applies to take one more parameter, the last one, a
// `kiln::Workspace` (kiln/workspace.cuh). The runtime owns the memory: one workspace per handle and
// stream, which grows when a problem needs more, but not while the stream is being captured. All
// launches of a handle on one stream share it, so an entry whose launch is programmatic must
// execute `griddepcontrol.wait` before it touches its workspace: the launch in front of it may
// still be using it. Verification runs launches one at a time and does not find a kernel that
// breaks this rule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kiln/device.hpp"

namespace kiln {

/// Scratch and semaphores are aligned to this many bytes.
constexpr std::size_t kWorkspaceAlignment = 256;

struct WorkspaceSize {
  std::size_t bytes = 0;       ///< of scratch, which a launch finds with any contents
  std::size_t semaphores = 0;  ///< 32-bit words: 0 at the first launch, left 0 by every launch

  /// Bytes of the semaphores, rounded up so that the scratch behind them is aligned.
  constexpr std::size_t semaphore_bytes() const noexcept {
    return (semaphores * sizeof(std::uint32_t) + kWorkspaceAlignment - 1) / kWorkspaceAlignment *
           kWorkspaceAlignment;
  }
  /// Bytes of memory that hold both.
  constexpr std::size_t total() const noexcept { return semaphore_bytes() + bytes; }
  /// Whether a workspace of this size serves where `other` is needed.
  constexpr bool covers(const WorkspaceSize& other) const noexcept {
    return bytes >= other.bytes && semaphores >= other.semaphores;
  }
  /// The least size that covers both.
  friend constexpr WorkspaceSize max(const WorkspaceSize& a, const WorkspaceSize& b) noexcept {
    return {std::max(a.bytes, b.bytes), std::max(a.semaphores, b.semaphores)};
  }
  bool operator==(const WorkspaceSize&) const = default;
};

/// A rule over values in field order (KernelDefinition). Both functions are pure, and callable from
/// any thread.
struct WorkspaceRule {
  using Span = std::span<const std::int64_t>;
  /// Empty: no config has a workspace.
  std::function<WorkspaceSize(Span config, Span problem, const DeviceLimits&)> size{};
  std::function<bool(Span config)> only_if{};  ///< empty: all configs have one

  bool applies(Span config) const { return size && (!only_if || only_if(config)); }
};

/// The same over a typed kernel's structs.
template <class Config, class Problem>
struct TypedWorkspaceRule {
  WorkspaceSize (*size)(const Config&, const Problem&, const DeviceLimits&) = nullptr;
  bool (*only_if)(const Config&) = nullptr;
};

}  // namespace kiln
