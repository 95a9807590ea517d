// What graphs keep of the kernels that they launch, and how stand-ins in them are exchanged.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "kiln/workspace.cuh"
#include "kiln_test.hpp"
#include "unit/runtime/serve/captures_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

std::unique_ptr<CapturingDevice::Graph> capture(Capturer& process, const DynamicTuned& handle,
                                                Buffers& b) {
  process.graphs->begin(kStream);
  launch(handle, b, kStream);
  return process.graphs->end(kStream);
}

}  // namespace

TEST_CASE("a graph keeps what it launches, and no longer", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  Buffers b(kCaptured);
  std::unique_ptr<CapturingDevice::Graph> graph;
  {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    launch(handle, b, {});
    CHECK_THROWS_AS(runtime.retain(kStream), UserError);  // nothing is being captured
    process.graphs->begin(kStream);
    launch(handle, b, kStream);
    runtime.retain(kStream);
    runtime.retain(kStream);
    graph = process.graphs->end(kStream);
    CHECK(graph->kept.size() == 1);
    CHECK(graph->broken.empty());
  }
  CHECK(process.device->live_kernels == 1);
  auto exec = CapturingDevice::instantiate(*graph);
  graph.reset();
  CHECK(process.device->live_kernels == 1);
  std::fill(b.y.begin(), b.y.end(), 0.0f);
  process.graphs->run(exec);
  CHECK(b.doubled());
  exec = {};
  CHECK(process.device->live_kernels == 0);
}

TEST_CASE("a graph keeps the workspaces of its launches", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  KernelDefinition kernel = doubling();
  kernel.workspace = {.size = [](auto, auto, const DeviceLimits&) { return WorkspaceSize{8, 0}; }};
  Buffers b(kCaptured);
  std::unique_ptr<CapturingDevice::Graph> graph;
  {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(kernel);
    handle.at({kCaptured}).reserve_workspace(kStream);
    process.graphs->begin(kStream);
    launch(handle, b, kStream);
    runtime.retain(kStream);
    graph = process.graphs->end(kStream);
    CHECK(graph->nodes.size() == 1);
    CHECK(graph->kept.size() == 1);  // one object, which has the kernel and the workspace
    CHECK(process.device->live_allocations == 1);
  }
  CHECK(process.device->live_allocations == 1);
  graph.reset();
  CHECK(process.device->live_allocations == 0);
  CHECK(process.device->live_kernels == 0);
}

TEST_CASE("a graph keeps its stand-ins without being told to", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  Buffers b(kCaptured);
  std::unique_ptr<CapturingDevice::Graph> graph;
  {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    launch_in_a_region(handle, b, {});
    graph = capture(process, handle, b);
  }
  CHECK(process.device->live_kernels == 1);
  process.graphs->run(CapturingDevice::instantiate(*graph));
  CHECK(b.doubled());
  graph.reset();
  CHECK(process.device->live_kernels == 0);
}

TEST_CASE("a graph that cannot keep a stand-in does not get it", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(kCaptured);
  launch_in_a_region(handle, b, {});
  process.graphs->retain_error = "no user objects";
  process.graphs->begin(kStream);
  CHECK_THROWS_AS(launch(handle, b, kStream), EnvironmentError);
  CHECK_THROWS_AS(runtime.retain(kStream), EnvironmentError);
  process.graphs->retain_error.clear();
  CHECK(process.graphs->end(kStream)->nodes.empty());
  const auto again = capture(process, handle, b);
  CHECK(again->kept.size() == 1);
}

