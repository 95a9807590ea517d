#include "runtime/device/spare_memory.hpp"

#include <algorithm>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

namespace {

/// Bytes that any device has. Without a reserve they are not asked for, because the host takes some
/// 50 us to say what is there.
constexpr std::uint64_t kAlwaysThere = std::uint64_t{1} << 20;

std::optional<std::uint64_t> free_bytes(const Device& device) {
  const auto there = device.available();
  if (!there) return {};
  return static_cast<std::uint64_t>(std::max<std::int64_t>(0, *there));
}

}  // namespace

std::optional<std::uint64_t> spare_bytes(const Device& device) {
  const auto free = free_bytes(device);
  if (!free) return {};
  return *free - std::min(*free, device.reserve());
}

std::uint64_t taken_by(const Device& device, std::uint64_t bytes) noexcept {
  const std::uint64_t granularity = device.granularity();
  return (bytes + granularity - 1) / granularity * granularity;
}

void require_spare(const Device& device, std::string_view what, std::uint64_t bytes) {
  const std::uint64_t reserve = device.reserve();
  if (bytes == 0 || (reserve == 0 && bytes < kAlwaysThere)) return;
  const auto free = free_bytes(device);
  if (!free || bytes <= *free - std::min(*free, reserve)) return;
  throw OutOfMemory(detail::format(
      "{}: {} bytes of the device's memory are needed; {} are free, and {} are reserved", what,
      bytes, *free, reserve));
}

DeviceMemory take_spare(const std::shared_ptr<Device>& device, std::string_view what,
                        std::size_t bytes) {
  require_spare(*device, what, taken_by(*device, bytes));
  return {device, bytes};
}

}  // namespace kiln::runtime
