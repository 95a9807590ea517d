// Empties a device's last-level cache of whatever a launch could find there.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>

#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// A scratch larger than the cache. Filling it displaces everything else. Not thread-safe.
class CacheFlush {
 public:
  /// Flushes nothing.
  CacheFlush() = default;
  /// Takes at most `most` bytes and at most an eighth of the device's memory; nothing on a device
  /// whose cache size is unknown. @throws OutOfMemory when a tuning may not take so much;
  /// EnvironmentError when the device does not give it.
  explicit CacheFlush(const std::shared_ptr<Device>& device,
                      std::size_t most = std::numeric_limits<std::size_t>::max());

  /// Whether run() does anything.
  explicit operator bool() const noexcept { return scratch_.bytes() != 0; }

  /// Puts the flush on `stream` and does not wait for it.
  void run(Stream stream);

 private:
  DeviceMemory scratch_;
  std::byte value_{0};
};

}  // namespace kiln::runtime
