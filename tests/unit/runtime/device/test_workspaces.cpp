#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "../fake_device.hpp"
#include "kiln_test.hpp"
#include "runtime/device/host_memory_device.hpp"
#include "runtime/device/workspaces.hpp"

using namespace kiln;
using namespace kiln::runtime;
using kiln::test::FakeDevice;
using kiln::test::Script;

namespace {

struct Place {
  std::shared_ptr<FakeDevice> device = std::make_shared<FakeDevice>(std::make_shared<Script>());
  Workspaces workspaces{device};
  int first = 0, second = 0;
  Stream one{&first}, two{&second};
};

/// The host's memory and order of launches, counted.
class CountingHost final : public HostMemoryDevice {
 public:
  const DeviceInfo& info() const noexcept override { return info_; }
  std::shared_ptr<Module> load(const codegen::Binary&, const Launch&,
                               std::span<const Launch>) override {
    return nullptr;
  }
  void launch(const Module&, const Launch&, Stream, void**) const override {}
  int occupancy(const Module&, int, unsigned) const override { return 1; }
  void* allocate(std::size_t bytes) override {
    ++live;
    return HostMemoryDevice::allocate(bytes);
  }
  void release(void* memory, std::size_t bytes) noexcept override {
    --live;
    HostMemoryDevice::release(memory, bytes);
  }
  void synchronize(Stream) override {}
  Stream tuning_stream() override { return {}; }
  double time(Stream, const std::function<void()>&) override { return 0; }
  bool shares_cpu() const noexcept override { return true; }

  std::atomic<int> live{0};

 private:
  DeviceInfo info_;
};

bool same(const Workspace& a, const Workspace& b) {
  return a.scratch == b.scratch && a.semaphores == b.semaphores;
}

bool zero(const Workspace& workspace, std::size_t semaphores) {
  for (std::size_t i = 0; i < semaphores; ++i)
    if (workspace.semaphores[i] != 0) return false;
  return true;
}

}  // namespace

TEST_CASE("a workspace is looked up once it is there", "[runtime][workspace]") {
  Place p;
  const Workspace made = p.workspaces.of(p.one, {1000, 3});
  CHECK(p.device->live_allocations == 1);
  CHECK(made.scratch);
  CHECK(zero(made, 3));
  CHECK(static_cast<std::byte*>(made.scratch) - reinterpret_cast<std::byte*>(made.semaphores) ==
        256);
  const std::size_t allocated = p.device->allocated;
  for (const WorkspaceSize size : {WorkspaceSize{1000, 3}, {1, 0}, {0, 3}, {500, 1}})
    CHECK(same(p.workspaces.of(p.one, size), made));
  CHECK(p.device->allocated == allocated);
}

TEST_CASE("a workspace of no size is no memory", "[runtime][workspace]") {
  Place p;
  CHECK(same(p.workspaces.of(p.one, {}), Workspace{}));
  CHECK(p.device->live_allocations == 0);
  CHECK(p.workspaces.of(p.one, {0, 5}).scratch == nullptr);
  CHECK(p.workspaces.of(p.two, {5, 0}).semaphores == nullptr);
}

TEST_CASE("streams never share a workspace", "[runtime][workspace]") {
  Place p;
  const Workspace first = p.workspaces.of(p.one, {64, 1}), second = p.workspaces.of(p.two, {64, 1});
  CHECK(first.scratch != second.scratch);
  CHECK(first.semaphores != second.semaphores);
  CHECK(same(p.workspaces.of(p.one, {64, 1}), first));
  CHECK(same(p.workspaces.of(p.two, {64, 1}), second));
}