namespace {

/// The configs, by `a`, of which x is a tensor map, and those with a workspace.
struct Extras {
  std::set<std::int64_t> maps{}, workspace{};
};

/// doubling() with these. The problem is tuned as another one, of 64 elements.
KernelDefinition with_extras(const Extras& extras) {
  using Span = std::span<const std::int64_t>;
  KernelDefinition kernel = doubling();
  kernel.bucket = [](Span) { return ProblemValues{64}; };
  kernel.maps = {{.argument = 1,
                  .map =
                      [](Span config, Span p) {
                        return TensorMap::tiled<float>(
                            {.size = {p[0]}, .box = {static_cast<int>(4 * config[0])}});
                      },
                  .only_if = [maps = extras.maps](auto c) { return maps.contains(c[0]); }}};
  kernel.workspace = {
      .size = [](Span c, Span,
                 const DeviceLimits&) { return WorkspaceSize{static_cast<std::size_t>(c[0]), 3}; },
      .only_if = [some = extras.workspace](auto c) { return some.contains(c[0]); }};
  return kernel;
}

/// Entries get what their config takes, and each launch checks that it is right.
std::function<void(Capturer&)> takes(const Extras& extras) {
  return [extras](Capturer& process) {
    process.device->info().limits.tensor_maps = true;
    const auto has = [](const std::set<std::int64_t>& configs, const std::string& entry) {
      return configs.contains(std::stoi(entry.substr(entry.find('<') + 1)));
    };
    process.graphs->argument_bytes = [=](const std::string& entry) {
      std::vector<std::size_t> bytes{sizeof(float*), sizeof(float*), sizeof(int)};
      if (has(extras.maps, entry)) bytes[1] = sizeof(runtime::EncodedMap);
      if (has(extras.workspace, entry)) bytes.push_back(sizeof(Workspace));
      return bytes;
    };
    for (const int a : {2, 8})
      process.of(a).run = [=, entry = "k<" + std::to_string(a) + ", 0>"](void** args) {
        const auto* const x = static_cast<const std::byte*>(args[1]);
        if (has(extras.maps, entry)) {
          std::int64_t shape[2];
          std::memcpy(shape, x + sizeof(void*), sizeof shape);
          CHECK(shape[0] == *static_cast<int*>(args[2]));
          CHECK(shape[1] == 4 * a);
          CHECK(x[sizeof(runtime::EncodedMap) - 1] == std::byte{0xab});
        }
        if (has(extras.workspace, entry)) {
          const auto& workspace = *static_cast<const Workspace*>(args[3]);
          REQUIRE(workspace.scratch);
          REQUIRE(workspace.semaphores);
          CHECK(std::count(workspace.semaphores, workspace.semaphores + 3, 0U) == 3);
          std::memset(workspace.scratch, 1, static_cast<std::size_t>(a));
        }
        compute_doubling(args);
      };
  };
}

/// A stand-in in a graph.
struct Refreshable {
  Directory directory;
  Capturer process{directory.path()};
  Buffers b{kCaptured};
  std::optional<Runtime> runtime;
  std::optional<DynamicTuned> handle;
  std::unique_ptr<CapturingDevice::Graph> graph;
  CapturingDevice::Exec exec;
  std::vector<std::string> launched;

  explicit Refreshable(
      const KernelDefinition& kernel = doubling(),
      const std::function<void(Capturer&)>& set_up = [](Capturer&) {}) {
    set_up(process);
    process.of(8).seconds = 0.5e-3;
    process.device->info().limits.cooperative = true;
    runtime = process.runtime();
    handle = runtime->tuned(kernel);
    launch_in_a_region(*handle, b, kStream);
    process.graphs->begin(kStream);
    launch(*handle, b, kStream);
    launch(*handle, b, kStream);
    graph = process.graphs->end(kStream);
    exec = CapturingDevice::instantiate(*graph);
    process.device->on_launch = [this](const std::string& entry, void**) {
      launched.push_back(entry);
    };
  }

