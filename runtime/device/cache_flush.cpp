#include "runtime/device/cache_flush.hpp"

#include <algorithm>
#include <cstdint>

#include "runtime/device/spare_memory.hpp"

namespace kiln::runtime {

namespace {

/// A scratch of this many times the last-level cache leaves nothing of interest in it.
constexpr std::size_t kFlushOverCache = 2;

std::size_t flush_bytes(const DeviceInfo& info, std::size_t most) {
  const auto cache = static_cast<std::size_t>(std::max<std::int64_t>(0, info.limits.l2_bytes));
  if (info.limits.memory_bytes > 0)
    most = std::min(most, static_cast<std::size_t>(info.limits.memory_bytes) / 8);
  return std::min(kFlushOverCache * cache, most);
}

}  // namespace

CacheFlush::CacheFlush(const std::shared_ptr<Device>& device, std::size_t most)
    : scratch_(take_spare(device, "what empties the cache", flush_bytes(device->info(), most))) {}

void CacheFlush::run(Stream stream) {
  if (!*this) return;
  // Hardware that notices unchanged contents could skip the write, so each fill has another value.
  value_ = static_cast<std::byte>(std::to_integer<unsigned>(value_) + 1);
  scratch_.device()->fill(scratch_.data(), value_, scratch_.bytes(), stream);
}

}  // namespace kiln::runtime
