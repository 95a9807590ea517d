// Memory for a kernel that is not trusted yet: guard zones around it show what was written outside,
// and a comparison with what was uploaded shows what was written inside.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// What guard zones hold.
enum class GuardPattern {
  bytes,  ///< no two neighbours alike, none of them a value that arrays of bytes often hold
  nan     ///< a NaN in every floating-point type: what is read there shows in the results
};
/// kMostGuardBytes of it; lives as long as the process.
std::span<const std::byte> guard_pattern(GuardPattern pattern);
inline constexpr std::size_t kMostGuardBytes = std::size_t{256} << 10;

/// Device memory between two guard zones. Aligned as an allocation of its own would be, at least.
/// Move-only; keeps its device alive. Not thread-safe.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  /// For zero bytes nothing is allocated: data() is null. @throws as take_spare
  /// @pre guard_bytes is a multiple of 4096 and at most kMostGuardBytes
  GuardedMemory(const std::shared_ptr<Device>& device, std::size_t bytes, std::size_t guard_bytes,
                GuardPattern pattern);

  void* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

  /// What an object of this size takes of the device's memory.
  static std::uint64_t taken(const Device& device, std::size_t bytes, std::size_t guard_bytes);

  /// A byte that was written outside, as an offset from data(): negative before the array, at least
  /// bytes() after it. If there are several, the last one before the array, else the first one
  /// after it. Waits for the device's tuning stream.
  std::optional<std::ptrdiff_t> breach() const;
  /// Restores both guard zones.
  void repair();

 private:
  std::byte* before() const noexcept { return static_cast<std::byte*>(data_) - guard_bytes_; }
  std::byte* after() const noexcept { return static_cast<std::byte*>(data_) + bytes_; }

  DeviceMemory memory_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0, guard_bytes_ = 0;
  GuardPattern pattern_ = GuardPattern::bytes;
};

/// Returns the index of the first wrong byte among `total` bytes of device memory: the first bytes
/// of every `stride` bytes should equal `want`, the others may have any value. Downloads everything
/// and compares on all cores.
/// @pre stride >= want.size() > 0
std::optional<std::size_t> first_change(Device& device, const void* memory, std::size_t total,
                                        std::size_t stride, std::span<const std::byte> want);

}  // namespace kiln::runtime
