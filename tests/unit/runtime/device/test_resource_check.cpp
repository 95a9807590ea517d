#include <climits>

#include "kiln/occupancy.hpp"
#include "kiln_test.hpp"
#include "runtime/device/resource_check.hpp"

using kiln::DeviceLimits;
using kiln::Dim3;
using kiln::Launch;
using kiln::codegen::ResourceUsage;
using kiln::runtime::launch_obstacle;
using kiln::runtime::resource_obstacle;

namespace {

const DeviceLimits kHopper = kiln::limits_of(90);

Launch blocks_of(unsigned threads, unsigned shared = 0) { return {{10}, {threads}, shared}; }

bool names(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words)
    if (text.find(word) == std::string::npos) return false;
  return true;
}

}  // namespace

TEST_CASE("a launch that can work has no problem", "[runtime][resources]") {
  CHECK(launch_obstacle(blocks_of(1024, 227 * 1024), kHopper).empty());
  CHECK(launch_obstacle({{2147483647u, 65535, 65535}, {1, 1, 64}, 0}, kHopper).empty());
  CHECK(launch_obstacle({{0}, {32}, 0}, kHopper).empty());  // nothing to launch
}

TEST_CASE("a launch that cannot names the figure and the limit", "[runtime][resources]") {
  CHECK(names(launch_obstacle(blocks_of(0), kHopper), {"no threads"}));
  CHECK(names(launch_obstacle({{1}, {32, 0, 1}, 0}, kHopper), {"no threads"}));
  CHECK(names(launch_obstacle(blocks_of(1025), kHopper), {"1025x1x1", "1024"}));
  CHECK(names(launch_obstacle({{1}, {32, 33, 1}, 0}, kHopper), {"1056", "1024"}));
  CHECK(names(launch_obstacle({{1}, {1, 1, 65}, 0}, kHopper), {"1x1x65", "64"}));
  CHECK(names(launch_obstacle({{1, 65536}, {32}, 0}, kHopper), {"1x65536x1", "65535"}));
  CHECK(names(launch_obstacle(blocks_of(32, 232449), kHopper), {"232449", "232448"}));
  CHECK(!launch_obstacle(blocks_of(32, UINT_MAX), kHopper).empty());
}

TEST_CASE("extents whose product overflows are refused", "[runtime][resources]") {
  // 2^22 * 2^21 * 2^21 = 2^64: no threads, in 64 bits.
  DeviceLimits wide = kHopper;
  wide.max_block = {UINT_MAX, UINT_MAX, UINT_MAX};
  for (const Dim3& block : {Dim3{1u << 22, 1u << 21, 1u << 21}, Dim3{UINT_MAX, UINT_MAX, UINT_MAX},
                            Dim3{1u << 31, 1u << 31, 4}})
    for (const DeviceLimits& limits : {kHopper, wide}) {
      CHECK(!launch_obstacle({{1}, block, 0}, limits).empty());
      CHECK(!resource_obstacle({}, {{1}, block, 0}, limits).empty());
    }
  wide.max_threads_per_block = -1;
  CHECK(!launch_obstacle(blocks_of(32), wide).empty());
}

TEST_CASE("compiled resources are held against the device", "[runtime][resources]") {
  CHECK(resource_obstacle({}, blocks_of(256), kHopper).empty());
  CHECK(resource_obstacle({.registers = 64}, blocks_of(1024), kHopper).empty());
  // 65 registers are 72 as allocated: 1024 * 65 = 66560 and 896 * 72 = 64512 tell the difference.
  CHECK(names(resource_obstacle({.registers = 65}, blocks_of(1024), kHopper),
              {"65 registers", "1024 threads", "73728", "65536"}));
  CHECK(resource_obstacle({.registers = 72}, blocks_of(896), kHopper).empty());
  CHECK(!resource_obstacle({.registers = 73}, blocks_of(896), kHopper).empty());
  // 29 warps take the partitions' share of 32.
  CHECK(!resource_obstacle({.registers = 72}, blocks_of(29 * 32), kHopper).empty());
  CHECK(!resource_obstacle({.registers = 256}, blocks_of(32), kHopper).empty());

  CHECK(resource_obstacle({.max_threads = 256}, blocks_of(256), kHopper).empty());
  CHECK(names(resource_obstacle({.max_threads = 256}, blocks_of(257), kHopper),
              {"257", "__launch_bounds__", "256"}));

  CHECK(resource_obstacle({.static_shared = 1024}, blocks_of(32, 231424), kHopper).empty());
  CHECK(names(resource_obstacle({.static_shared = 1024}, blocks_of(32, 231425), kHopper),
              {"232449", "1024 static", "231425 dynamic", "232448"}));
  // The problems of the launch itself come first.
  CHECK(
      names(resource_obstacle({.registers = 300}, blocks_of(2000), kHopper), {"2000x1x1", "1024"}));
}

TEST_CASE("a block that fits no multiprocessor is refused", "[runtime][resources]") {
  DeviceLimits odd = kHopper;
  odd.max_threads_per_multiprocessor = 512;  // less than a block may have
  CHECK(names(resource_obstacle({}, blocks_of(1024), odd), {"multiprocessor", "threads"}));
}

TEST_CASE("spills are slow, not wrong", "[runtime][resources]") {
  CHECK(resource_obstacle({.registers = 255, .spill_stores = INT_MAX, .spill_loads = INT_MAX},
                          blocks_of(128), kHopper)
            .empty());
}

TEST_CASE("a host knows threads and shared memory only", "[runtime][resources]") {
  DeviceLimits host;
  host.shared_per_block_optin = 1 << 20;
  host.max_threads_per_multiprocessor = 1024;
  host.max_blocks_per_multiprocessor = 1;
  CHECK(resource_obstacle({}, blocks_of(1024, 1 << 20), host).empty());
  CHECK(!resource_obstacle({.static_shared = 1}, blocks_of(1024, 1 << 20), host).empty());
}
