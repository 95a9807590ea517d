// What puts the launches of a device in order.
#pragma once

#include <atomic>
#include <cstdint>

namespace kiln::runtime {

/// What puts launches in order: of those with equal orders, one begins when the one before has
/// ended; a programmatic one may begin earlier, and waits itself before it touches what both use.
struct StreamOrder {
  const void* stream = nullptr;
  std::uint64_t thread = 0;  ///< where a stream orders the launches of one thread only

  bool operator==(const StreamOrder&) const = default;
  /// Not 0, and no other thread's, of those that have ended either.
  static std::uint64_t this_thread() noexcept {
    static std::atomic<std::uint64_t> last{0};
    static thread_local const std::uint64_t here = ++last;
    return here;
  }
};

}  // namespace kiln::runtime