  RefreshResult refresh() { return runtime->refresh({graph.get(), &exec}); }
  std::vector<std::string> run() {
    launched.clear();
    std::fill(b.y.begin(), b.y.end(), 0.0f);
    process.graphs->run(exec);
    CHECK(b.doubled());
    return launched;
  }
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("captured stand-ins become what is in use", "[runtime][captures]") {
  Refreshable r;
  CHECK(r.runtime->statistics().provisional == 2);
  CHECK(r.runtime->metrics().provisional_graph_nodes == 2);
  CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
  const RefreshResult early = r.refresh();
  CHECK(early.refreshed == 0);
  CHECK(r.runtime->metrics().provisional_graph_nodes == 2);
  REQUIRE(early.kept.size() == 2);
  CHECK(early.kept[0].node == &r.graph->nodes.front());
  CHECK(early.kept[0].launch == "doubling n=60 with a=2,b=0");
  CHECK_THAT(early.kept[0].why, Catch::Contains("nothing final is in use"));
  r.handle->prepare({kCaptured});
  CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
  const RefreshResult done = r.refresh();
  CHECK(done.refreshed == 2);
  CHECK(done.kept.empty());
  CHECK(r.runtime->metrics().provisional_graph_nodes == 0);
  CHECK(r.run() == Names{"k<8, 0>", "k<8, 0>"});
  CHECK(r.refresh().refreshed == 2);  // as often as the program likes
  // The graph itself is as it was, and so is what is instantiated of it next.
  r.exec = CapturingDevice::instantiate(*r.graph);
  CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
  // What the executable graph launches now is kept as well.
  CHECK(r.refresh().refreshed == 2);
  r.handle.reset();
  r.runtime.reset();
  CHECK(r.process.device->live_kernels == 2);
  CHECK(r.run() == Names{"k<8, 0>", "k<8, 0>"});
}

TEST_CASE("captured launches with tensor maps and workspaces are exchanged",
          "[runtime][captures][maps]") {
  const Extras extras =
      GENERATE(Extras{.maps = {8}}, Extras{.maps = {2}}, Extras{.maps = {2, 8}},
               Extras{.workspace = {8}}, Extras{.workspace = {2}},
               Extras{.maps = {2, 8}, .workspace = {8}}, Extras{.maps = {8}, .workspace = {2, 8}});
  Refreshable r(with_extras(extras), takes(extras));
  CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
  r.handle->prepare({kCaptured});
  const RefreshResult done = r.refresh();
  CAPTURE(done.kept.empty() ? "" : done.kept[0].why);
  CHECK(done.refreshed == 2);
  CHECK(r.run() == Names{"k<8, 0>", "k<8, 0>"});
  CHECK(r.refresh().refreshed == 2);
  // The graph keeps all that its launches use.
  r.handle.reset();
  r.runtime.reset();
  CHECK(r.run() == Names{"k<8, 0>", "k<8, 0>"});
  CHECK(r.process.device->live_kernels == 2);
  r.graph.reset();
  r.exec = {};
  CHECK(becomes([&] { return r.process.device->live_kernels == 0; }));  // another thread unloads
  CHECK(r.process.device->live_allocations == 0);
}

namespace {

void* scratch_of(const CapturingDevice::Exec& exec, std::size_t node) {
  Workspace found;
  std::memcpy(&found, exec.nodes.at(node).second.arguments.at(3).data(), sizeof found);
  return found.scratch;
}

}  // namespace

TEST_CASE("refreshed launches take the workspace of the stream that they were captured on",
          "[runtime][captures][workspace]") {
  const Extras extras{.workspace = {8}};
  Refreshable r(with_extras(extras), takes(extras));
  const Stream elsewhere{reinterpret_cast<void*>(0x6000)};
  r.process.graphs->begin(elsewhere);
  launch(*r.handle, r.b, elsewhere);
  const auto other = r.process.graphs->end(elsewhere);
  auto of_other = CapturingDevice::instantiate(*other);
  r.handle->prepare({kCaptured});
  const int before = r.process.device->live_allocations;
  CHECK(r.refresh().refreshed == 2);
  CHECK(r.refresh().refreshed == 2);
  CHECK(r.process.device->live_allocations == before + 1);
  CHECK(scratch_of(r.exec, 0) == scratch_of(r.exec, 1));
  CHECK(r.runtime->refresh({other.get(), &of_other}).refreshed == 1);
  CHECK(r.process.device->live_allocations == before + 2);
  CHECK(scratch_of(of_other, 0) != scratch_of(r.exec, 0));
  // What the stream's own launches take.
  r.handle->at({kCaptured}).reserve_workspace(kStream);
  CHECK(r.process.device->live_allocations == before + 2);
  r.handle->release_workspace(kStream);
  CHECK(r.process.device->live_allocations == before + 2);  // the graph still launches with it
  CHECK(r.run().size() == 2);

  SECTION("the program's own") {
    alignas(256) std::array<std::byte, 1024> memory;
    r.handle->use_workspace(kStream, memory.data(), {8, 3});
    CHECK(r.refresh().refreshed == 2);
    CHECK(scratch_of(r.exec, 1) > memory.data());
    CHECK(scratch_of(r.exec, 1) < memory.data() + memory.size());
    CHECK(r.run().size() == 2);
    r.handle->use_workspace(kStream, memory.data(), {4, 3});
    const RefreshResult small = r.refresh();
    REQUIRE(small.kept.size() == 2);
    CHECK_THAT(small.kept[0].why, Catch::Contains("the launch needs 8 bytes"));
    CHECK(r.process.device->live_allocations == before + 2);
  }
}

TEST_CASE("a function of the kernel that throws keeps its own launches alone",
          "[runtime][captures][workspace]") {
  const bool derived = GENERATE(false, true);
  const Extras extras{.workspace = {8}};
  KernelDefinition kernel = with_extras(extras);
  kernel.workspace.size = [=, size = kernel.workspace.size](auto c, auto p, const auto& limits) {
    if (p[0] == 61 && derived) throw std::out_of_range("no such size");
    if (p[0] == 61) throw 7;
    return size(c, p, limits);
  };
  Refreshable r(kernel, takes(extras));
  r.process.graphs->begin(kStream);
  (*r.handle)(kStream, Values{61}, r.b.y.data(), static_cast<const float*>(r.b.x.data()), 61);
  launch(*r.handle, r.b, kStream);
  r.graph = r.process.graphs->end(kStream);
  r.exec = CapturingDevice::instantiate(*r.graph);
  r.handle->prepare({kCaptured});
  const RefreshResult result = r.refresh();
  CHECK(result.refreshed == 1);
  REQUIRE(result.kept.size() == 1);
  CHECK_THAT(result.kept[0].why, Catch::Contains(derived ? "no such size" : "std::exception"));
  CHECK(result.kept[0].node == &r.graph->nodes.front());
}

TEST_CASE("launches in a graph that is gone are not counted", "[runtime][captures]") {
  Refreshable r;
  r.graph.reset();
  r.exec = {};
  CHECK(r.runtime->metrics().provisional_graph_nodes == 0);
  CHECK(r.runtime->statistics().provisional == 2);
}

TEST_CASE("what cannot be exchanged is kept and named", "[runtime][captures]") {
  SECTION("the driver refuses") {
    Refreshable r;
    r.handle->prepare({kCaptured});
    r.process.graphs->refusal = "another context";
    const RefreshResult result = r.refresh();
    CHECK(result.refreshed == 0);
    REQUIRE(result.kept.size() == 2);
    CHECK(result.kept[1].node == &r.graph->nodes.back());
    CHECK(result.kept[1].why == "another context");
    CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
  }
  SECTION("other attributes") {
    KernelDefinition kernel = doubling();
    kernel.launch = [launch = kernel.launch](std::span<const std::int64_t> c,
                                             std::span<const std::int64_t> p,
                                             const DeviceLimits& limits) {
      Launch l = launch(c, p, limits);
      l.programmatic = c[0] == 8;
      return l;
    };
    Refreshable r(kernel);
    r.handle->prepare({kCaptured});
    const RefreshResult result = r.refresh();
    REQUIRE(result.kept.size() == 2);
    CHECK_THAT(result.kept[0].why, Catch::Contains("attributes"));
  }
  SECTION("a cooperative grid that does not fit") {
    KernelDefinition kernel = doubling();
    kernel.bucket = [](std::span<const std::int64_t>) { return ProblemValues{8}; };
    kernel.launch = [](std::span<const std::int64_t> c, std::span<const std::int64_t> p) {
      return Launch{.grid = {c[0] == 8 ? static_cast<unsigned>(p[0]) : 1},
                    .block = {32},
                    .cooperative = true};
    };
    Refreshable r(kernel);
    DeviceLimits& limits = r.process.device->info().limits;
    limits.multiprocessors = 8;
    limits.max_blocks_per_multiprocessor = 1;
    r.handle->prepare({kCaptured});
    REQUIRE(r.handle->config({kCaptured}) == Values{8, 0});
    const RefreshResult result = r.refresh();
    REQUIRE(result.kept.size() == 2);
    CHECK_THAT(result.kept[0].why, Catch::Contains("60 blocks at once for a cooperative launch"));
  }
  SECTION("steps") {
    KernelDefinition kernel = doubling();
    kernel.steps = {{.entry = "after", .launch = kernel.launch}};
    Refreshable r(kernel);
    r.handle->prepare({kCaptured});
    const RefreshResult result = r.refresh();
    REQUIRE(result.kept.size() == 2);
    CHECK_THAT(result.kept[0].why, Catch::Contains("steps"));
  }
  SECTION("a workspace for which there is no memory") {
    Refreshable r(with_extras({.workspace = {8}}), takes({.workspace = {8}}));
    r.handle->prepare({kCaptured});
    r.process.device->memory = 255;
    const RefreshResult result = r.refresh();
    REQUIRE(result.kept.size() == 2);
    CHECK_THAT(result.kept[0].why, Catch::Contains("out of device memory"));
    CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
    r.process.device->memory = 1 << 20;
    CHECK(r.refresh().refreshed == 2);
  }
  SECTION("an address that a map cannot have") {
    Refreshable r(with_extras({.maps = {8}}), takes({.maps = {8}}));
    r.process.graphs->begin(kStream);
    (*r.handle)(kStream, Values{kCaptured}, r.b.y.data(),
                static_cast<const float*>(r.b.x.data() + 1), kCaptured);
    const auto graph = r.process.graphs->end(kStream);
    auto exec = CapturingDevice::instantiate(*graph);
    r.handle->prepare({kCaptured});
    const RefreshResult result = r.runtime->refresh({graph.get(), &exec});
    REQUIRE(result.kept.size() == 1);
    CHECK_THAT(result.kept[0].why, Catch::Contains("argument 1 is not aligned"));
  }
  SECTION("the handle is gone") {
    Refreshable r;
    r.handle->prepare({kCaptured});
    r.handle.reset();
    const RefreshResult result = r.refresh();
    REQUIRE(result.kept.size() == 2);
    CHECK_THAT(result.kept[0].why, Catch::Contains("handle is gone"));
    CHECK_THAT(result.kept[0].launch, Catch::Contains("n=60 with a=2"));
    CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
  }
  SECTION("another graph") {
    Refreshable r;
    r.handle->prepare({kCaptured});
    CHECK_THROWS_AS(r.runtime->refresh({nullptr, &r.exec}), UserError);
    CHECK_THROWS_AS(r.runtime->refresh({r.graph.get(), nullptr}), UserError);
    CHECK(r.runtime->refresh({&r, &r.exec}).refreshed == 0);
    CapturingDevice::Exec other;
    const RefreshResult result = r.runtime->refresh({r.graph.get(), &other});
    CHECK(result.kept.size() == 2);
  }
  SECTION("the driver does not name the nodes") {
    Directory directory;
    Capturer process(directory.path());
    process.graphs->names_nodes = false;
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    Buffers b(kCaptured);
    launch_in_a_region(handle, b, {});
    const auto got = capture(process, handle, b);
    handle.prepare({kCaptured});
    auto exec = CapturingDevice::instantiate(*got);
    const RefreshResult result = runtime.refresh({got.get(), &exec});
    REQUIRE(result.kept.size() == 1);
    CHECK(result.kept[0].node == nullptr);
    CHECK_THAT(result.kept[0].why, Catch::Contains("did not name"));
  }
}

TEST_CASE("a graph in the place of another one keeps its own", "[runtime][captures]") {
  Refreshable r;
  auto old = std::exchange(r.exec, {});
  // The driver may give a new graph the handle of a destroyed one, of which something still runs.
  r.graph->kept.clear();
  r.process.graphs->begin(kStream, std::move(r.graph));
  launch(*r.handle, r.b, kStream);
  r.graph = r.process.graphs->end(kStream);
  CHECK(r.graph->kept.size() == 1);
  r.handle->prepare({kCaptured});
  r.exec = CapturingDevice::instantiate(*r.graph);
  const RefreshResult result = r.refresh();
  CHECK(result.refreshed == 1);
  CHECK(result.kept.empty());
  CHECK(r.run() == Names{"k<8, 0>"});
}
