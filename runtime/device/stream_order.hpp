// What puts the launches of a device in order.
#pragma once

#include <cstdint>

namespace kiln::runtime {

/// An order of launches. Those with equal orders run one after the other. A programmatic one may
/// begin earlier, and waits by itself before it touches what both use.
struct StreamOrder {
  const void* stream = nullptr;
  std::uint64_t thread = 0;  ///< where a stream orders the launches of one thread only

  bool operator==(const StreamOrder&) const = default;
  /// A number that is not 0 and that no other thread has, or had before it ended.
  static std::uint64_t this_thread() noexcept;
  /// A number that is not 0 and that no other running thread has. Another thread may have had it
  /// and have ended: for devices whose launches have finished when they return.
  static std::uint64_t this_running_thread();
};

}  // namespace kiln::runtime
