#include <climits>
#include <random>

#include "kiln/error.hpp"
#include "kiln/occupancy.hpp"
#include "kiln_test.hpp"

// NVIDIA's own calculator, part of the toolkit's headers: what ours is held against.
#if __has_include(<cuda_occupancy.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-variable"
#include <cuda_occupancy.h>
#pragma GCC diagnostic pop
#define HAS_NVIDIA_CALCULATOR 1
#endif

using kiln::BlockResources;
using kiln::DeviceLimits;
using kiln::limits_of;
using kiln::Occupancy;
using kiln::occupancy;
using kiln::OccupancyLimit;

namespace {

constexpr int kCapabilities[] = {70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

}  // namespace

// CUDA C++ Best Practices Guide, section "Calculating Occupancy".
TEST_CASE("the examples of the best practices guide", "[runtime][occupancy]") {
  const DeviceLimits volta = limits_of(70);
  const Occupancy small = occupancy(volta, {.threads = 128, .registers = 37});
  CHECK(small.blocks == 12);
  CHECK(small.fraction == 0.75);
  CHECK(small.limit == OccupancyLimit::registers);
  // 37 * 32 = 1184 registers of a warp, in units of 256.
  CHECK(small.registers_per_block == 4 * 1280);

  const Occupancy large = occupancy(volta, {.threads = 320, .registers = 37});
  CHECK(large.blocks == 4);
  CHECK(large.fraction == 0.625);  // printed there as 63 %
  CHECK(large.limit == OccupancyLimit::registers);

  // "for a multiprocessor to have 100% occupancy, each thread can use at most 32 registers"
  CHECK(occupancy(volta, {.threads = 256, .registers = 32}).fraction == 1);
  CHECK(occupancy(volta, {.threads = 256, .registers = 33}).fraction < 1);
}

// CUDA Programming Guide 13, "Writing CUDA Kernels", section "Kernel Launch and Occupancy".
TEST_CASE("the examples of the programming guide", "[runtime][occupancy]") {
  const DeviceLimits blackwell = limits_of(100);
  CHECK(blackwell.max_blocks_per_multiprocessor == 32);
  CHECK(blackwell.shared_per_multiprocessor == 233472);
  CHECK(blackwell.registers_per_multiprocessor == 65536);
  CHECK(blackwell.max_threads_per_multiprocessor == 2048);
  CHECK(blackwell.shared_per_block == 49152);
  CHECK(blackwell.registers_per_block == 65536);
  CHECK(blackwell.max_threads_per_block == 1024);

  const Occupancy wide = occupancy(blackwell, {.threads = 768});
  CHECK(wide.blocks == 2);
  CHECK(wide.fraction == 0.75);
  CHECK(wide.limit == OccupancyLimit::threads);

  const Occupancy narrow = occupancy(blackwell, {.threads = 32});
  CHECK(narrow.blocks == 32);
  CHECK(narrow.fraction == 0.5);
  CHECK(narrow.limit == OccupancyLimit::blocks);

  const Occupancy shared = occupancy(blackwell, {.threads = 128, .shared_bytes = 100 * 1024});
  CHECK(shared.blocks == 2);
  CHECK(shared.limit == OccupancyLimit::shared_memory);
}

// The tuning guides of Ampere, Ada, Hopper and Blackwell, sections "Occupancy" and "Unified Shared
// Memory/L1/Texture Cache".
TEST_CASE("limits of the tuning guides", "[runtime][occupancy]") {
  struct Figures {
    int capability, warps, blocks, shared_kb, per_block_kb;
  };
  for (const Figures& f : {Figures{80, 64, 32, 164, 163}, Figures{86, 48, 16, 100, 99},
                           Figures{89, 48, 24, 100, 99}, Figures{90, 64, 32, 228, 227},
                           Figures{100, 64, 32, 228, 227}, Figures{120, 48, 24, 100, 99}}) {
    CAPTURE(f.capability);
    const DeviceLimits l = limits_of(f.capability);
    CHECK(l.max_threads_per_multiprocessor == f.warps * 32);
    CHECK(l.max_blocks_per_multiprocessor == f.blocks);
    CHECK(l.shared_per_multiprocessor == f.shared_kb * 1024);
    CHECK(l.shared_per_block_optin == f.per_block_kb * 1024);
    CHECK(kiln::reserved_shared_bytes(l) == 1024);
    // All of it for one block, and not a byte more.
    CHECK(occupancy(l, {.threads = 64, .shared_bytes = f.per_block_kb * 1024}).blocks == 1);
    CHECK(occupancy(l, {.threads = 64, .shared_bytes = f.per_block_kb * 1024 + 1}).blocks == 0);
  }
}

TEST_CASE("the driver's reserve counts", "[runtime][occupancy]") {
  DeviceLimits l = limits_of(90);
  // 228 KB hold 4 blocks of 56 KB and their reserves, but not 4 of 56.5 KB.
  CHECK(occupancy(l, {.threads = 64, .shared_bytes = 56 * 1024}).blocks == 4);
  CHECK(occupancy(l, {.threads = 64, .shared_bytes = 56 * 1024 + 1}).blocks == 3);
  l.reserved_shared_per_block = 2048;  // what a driver says goes
  CHECK(occupancy(l, {.threads = 64, .shared_bytes = 56 * 1024}).blocks == 3);
  l.reserved_shared_per_block = 0;  // not told: the usual
  CHECK(occupancy(l, {.threads = 64, .shared_bytes = 56 * 1024}).blocks == 4);
  // Before 8.0 there was none; memory came in units of 256 bytes.
  const Occupancy volta = occupancy(limits_of(70), {.threads = 64, .shared_bytes = 257});
  CHECK(volta.shared_bytes_per_block == 512);
}

TEST_CASE("nonsense is answered with no block", "[runtime][occupancy]") {
  const DeviceLimits l = limits_of(90);
  for (const BlockResources& block :
       {BlockResources{0, 32, 0}, BlockResources{-1, 32, 0}, BlockResources{INT_MIN, 0, 0},
        BlockResources{INT_MAX, INT_MAX, INT64_MAX}, BlockResources{1025, 0, 0},
        BlockResources{128, -1, 0}, BlockResources{128, INT_MIN, 0}, BlockResources{128, 256, 0},
        BlockResources{128, INT_MAX, 0}, BlockResources{128, 0, -1},
        BlockResources{128, 0, INT64_MIN}, BlockResources{128, 0, INT64_MAX},
        BlockResources{1024, 65, 0}}) {
    CAPTURE(block.threads, block.registers, block.shared_bytes);
    const Occupancy o = occupancy(l, block);
    CHECK(o.blocks == 0);
    CHECK(o.warps == 0);
    CHECK(o.fraction == 0);
  }
  DeviceLimits broken = l;
  broken.warp_size = 0;
  CHECK(occupancy(broken, {.threads = 32}).blocks == 0);
  for (int DeviceLimits::* field :
       {&DeviceLimits::max_threads_per_block, &DeviceLimits::max_threads_per_multiprocessor,
        &DeviceLimits::max_blocks_per_multiprocessor, &DeviceLimits::registers_per_multiprocessor,
        &DeviceLimits::registers_per_block, &DeviceLimits::shared_per_multiprocessor,
        &DeviceLimits::shared_per_block_optin})
    for (int value : {0, -1, INT_MIN}) {
      broken = l;
      broken.*field = value;
      const Occupancy o = occupancy(broken, {.threads = 64, .registers = 40, .shared_bytes = 1024});
      CHECK(o.blocks == 0);
      CHECK(o.fraction == 0);
    }
}

TEST_CASE("a host core runs one block", "[runtime][occupancy]") {
  DeviceLimits host;
  host.shared_per_block_optin = 200 << 10;
  host.max_threads_per_multiprocessor = 1024;
  CHECK(occupancy(host, {.threads = 1}).blocks == 1);
  CHECK(occupancy(host, {.threads = 1024, .registers = 4096, .shared_bytes = 200 << 10}).blocks ==
        1);
  CHECK(occupancy(host, {.threads = 1024, .shared_bytes = (200 << 10) + 1}).blocks == 0);
  CHECK(occupancy(host, {.threads = 1025}).blocks == 0);
}

TEST_CASE("an unknown compute capability lists the known ones", "[runtime][occupancy]") {
  for (int unknown : {0, -1, 61, 91, 130, INT_MAX}) {
    try {
      limits_of(unknown);
      FAIL("accepted " << unknown);
    } catch (const kiln::UserError& error) {
      const std::string text = error.what();
      CHECK(text.find(std::to_string(unknown)) != std::string::npos);
      CHECK(text.find("90") != std::string::npos);
    }
  }
  CHECK(limits_of(90, 132, 50 << 20).multiprocessors == 132);
  CHECK(limits_of(90, 132, 50 << 20).l2_bytes == 50 << 20);
}

TEST_CASE("more resources never mean more blocks", "[runtime][occupancy]") {
  for (int capability : kCapabilities) {
    const DeviceLimits l = limits_of(capability);
    for (int threads = 1; threads <= 1024; threads += 31) {
      CAPTURE(capability, threads);
      int before = INT_MAX;
      bool falls = true;
      for (int registers = 0; registers <= 255; ++registers) {
        const Occupancy o = occupancy(l, {.threads = threads, .registers = registers});
        falls = falls && o.blocks <= before && o.warps <= o.max_warps;
        before = o.blocks;
      }
      before = INT_MAX;
      for (std::int64_t shared = 0; shared <= l.shared_per_block_optin; shared += 997) {
        const int blocks = occupancy(l, {.threads = threads, .shared_bytes = shared}).blocks;
        falls = falls && blocks <= before && blocks >= 1;
        before = blocks;
      }
      CHECK(falls);
    }
  }
}

#ifdef HAS_NVIDIA_CALCULATOR
TEST_CASE("agrees with NVIDIA's calculator", "[runtime][occupancy]") {
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int capability : kCapabilities) {
    const DeviceLimits l = limits_of(capability);
    cudaOccDeviceProp device;
    device.computeMajor = capability / 10;
    device.computeMinor = capability % 10;
    device.maxThreadsPerBlock = l.max_threads_per_block;
    device.maxThreadsPerMultiprocessor = l.max_threads_per_multiprocessor;
    device.regsPerBlock = l.registers_per_block;
    device.regsPerMultiprocessor = l.registers_per_multiprocessor;
    device.warpSize = l.warp_size;
    device.sharedMemPerBlock = static_cast<std::size_t>(l.shared_per_block);
    device.sharedMemPerMultiprocessor = static_cast<std::size_t>(l.shared_per_multiprocessor);
    device.numSms = 132;
    device.sharedMemPerBlockOptin = static_cast<std::size_t>(l.shared_per_block_optin);
    device.reservedSharedMemPerBlock = static_cast<std::size_t>(l.reserved_shared_per_block);
    int limit = 0;
    REQUIRE(cudaOccMaxBlocksPerMultiprocessor(&limit, &device) == CUDA_OCC_SUCCESS);
    CHECK(limit == l.max_blocks_per_multiprocessor);

    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    for (int i = 0; i < 20000; ++i) {
      const int threads = pick(1, 1024), registers = pick(1, 255);
      const int fixed = pick(0, 3) ? 0 : pick(0, 48 * 1024);
      const int dynamic = pick(0, 1) ? 0 : pick(0, l.shared_per_block_optin - fixed + 500);
      cudaOccFuncAttributes kernel;
      kernel.maxThreadsPerBlock = 1024;
      kernel.numRegs = registers;
      kernel.sharedSizeBytes = static_cast<std::size_t>(fixed);
      kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
      kernel.maxDynamicSharedSizeBytes = static_cast<std::size_t>(dynamic);
      cudaOccResult theirs{};
      const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(
          &theirs, &device, &kernel, &state, threads, static_cast<std::size_t>(dynamic));
      if (error != CUDA_OCC_SUCCESS) FAIL("NVIDIA's calculator: " << error);
      const Occupancy ours = occupancy(
          l, {.threads = threads, .registers = registers, .shared_bytes = fixed + dynamic});
      if (ours.blocks != theirs.activeBlocksPerMultiprocessor ||
          ours.registers_per_block != theirs.allocatedRegistersPerBlock) {
        CAPTURE(capability, threads, registers, fixed, dynamic, ours.registers_per_block,
                theirs.allocatedRegistersPerBlock);
        REQUIRE(ours.blocks == theirs.activeBlocksPerMultiprocessor);
        FAIL("registers");
      }
    }
  }
}
#endif
