// CUDA occupancy from first principles: how many blocks share a multiprocessor, and what stops
// more.
//
//   const kiln::DeviceLimits h100 = kiln::limits_of(90);
//   const kiln::Occupancy o = kiln::occupancy(h100, {.threads = 320, .registers = 37});
//   o.blocks; o.fraction; o.limit == kiln::OccupancyLimit::registers;
#pragma once

#include <cstdint>

#include "kiln/device.hpp"

namespace kiln {

/// What one block asks of a multiprocessor.
struct BlockResources {
  int threads = 0;                ///< per block
  int registers = 0;              ///< per thread; 0: none, or not known yet
  std::int64_t shared_bytes = 0;  ///< per block, static and dynamic
};

/// What stops one more block from being resident.
enum class OccupancyLimit { threads, registers, shared_memory, blocks };
const char* to_string(OccupancyLimit limit) noexcept;

struct Occupancy {
  int blocks = 0;  ///< resident per multiprocessor; 0: such a block cannot be launched
  int warps = 0;   ///< resident per multiprocessor
  int max_warps = 0;
  double fraction = 0;  ///< warps / max_warps
  /// The scarcest resource; of equally scarce ones, the first in the order of the enumeration.
  OccupancyLimit limit = OccupancyLimit::threads;

  // Blocks that each resource alone would allow; INT_MAX when none of it is used.
  int by_threads = 0, by_registers = 0, by_shared_memory = 0, by_blocks = 0;

  // As allocated for one block, rounded up to the hardware's units.
  std::int64_t registers_per_block = 0;
  std::int64_t shared_bytes_per_block = 0;  ///< with what the driver reserves
};

/// Pure. Any input has an answer: nonsense (no threads, negative amounts) gives 0 blocks. On the
/// host, where a core runs one block after the other, it gives 1 block for anything that can be
/// launched.
Occupancy occupancy(const DeviceLimits& limits, const BlockResources& block) noexcept;

/// What a multiprocessor of a compute capability (70 to 121) offers, for devices that are not here.
/// The count of multiprocessors and the size of the L2 cache differ between products: give them, or
/// leave them at 1 and 0.
/// @throws UserError that lists the known ones on any other number.
DeviceLimits limits_of(int compute_capability, int multiprocessors = 1, std::int64_t l2_bytes = 0);

/// Shared memory that the driver keeps for itself in every block.
int reserved_shared_bytes(const DeviceLimits& limits) noexcept;

}  // namespace kiln
