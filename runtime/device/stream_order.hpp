// What puts the launches of a device in order.
#pragma once

namespace kiln::runtime {

/// What puts launches in order: of those with equal orders, one begins when the one before has
/// ended; a programmatic one may begin earlier, and waits itself before it touches what both use.
struct StreamOrder {
  const void* stream = nullptr;
  const void* thread = nullptr;  ///< where a stream orders the launches of one thread only

  bool operator==(const StreamOrder&) const = default;
  /// Different for threads that run at the same time.
  static const void* this_thread() noexcept {
    static thread_local const char here = 0;
    return &here;
  }
};

}  // namespace kiln::runtime
