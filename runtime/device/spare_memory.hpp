// Device memory for tunings: what the device can still give, less what the program has reserved for
// itself (RuntimeOptions::reserve_bytes). Tunings ask before they allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "runtime/device/device.hpp"

namespace kiln::runtime {

/// The device lacks the memory now; it may have it later.
class OutOfMemory : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

/// Bytes that a tuning may still take; nothing where the device does not know what it can give.
std::optional<std::uint64_t> spare_bytes(const Device& device);

/// What an allocation of `bytes` takes of the device's memory.
std::uint64_t taken_by(const Device& device, std::uint64_t bytes) noexcept;

/// @param bytes as taken_by says
/// @throws OutOfMemory that names `what`, `bytes`, what is free and what is reserved, where a
/// tuning may not take that many
void require_spare(const Device& device, std::string_view what, std::uint64_t bytes);

/// Allocates for a tuning. @throws OutOfMemory likewise; what Device::allocate throws, because what
/// was there a moment ago may be gone
DeviceMemory take_spare(const std::shared_ptr<Device>& device, std::string_view what,
                        std::size_t bytes);

}  // namespace kiln::runtime