TEST_CASE("a workspace that grew covers what it covered, and the old one stays",
          "[runtime][workspace]") {
  std::shared_ptr<FakeDevice> device;
  {
    Place p;
    device = p.device;
    const Workspace small = p.workspaces.of(p.one, {100, 8});
    std::memset(small.scratch, 1, 100);
    const Workspace large = p.workspaces.of(p.one, {5000, 2});
    CHECK(large.scratch != small.scratch);
    CHECK(zero(large, 8));
    CHECK(same(p.workspaces.of(p.one, {5000, 8}), large));
    CHECK(static_cast<std::byte*>(small.scratch)[99] == std::byte{1});
    CHECK(zero(small, 8));
    CHECK(device->live_allocations == 2);
    // Half as much again, so that many small steps do not leave many blocks.
    const Workspace larger = p.workspaces.of(p.one, {5001, 0});
    CHECK(same(p.workspaces.of(p.one, {7500, 8}), larger));
    CHECK(device->live_allocations == 3);
  }
  CHECK(device->live_allocations == 0);
}

TEST_CASE("a workspace that cannot have more than it needs has just that", "[runtime][workspace]") {
  Place p;
  p.workspaces.of(p.one, {4000, 0});
  p.device->memory = 5000;
  CHECK(p.workspaces.of(p.one, {5000, 0}).scratch);
  CHECK_THROWS_WITH(p.workspaces.of(p.one, {5001, 1}),
                    Catch::Contains("a workspace of 5257 bytes could not be allocated"));
  CHECK_THROWS_AS(p.workspaces.of(p.one, {5001, 1}), EnvironmentError);
  CHECK(p.workspaces.of(p.one, {5000, 0}).scratch);  // what was there is there
}

TEST_CASE("a stream that is captured gets what is there, and nothing new", "[runtime][workspace]") {
  Place p;
  int fills = 0;
  p.device->on_fill = [&](void*, std::size_t) { ++fills; };
  const Workspace before = p.workspaces.of(p.one, {100, 4});
  CHECK(fills == 1);
  p.device->captured = p.one.handle;
  CHECK(same(p.workspaces.of(p.one, {100, 4}), before));
  CHECK_THROWS_AS(p.workspaces.of(p.one, {101, 4}), UserError);
  CHECK_THROWS_WITH(p.workspaces.of(p.one, {100, 5}),
                    Catch::Contains("100 bytes and 5 semaphores") &&
                        Catch::Contains("call Bound::reserve_workspace"));
  std::vector<std::byte> memory(4096);
  void* aligned = memory.data();
  std::size_t room = memory.size();
  std::align(256, 1024, aligned, room);
  CHECK_THROWS_AS(p.workspaces.use(p.one, aligned, {100, 4}), UserError);
  CHECK(fills == 1);  // nothing was put on the stream
  CHECK(p.device->live_allocations == 1);
  CHECK(p.workspaces.of(p.two, {101, 4}).scratch);  // another stream may grow
  p.device->captured = nullptr;
  CHECK(p.workspaces.of(p.one, {101, 5}).scratch);
}

TEST_CASE("the program's memory takes the place of the handle's", "[runtime][workspace]") {
  Place p;
  alignas(256) std::byte memory[1024];
  std::memset(memory, 0x55, sizeof memory);
  p.workspaces.use(p.one, memory, {768, 2});
  const Workspace workspace = p.workspaces.of(p.one, {700, 1});
  CHECK(static_cast<void*>(workspace.semaphores) == memory);
  CHECK(workspace.scratch == memory + 256);
  CHECK(zero(workspace, 2));
  CHECK(memory[256] == std::byte{0x55});
  CHECK(p.device->live_allocations == 0);
  CHECK_THROWS_WITH(p.workspaces.of(p.one, {769, 1}),
                    Catch::Contains("supplied for this stream has 768 bytes and 2 semaphores") &&
                        Catch::Contains("needs 769 bytes and 1 semaphore"));
  // Supplied again, it is as new.
  workspace.semaphores[1] = 7;
  p.workspaces.use(p.one, memory, {768, 2});
  CHECK(zero(p.workspaces.of(p.one, {700, 1}), 2));
  CHECK_THROWS_AS(p.workspaces.use(p.one, memory + 128, {100, 0}), UserError);
  p.workspaces.use(p.one, nullptr, {});
  CHECK(p.workspaces.of(p.one, {769, 1}).scratch != memory + 256);
  CHECK(p.device->live_allocations == 1);
}

