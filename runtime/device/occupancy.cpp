#include "kiln/occupancy.hpp"

#include <algorithm>
#include <array>
#include <climits>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln {

namespace {

// Figures of the table "Technical Specifications per Compute Capability", CUDA C++ Programming
// Guide 13.0 (7.x: 12.9), section "Compute Capabilities". Equal in all of them: 65536 registers per
// multiprocessor and per block, 255 per thread, 1024 threads per block, warps of 32.
struct Specification {
  int capability;
  int warps;             // resident per multiprocessor
  int blocks;            // resident per multiprocessor
  int shared_kilobytes;  // per multiprocessor
};
constexpr std::array kSpecifications = {
    Specification{70, 64, 32, 96},   Specification{72, 64, 32, 96},
    Specification{75, 32, 16, 64},   Specification{80, 64, 32, 164},
    Specification{86, 48, 16, 100},  Specification{87, 48, 16, 164},
    Specification{88, 48, 16, 100},  Specification{89, 48, 24, 100},
    Specification{90, 64, 32, 228},  Specification{100, 64, 32, 228},
    Specification{103, 64, 32, 228}, Specification{110, 48, 24, 228},
    Specification{120, 48, 24, 100}, Specification{121, 48, 24, 100},
};

constexpr int kMaxRegistersPerThread = 255;
// Registers are given to warps in units of 256 (CUDA C++ Best Practices Guide, "Calculating
// Occupancy"), and a warp's lie in one of the multiprocessor's four partitions (Nsight Compute
// documentation, "Streaming Multiprocessor"; NVIDIA's cuda_occupancy.h).
constexpr std::int64_t kRegisterUnit = 256;
constexpr std::int64_t kPartitions = 4;

// Units of shared memory (cuda_occupancy.h), and the 1 KB per block of which the tuning guides of
// Ampere and later say that CUDA reserves it.
constexpr std::int64_t shared_unit(int capability) { return capability < 80 ? 256 : 128; }
constexpr int kReserved = 1024;
constexpr int kMaxClusterBlocks = 8;  // without the opt-in for sizes that not all chips have

constexpr std::int64_t rounded_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

int saturated(std::int64_t n) { return static_cast<int>(std::clamp<std::int64_t>(n, 0, INT_MAX)); }

}  // namespace

const char* to_string(OccupancyLimit limit) noexcept {
  switch (limit) {
    case OccupancyLimit::threads:
      return "threads";
    case OccupancyLimit::registers:
      return "registers";
    case OccupancyLimit::shared_memory:
      return "shared memory";
    case OccupancyLimit::blocks:
      return "blocks";
  }
  return "threads";
}

int reserved_shared_bytes(const DeviceLimits& limits) noexcept {
  if (limits.reserved_shared_per_block > 0) return limits.reserved_shared_per_block;
  return limits.compute_capability >= 80 ? kReserved : 0;
}

Occupancy occupancy(const DeviceLimits& limits, const BlockResources& block) noexcept {
  Occupancy o;
  if (limits.warp_size <= 0) return o;
  const std::int64_t warp = limits.warp_size;
  o.max_warps = saturated(limits.max_threads_per_multiprocessor / warp);
  o.by_blocks = saturated(limits.max_blocks_per_multiprocessor);
  if (block.threads <= 0 || block.registers < 0 || block.shared_bytes < 0) return o;

  const std::int64_t warps = (std::int64_t{block.threads} + warp - 1) / warp;
  const bool on_host = limits.on_host();
  if (block.threads <= limits.max_threads_per_block)
    o.by_threads = saturated(on_host ? 1 : o.max_warps / warps);

  o.by_registers = INT_MAX;
  if (block.registers > 0 && !on_host) {
    const std::int64_t per_warp = rounded_up(block.registers * warp, kRegisterUnit);
    // The hardware's own check assumes that all partitions are given the same.
    const std::int64_t assumed = per_warp * rounded_up(warps, kPartitions);
    const std::int64_t resident =
        limits.registers_per_multiprocessor / kPartitions / per_warp * kPartitions;
    o.registers_per_block = per_warp * warps;
    o.by_registers =
        block.registers > kMaxRegistersPerThread || assumed > limits.registers_per_block
            ? 0
            : saturated(resident / warps);
  }

  o.by_shared_memory = INT_MAX;
  if (block.shared_bytes > limits.shared_per_block_optin) {
    o.by_shared_memory = 0;
    o.shared_bytes_per_block = block.shared_bytes;
  } else {
    o.shared_bytes_per_block = rounded_up(block.shared_bytes + reserved_shared_bytes(limits),
                                          shared_unit(limits.compute_capability));
    if (o.shared_bytes_per_block > 0 && !on_host)
      o.by_shared_memory = saturated(limits.shared_per_multiprocessor / o.shared_bytes_per_block);
  }

  const std::array by = {o.by_threads, o.by_registers, o.by_shared_memory, o.by_blocks};
  const auto scarcest = std::min_element(by.begin(), by.end());
  o.limit = static_cast<OccupancyLimit>(scarcest - by.begin());
  o.blocks = *scarcest;
  o.warps = saturated(o.blocks * warps);
  if (o.max_warps > 0) o.fraction = std::min(1.0, 1.0 * o.warps / o.max_warps);
  return o;
}

DeviceLimits limits_of(int compute_capability, int multiprocessors, std::int64_t l2_bytes) {
  const auto found =
      std::find_if(kSpecifications.begin(), kSpecifications.end(),
                   [&](const Specification& s) { return s.capability == compute_capability; });
  if (found == kSpecifications.end()) {
    std::string known;
    for (const Specification& s : kSpecifications) known += detail::format(" {}", s.capability);
    throw UserError(
        detail::format("unknown compute capability {}; known:{}", compute_capability, known));
  }
  DeviceLimits l;
  l.compute_capability = compute_capability;
  l.multiprocessors = multiprocessors;
  l.l2_bytes = l2_bytes;
  l.max_threads_per_multiprocessor = found->warps * l.warp_size;
  l.max_blocks_per_multiprocessor = found->blocks;
  l.shared_per_multiprocessor = found->shared_kilobytes * 1024;
  l.reserved_shared_per_block = compute_capability >= 80 ? kReserved : 0;
  l.shared_per_block_optin = l.shared_per_multiprocessor - l.reserved_shared_per_block;
  l.cooperative = true;
  l.max_cluster_blocks = compute_capability >= 90 ? kMaxClusterBlocks : 1;
  l.tensor_maps = compute_capability >= 90;
  return l;
}

}  // namespace kiln
