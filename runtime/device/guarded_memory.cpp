#include "runtime/device/guarded_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <tbb/blocked_range.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_reduce.h>

#include "runtime/device/spare_memory.hpp"

namespace kiln::runtime {

namespace {

/// Arrays of this size are aligned for huge pages (HostDevice), and must remain so.
constexpr std::size_t kHugeArray = std::size_t{2} << 20;
/// Downloaded at once: enough to outweigh a driver's call, and less than a core's cache.
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

std::vector<std::byte> make_pattern(GuardPattern pattern) {
  std::vector<std::byte> bytes(kMostGuardBytes);
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const std::uint32_t random = state >> 16;
    // NaNs of 2, 4 and 8 bytes: each ends in 0xff, after a byte with the upper bits set.
    bytes[i] = static_cast<std::byte>(pattern == GuardPattern::bytes ? 0x91 + random % 0x5e
                                      : i % 2                        ? 0xff
                                                                     : 0xf1 + random % 0x0e);
  }
  return bytes;
}

/// From the start of the allocation to the array.
std::size_t front_bytes(std::size_t bytes, std::size_t guard_bytes) {
  return bytes >= kHugeArray ? kHugeArray : guard_bytes;
}

/// Index of the first byte that differs; `size` when none does.
std::size_t mismatch(const std::byte* a, const std::byte* b, std::size_t size) {
  if (std::memcmp(a, b, size) == 0) return size;
  return static_cast<std::size_t>(std::mismatch(a, a + size, b).first - a);
}

}  // namespace

std::span<const std::byte> guard_pattern(GuardPattern pattern) {
  static const std::vector<std::byte> bytes = make_pattern(GuardPattern::bytes);
  static const std::vector<std::byte> nans = make_pattern(GuardPattern::nan);
  return pattern == GuardPattern::bytes ? bytes : nans;
}

GuardedMemory::GuardedMemory(const std::shared_ptr<Device>& device, std::size_t bytes,
                             std::size_t guard_bytes, GuardPattern pattern)
    : bytes_(bytes), guard_bytes_(guard_bytes), pattern_(pattern) {
  if (bytes == 0) return;
  const std::size_t front = front_bytes(bytes, guard_bytes);
  memory_ = take_spare(device, "an array of a tuning", front + bytes + guard_bytes);
  data_ = static_cast<std::byte*>(memory_.data()) + front;
  repair();
}

std::uint64_t GuardedMemory::taken(const Device& device, std::size_t bytes,
                                   std::size_t guard_bytes) {
  if (bytes == 0) return 0;
  return taken_by(device, front_bytes(bytes, guard_bytes) + bytes + guard_bytes);
}

std::optional<std::ptrdiff_t> GuardedMemory::breach() const {
  if (!data_) return {};
  const std::byte* const want = guard_pattern(pattern_).data();
  std::vector<std::byte> got(guard_bytes_);
  memory_.device()->copy_to_host(got.data(), before(), guard_bytes_);
  if (std::memcmp(got.data(), want, guard_bytes_) != 0) {
    std::size_t last = guard_bytes_ - 1;
    while (got[last] == want[last]) --last;
    return static_cast<std::ptrdiff_t>(last) - static_cast<std::ptrdiff_t>(guard_bytes_);
  }
  memory_.device()->copy_to_host(got.data(), after(), guard_bytes_);
  const std::size_t first = mismatch(got.data(), want, guard_bytes_);
  if (first == guard_bytes_) return {};
  return static_cast<std::ptrdiff_t>(bytes_ + first);
}

void GuardedMemory::repair() {
  if (!data_) return;
  const std::byte* const pattern = guard_pattern(pattern_).data();
  memory_.device()->copy_to_device(before(), pattern, guard_bytes_);
  memory_.device()->copy_to_device(after(), pattern, guard_bytes_);
}

std::optional<std::size_t> first_change(Device& device, const void* memory, std::size_t total,
                                        std::size_t stride, std::span<const std::byte> want) {
  constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
  tbb::enumerable_thread_specific<std::vector<std::byte>> buffers;
  const auto change_in = [&](std::size_t begin, std::size_t end) {
    std::vector<std::byte>& got = buffers.local();
    got.resize(std::min(total, kChunkBytes));
    device.copy_to_host(got.data(), static_cast<const std::byte*>(memory) + begin, end - begin);
    for (std::size_t at = begin; at < end;) {
      const std::size_t offset = at % stride;
      const std::size_t next = std::min(end, at - offset + stride);
      if (offset < want.size()) {
        const std::size_t size = std::min(want.size() - offset, end - at);
        const std::size_t same = mismatch(got.data() + (at - begin), want.data() + offset, size);
        if (same < size) return at + same;
      }
      at = next;
    }
    return kNone;
  };
  using Range = tbb::blocked_range<std::size_t>;
  const std::size_t chunks = (total + kChunkBytes - 1) / kChunkBytes;
  const std::size_t first = tbb::parallel_reduce(
      Range(0, chunks), kNone,
      [&](const Range& range, std::size_t found) {
        for (std::size_t c = range.begin(); c < range.end() && found == kNone; ++c)
          found = change_in(c * kChunkBytes, std::min(total, (c + 1) * kChunkBytes));
        return found;
      },
      [](std::size_t a, std::size_t b) { return std::min(a, b); });
  return first == kNone ? std::nullopt : std::optional(first);
}

}  // namespace kiln::runtime