TEST_CASE("after a failed launch the semaphores are zeroed first", "[runtime][workspace]") {
  Place p;
  int fills = 0;
  p.device->on_fill = [&](void*, std::size_t) { ++fills; };
  const auto fail = [&](const WorkspaceSize& size) {
    Workspaces::Turn turn = p.workspaces.turn(p.one, size, false);
    turn.workspace().semaphores[1] = 7;
    turn.failed();
    return turn.workspace();
  };
  const Workspace workspace = fail({100, 2});
  CHECK(fills == 1);
  CHECK(same(p.workspaces.of(p.one, {50, 1}), workspace));
  CHECK(zero(workspace, 2));
  CHECK(fills == 2);
  p.workspaces.of(p.one, {50, 1});
  CHECK(fills == 2);

  fail({100, 2});
  p.device->captured = p.one.handle;
  CHECK_THROWS_WITH(p.workspaces.of(p.one, {100, 2}),
                    Catch::Contains("failed") && Catch::Contains("reserve_workspace"));
  CHECK(fills == 2);
  p.device->captured = nullptr;
  p.workspaces.reserve(p.one, {100, 2});
  p.device->captured = p.one.handle;
  CHECK(zero(p.workspaces.of(p.one, {100, 2}), 2));
  p.device->captured = nullptr;

  // The program's memory likewise.
  alignas(256) std::byte memory[512];
  p.workspaces.use(p.one, memory, {256, 2});
  fail({100, 2});
  CHECK(zero(p.workspaces.of(p.one, {100, 2}), 2));
}

TEST_CASE("a size that no device can have is refused", "[runtime][workspace]") {
  Place p;
  p.device->info().limits.memory_bytes = 1 << 20;
  alignas(256) std::byte memory[512];
  // As a total it would be small.
  const WorkspaceSize wrapped{std::size_t{0} - 300, 100};
  for (const WorkspaceSize size : {wrapped, WorkspaceSize{2 << 20, 0}, WorkspaceSize{0, 1 << 20}}) {
    CHECK_THROWS_AS(p.workspaces.of(p.one, size), UserError);
    CHECK_THROWS_AS(p.workspaces.use(p.one, memory, size), UserError);
  }
  CHECK(p.device->live_allocations == 0);
  p.workspaces.of(p.one, {1000, 100});
  CHECK_THROWS_WITH(p.workspaces.of(p.one, wrapped),
                    Catch::Contains("100 semaphores, but the device has 1048576 bytes"));
}

TEST_CASE("memory that is supplied and taken back leaves nothing behind", "[runtime][workspace]") {
  alignas(256) static std::byte memory[2][512];
  Place p;
  const Workspace own = p.workspaces.of(p.one, {100, 1});
  for (int i = 0; i < 20; ++i) {
    p.workspaces.use(p.one, memory[0], {256, 1});
    CHECK(p.workspaces.of(p.one, {100, 1}).scratch == memory[0] + 256);
    p.workspaces.use(p.one, nullptr, {});
    CHECK(same(p.workspaces.of(p.one, {100, 1}), own));
  }
  CHECK(p.device->live_allocations == 1);
  for (std::size_t i = 0; i < 1'000'000; ++i) p.workspaces.use(p.one, memory[i % 2], {256, 1});
  CHECK(p.workspaces.of(p.one, {100, 1}).scratch == memory[1] + 256);
}

