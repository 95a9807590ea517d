// Steps, captures and the program's allocator, as the driver sees them.
#include <cstdlib>
#include <map>
#include <thread>

#include "fake_driver.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/workspaces.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

codegen::Binary binary_with_steps() {
  codegen::Binary b;
  b.target = {Target::Kind::cuda, "sm_90a"};
  b.symbol = "kernel";
  b.steps = {{"kernel_1", {}}, {"kernel_2", {}}};
  b.code = std::vector<std::byte>(8);
  return b;
}

/// Serves addresses that are no memory.
struct Pool {
  std::map<void*, std::size_t> live;
  bool empty = false;
  std::uintptr_t next = 0x10000;

  CallerAllocator allocator() {
    return CallerAllocator({.allocate = [this](std::size_t bytes) -> void* {
                              if (empty) return nullptr;
                              void* const memory = reinterpret_cast<void*>(next += 0x10000);
                              live[memory] = bytes;
                              return memory;
                            },
                            .release =
                                [this](void* memory, std::size_t bytes) {
                                  if (const auto found = live.find(memory);
                                      found != live.end() && found->second == bytes)
                                    live.erase(found);
                                }});
  }
};

}  // namespace

TEST_CASE("steps are functions of the kernel's module", "[runtime][cuda][steps]") {
  FakeDriver fake;
  {
    const auto device = make_cuda_device(fake.table(), 0);
    const Launch launch{.grid = {1}, .block = {32}};
    const Launch much{.grid = {1}, .block = {32}, .shared_bytes = 100000};
    const Launch clustered{.grid = {2}, .block = {32}, .cluster = {2}};
    const std::vector<Launch> steps{much, clustered};
    const auto kernel = device->load(binary_with_steps(), launch, steps);
    CHECK(fake.count("cuModuleLoadData") == 1);
    CHECK(fake.count("cuModuleGetFunction") == 3);
    CHECK(fake.count("cuOccupancyMaxActiveClusters") == 1);
    // Shared memory is opted in for the step that needs it alone.
    const auto opted = [&](const char* name) {
      return fake.attributes_of[fake.functions_by_name.at(name)].count(
          CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    };
    CHECK(opted("kernel") == 0);
    CHECK(opted("kernel_1") == 1);
    CHECK(opted("kernel_2") == 0);
    void* args[] = {nullptr};
    device->launch(kernel->step(0), much, {}, args);
    device->launch(kernel->step(1), clustered, {}, args);
    REQUIRE(fake.launches.size() == 2);
    CHECK(fake.launches[0].shared == 100000);
    CHECK(fake.launches[1].attributes.size() == 1);
    std::vector<Launch> too_much{much, launch};
    too_much[0].shared_bytes = 300000;
    CHECK_THROWS_AS(device->load(binary_with_steps(), launch, too_much), UserError);
    // A step that is not launched for this problem asks for nothing.
    too_much[0].grid = {0};
    CHECK(device->load(binary_with_steps(), launch, too_much));
    too_much.pop_back();
    CHECK_THROWS_AS(device->load(binary_with_steps(), launch, too_much), InternalError);
    codegen::Binary other = binary_with_steps();
    other.steps[1].symbol = "none";
    CHECK_THROWS_AS(device->load(other, launch, steps), EnvironmentError);
  }
  CHECK(fake.misuse.empty());
  CHECK_FALSE(fake.leaks());
}

TEST_CASE("a capture is seen, and a workspace in it changes nothing",
          "[runtime][cuda][workspace]") {
  FakeDriver fake;
  {
    const auto device = make_cuda_device(fake.table(), 0);
    const Stream stream{reinterpret_cast<void*>(0x770)};
    Workspaces workspaces(device);
    const Workspace there = workspaces.of(stream, {1000, 4});
    CHECK(fake.count("cuMemsetD8Async") == 1);
    CHECK_FALSE(device->capturing(stream));
    fake.capturing[static_cast<CUstream>(stream.handle)] = 0;
    CHECK(device->capturing(stream));
    CHECK(device->capturing({}));  // the default stream would disturb it
    const int allocations = fake.count("cuMemAlloc");
    CHECK(workspaces.of(stream, {1000, 4}).scratch == there.scratch);
    CHECK_THROWS_AS(workspaces.of(stream, {1001, 4}), UserError);
    CHECK_THROWS_AS(workspaces.of({}, {1, 1}), UserError);
    CHECK(fake.count("cuMemAlloc") == allocations);
    CHECK(fake.count("cuMemsetD8Async") == 1);
    fake.capturing.clear();
    CHECK(workspaces.of(stream, {1001, 4}).scratch != there.scratch);
    // A driver without the call cannot tell.
    fake.functions().StreamIsCapturing = nullptr;
    fake.capturing[static_cast<CUstream>(stream.handle)] = 0;
    CHECK_FALSE(device->capturing(stream));
    fake.capturing.clear();
  }
  CHECK(fake.misuse.empty());
  CHECK_FALSE(fake.leaks());
}

TEST_CASE("each thread's default stream has a workspace of its own", "[runtime][cuda][workspace]") {
  FakeDriver fake;
  const auto device = make_cuda_device(fake.table(), 0);
  const Stream per_thread{CU_STREAM_PER_THREAD}, legacy{};
  const StreamOrder here = device->order(per_thread);
  StreamOrder there, legacy_there;
  std::thread([&] {
    there = device->order(per_thread);
    legacy_there = device->order(legacy);
  }).join();
  CHECK_FALSE(here == there);
  CHECK(here == device->order(per_thread));
  CHECK(device->order(legacy) == legacy_there);
}

TEST_CASE("a program's allocator serves all of a device's memory", "[runtime][cuda][allocator]") {
  FakeDriver fake;
  Pool pool;
  {
    const auto device = make_cuda_device(fake.table(), 0, 0, pool.allocator());
    CHECK_FALSE(device->available());  // the driver does not know what the program has
    Workspaces workspaces(device);
    CHECK(workspaces.of({}, {1000, 4}).scratch == reinterpret_cast<void*>(0x20000 + 256));
    CHECK(pool.live.size() == 1);
    {
      const DeviceMemory memory(device, 64);
      CHECK(pool.live.at(memory.data()) == 64);
    }
    CHECK(pool.live.size() == 1);
    pool.empty = true;
    CHECK_THROWS_WITH(DeviceMemory(device, 77), Catch::Contains("returned null for 77 bytes"));
    CHECK_THROWS_WITH(workspaces.of({}, {5000, 0}),
                      Catch::Contains("bytes could not be allocated"));
  }
  CHECK(pool.live.empty());
  CHECK(fake.count("cuMemAlloc") == 0);
  CHECK(fake.count("cuMemFree") == 0);
  CHECK(fake.misuse.empty());
  CHECK_FALSE(fake.leaks());
}
