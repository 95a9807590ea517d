// Graphs that the program captures: what they keep, and what is changed in them.
#include <chrono>
#include <functional>
#include <thread>

#include "cuda_binary.hpp"
#include "fake_driver.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/cuda/reaper.hpp"
#include "runtime/device/workspaces.hpp"

using namespace kiln;
using namespace kiln::runtime;

namespace {

const Stream kStream{reinterpret_cast<void*>(0x770)};
CUstream native() { return static_cast<CUstream>(kStream.handle); }

/// What another thread is about to do.
bool soon(const std::function<bool()>& happened) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!happened()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

CUgraph end_capture(const FakeDriver& fake) {
  CUgraph graph = nullptr;
  CHECK(fake.table()->StreamEndCapture(native(), &graph) == CUDA_SUCCESS);
  return graph;
}
CUgraphExec instantiate(const FakeDriver& fake, CUgraph graph) {
  CUgraphExec exec = nullptr;
  CHECK(fake.table()->GraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
  return exec;
}

/// A driver and a device in its context, in which the program captures.
struct Fixture {
  FakeDriver fake;
  std::shared_ptr<Device> device;

  Fixture() {
    fake.push_foreign(reinterpret_cast<CUcontext>(0x900), 0);
    device = make_cuda_device(fake.table(), 0);
  }
  ~Fixture() {
    device.reset();
    // The thread that destroys what graphs have kept gives up the last of it within a call.
    CHECK(soon([&] { return !fake.in_use(); }));
    const bool leaks = [&] {
      const std::lock_guard lock(fake.mutex);
      return fake.leaks();
    }();
    CHECK_FALSE(leaks);
    fake.clear_thread();
    CHECK(fake.misuse == std::vector<std::string>{});
  }
  void begin() { fake.begin_capture(native(), CU_STREAM_CAPTURE_MODE_GLOBAL); }
  std::size_t modules() {
    const std::lock_guard lock(fake.mutex);
    return fake.modules.size();
  }
};

}  // namespace

TEST_CASE("a capture is found with its graph and its last node", "[runtime][cuda][graphs]") {
  Fixture f;
  Graphs& graphs = *f.device->graphs();
  const auto kernel = f.device->load(binary(), {});
  CHECK_FALSE(graphs.capture(kStream));
  f.begin();
  const auto begun = graphs.capture(kStream);
  REQUIRE(begun);
  CHECK(begun->graph);
  CHECK_FALSE(begun->last_node);
  f.device->launch(*kernel, {{4}, {128}, 0}, kStream, nullptr);
  const auto after = graphs.capture(kStream);
  REQUIRE(after);
  CHECK(after->graph == begun->graph);
  CHECK(after->id == begun->id);
  CHECK(after->last_node);
  CHECK_FALSE(graphs.capture({}));  // the default stream records nothing
  f.fake.lossy = true;
  const auto lossy = graphs.capture(kStream);
  REQUIRE(lossy);
  CHECK(lossy->graph == begun->graph);
  CHECK_FALSE(lossy->last_node);
  f.fake.lossy = false;
  CHECK(f.fake.end_capture(native()).empty());
  f.fake.functions().StreamGetCaptureInfo = nullptr;
  CHECK_FALSE(graphs.capture(kStream));
  f.fake.table()->GraphDestroy(static_cast<CUgraph>(begun->graph));
}

TEST_CASE("a graph and what comes of it keep a kernel", "[runtime][cuda][graphs]") {
  Fixture f;
  auto kernel = f.device->load(binary(), {});
  f.begin();
  f.device->launch(*kernel, {{4}, {128}, 0}, kStream, nullptr);
  f.device->graphs()->retain(f.device->graphs()->capture(kStream)->graph, kernel);
  const CUgraph graph = end_capture(f.fake);
  const CUgraphExec exec = instantiate(f.fake, graph);
  kernel.reset();
  f.device.reset();
  CHECK(f.modules() == 1);
  f.fake.table()->GraphDestroy(graph);
  CHECK(f.modules() == 1);
  f.fake.table()->GraphExecDestroy(exec);
  CHECK(soon([&] { return f.modules() == 0; }));
}

TEST_CASE("a device may end with what a graph has kept", "[runtime][cuda][graphs]") {
  Fixture f;
  f.begin();
  const auto graph = static_cast<CUgraph>(f.device->graphs()->capture(kStream)->graph);
  f.device->graphs()->retain(graph, std::make_shared<DeviceMemory>(f.device, 64));
  f.fake.end_capture(native());
  f.device.reset();
  CHECK(f.fake.memory.size() == 1);
  f.fake.table()->GraphDestroy(graph);
}

TEST_CASE("what a graph refuses to keep ends", "[runtime][cuda][graphs]") {
  for (const char* const call : {"cuUserObjectCreate", "cuGraphRetainUserObject"}) {
    CAPTURE(call);
    Fixture f;
    auto kernel = f.device->load(binary(), {});
    f.begin();
    const auto graph = static_cast<CUgraph>(f.device->graphs()->capture(kStream)->graph);
    f.fake.fail_call = call;
    CHECK_THROWS_WITH(f.device->graphs()->retain(graph, std::move(kernel)), Catch::Contains(call));
    f.fake.fail_call.clear();
    CHECK(soon([&] { return f.modules() == 0; }));
    CHECK(f.fake.end_capture(native()).empty());
    f.fake.table()->GraphDestroy(graph);
  }
  Fixture f;
  f.fake.functions().UserObjectCreate = nullptr;
  CHECK_THROWS_WITH(f.device->graphs()->retain(nullptr, nullptr),
                    Catch::Contains("update the driver"));
}

TEST_CASE("a captured node gets another kernel with its arguments", "[runtime][cuda][graphs]") {
  Fixture f;
  Graphs& graphs = *f.device->graphs();
  const auto one = f.device->load(binary(), {}), two = f.device->load(binary(), {});
  f.begin();
  graphs.capture(kStream);
  void* args[] = {nullptr};
  f.device->launch(*one, {{4}, {128}, 0}, kStream, args);
  const OngoingCapture capture = *graphs.capture(kStream);
  const CUgraph graph = end_capture(f.fake);
  const CUgraphExec exec = instantiate(f.fake, graph);
  const auto node = static_cast<CUgraphNode>(capture.last_node);
  const auto change = [&](void* at, const Module& from) {
    const NodeChange wanted{at, &from, two.get(), {{7, 2, 3}, {64, 4, 1}, 96}};
    return graphs.change({graph, exec}, {&wanted, 1}).at(0);
  };
  CHECK(change(node, *one).empty());
  const auto& changed = f.fake.changed_launches.at({exec, node});
  const auto& captured = f.fake.node_launches.at(node);
  CHECK(changed.func != captured.func);
  CHECK(changed.gridDimX == 7);
  CHECK(changed.gridDimY == 2);
  CHECK(changed.gridDimZ == 3);
  CHECK(changed.blockDimX == 64);
  CHECK(changed.blockDimY == 4);
  CHECK(changed.blockDimZ == 1);
  CHECK(changed.sharedMemBytes == 96);
  CHECK(changed.kernelParams == captured.kernelParams);
  CHECK(captured.gridDimX == 4);

  // Handles of the driver may be those of something else by now.
  CHECK_THAT(change(&f, *one), Catch::Contains("does not have the node"));
  CHECK_THAT(change(node, *two), Catch::Contains("does not have the node"));
  f.fake.fail_call = "cuGraphExecKernelNodeSetParams";
  CHECK_THAT(change(node, *one), Catch::Contains("cuGraphExecKernelNodeSetParams failed"));
  f.fake.fail_call = "cuGraphGetNodes";
  CHECK_THROWS_AS(change(node, *one), EnvironmentError);
  f.fake.fail_call.clear();
  f.fake.functions().GraphExecKernelNodeSetParams = nullptr;
  CHECK_THROWS_AS(change(node, *one), EnvironmentError);
  f.fake.table()->GraphDestroy(graph);
  f.fake.table()->GraphExecDestroy(exec);
}

TEST_CASE("no capture in any mode is broken by what Kiln does beside it",
          "[runtime][cuda][graphs]") {
  int tried = 0, broken = 0, asked_wrongly = 0;
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                          CU_STREAM_CAPTURE_MODE_RELAXED})
    for (const bool same_thread : {false, true}) {
      CAPTURE(mode, same_thread);
      Fixture f;
      f.fake.begin_capture(native(), mode);
      const auto work = [&] {
        Device& device = *f.device;
        const Stream stream = device.tuning_stream();
        const auto kernel = device.load(binary(), {});
        const auto launch = [&] { device.launch(*kernel, {{4}, {128}, 0}, stream, nullptr); };
        device.variables(*kernel);
        device.occupancy(*kernel, 128, 0);
        DeviceMemory memory(f.device, 64);
        char bytes[64]{};
        device.available();
        device.copy_to_device(memory.data(), bytes, 64);
        device.copy_to_host(bytes, memory.data(), 64);
        device.copy_on_device(memory.data(), memory.data(), 64, stream);
        device.fill(memory.data(), std::byte{}, 64, stream);
        device.digests(memory.data(), 64, 64, 1);
        launch();
        device.synchronize(stream);
        device.time(stream, launch);
        auto watch = device.stopwatch();
        watch->start(stream);
        launch();
        watch->stop(stream);
        watch->seconds();
        if (auto replay = device.capture(stream, launch)) replay->run(stream);
        device.lost();
        asked_wrongly += device.capturing(stream);
        Workspaces workspaces(f.device);
        workspaces.of(stream, {64, 1});
      };
      if (same_thread)
        work();
      else
        std::jthread(work).join();
      const auto calls = f.fake.end_capture(native());
      CHECK(calls == std::vector<std::string>{});
      ++tried;
      broken += !calls.empty();
    }
  CHECK(asked_wrongly == 0);
  std::printf("captures beside work tried %d, broken %d\n", tried, broken);
}

TEST_CASE("a reaper's thread destroys, also after the reaper", "[runtime][cuda][graphs]") {
  std::atomic<int> destroyed = 0, on_this_thread = 0;
  const auto counted = [&] {
    return std::shared_ptr<const void>(nullptr,
                                       [&, here = std::this_thread::get_id()](const void*) {
                                         on_this_thread += std::this_thread::get_id() == here;
                                         ++destroyed;
                                       });
  };
  constexpr int kMany = 1000;
  std::vector<void*> held;
  {
    Reaper unused;  // starts nothing
    Reaper reaper;
    for (int i = 0; i < kMany; ++i) held.push_back(reaper.hold(counted()));
    std::jthread other([&] {
      for (int i = 0; i < kMany / 2; ++i) Reaper::release(held[static_cast<std::size_t>(i)]);
    });
  }
  for (int i = kMany / 2; i < kMany; ++i) Reaper::release(held[static_cast<std::size_t>(i)]);
  CHECK(soon([&] { return destroyed == kMany; }));
  CHECK(on_this_thread == 0);
}