TEST_CASE("turns that are alone wait for each other on a stream", "[runtime][workspace][threads]") {
  Place p;
  std::atomic<int> inside{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const Workspaces::Turn turn = p.workspaces.turn(p.one, {64, 1}, true);
        const int now = ++inside;
        if (now > most) most = now;
        std::this_thread::yield();
        --inside;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(most == 1);
  // Another stream, and a launch that is not alone, do not wait.
  const Workspaces::Turn turn = p.workspaces.turn(p.one, {64, 1}, true);
  CHECK(p.workspaces.turn(p.two, {64, 1}, true).workspace().scratch);
  CHECK(same(p.workspaces.turn(p.one, {64, 1}, false).workspace(), turn.workspace()));
}

TEST_CASE("threads find their streams' workspaces while others are added",
          "[runtime][workspace][threads]") {
  Place p;
  std::atomic<int> wrong{0};
  std::array<std::array<int, 20>, 4> places{};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::array<int, 20>& handles = places[static_cast<std::size_t>(t)];
      for (std::size_t i = 0; i < 400; ++i) {
        // Streams of this thread, and one that all share.
        const Stream stream = i % 5 == 0 ? p.one : Stream{&handles[i % handles.size()]};
        const WorkspaceSize size{64 + 8 * i, i % 3};
        const Workspace workspace = p.workspaces.of(stream, size);
        if (!workspace.scratch || (size.semaphores > 0 && !workspace.semaphores)) ++wrong;
        if (stream.handle == p.one.handle) continue;
        auto& last = static_cast<std::byte*>(workspace.scratch)[size.bytes - 1];
        last = static_cast<std::byte>(t);
        std::this_thread::yield();
        if (last != static_cast<std::byte>(t)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a released stream's workspaces are freed, but not what a graph keeps",
          "[runtime][workspace]") {
  Place p;
  p.workspaces.release(p.one);  // it has had none
  p.workspaces.of(p.one, {100, 4});
  p.workspaces.of(p.one, {5000, 4});
  const Workspace other = p.workspaces.of(p.two, {100, 4});
  CHECK(p.device->live_allocations == 3);
  {
    const auto kept = p.workspaces.memory();
    CHECK(kept.size() == 3);
    p.workspaces.release(p.one);
    CHECK(p.workspaces.memory().size() == 1);
    CHECK(p.device->live_allocations == 3);
  }
  CHECK(p.device->live_allocations == 1);
  CHECK(same(p.workspaces.of(p.two, {100, 4}), other));
  CHECK(zero(p.workspaces.of(p.one, {50, 2}), 2));
  CHECK(p.device->live_allocations == 2);

  alignas(256) std::byte memory[1024];
  p.workspaces.use(p.one, memory, {768, 2});
  p.workspaces.release(p.one);
  CHECK(p.device->live_allocations == 1);
  CHECK(p.workspaces.of(p.one, {768, 2}).scratch != memory + 256);

  p.device->captured = p.two.handle;
  CHECK_THROWS_AS(p.workspaces.release(p.two), CaptureError);
  CHECK(same(p.workspaces.of(p.two, {100, 4}), other));
}

TEST_CASE("streams that come and go share the places of workspaces", "[runtime][workspace]") {
  Place p;
  const Workspace stays = p.workspaces.of(p.one, {64, 1});
  std::array<int, 100> handles{};
  for (int& handle : handles) {
    const Stream stream{&handle};
    const Workspace its = p.workspaces.of(stream, {64, 1});
    CHECK(its.scratch != stays.scratch);
    CHECK(same(p.workspaces.of(stream, {64, 1}), its));
    p.workspaces.release(stream);
  }
  CHECK(same(p.workspaces.of(p.one, {64, 1}), stays));
  CHECK(p.device->live_allocations == 1);
}

TEST_CASE("threads of the host that follow one another share a workspace", "[runtime][workspace]") {
  const auto device = std::make_shared<CountingHost>();
  {
    Workspaces workspaces(device);
    const Workspace mine = workspaces.of({}, {64, 1});
    std::atomic<int> shared_with_me{0};
    for (int i = 0; i < 200; ++i)
      std::thread([&] { shared_with_me += same(workspaces.of({}, {64, 1}), mine); }).join();
    CHECK(shared_with_me == 0);
    CHECK(device->live == 2);
    CHECK(same(workspaces.of({}, {64, 1}), mine));
  }
  CHECK(device->live == 0);
}
