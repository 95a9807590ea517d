// Launches on a stream that is being captured, in all states of a problem, and what graphs keep.
#include <cstdio>
#include <functional>
#include <thread>

#include "kiln/function.hpp"
#include "kiln/region.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/capturing_device.hpp"
#include "unit/runtime/ranks_fixture.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr int kN = 60;
int tried = 0, broken = 0;

const Stream kStream{reinterpret_cast<void*>(0x5000)};

/// A process whose device can be captured. The first rank of several, if there are.
struct Capturer : Process {
  explicit Capturer(const fs::path& directory, bool ranks = false) : Process(directory) {
    device = graphs = std::make_shared<CapturingDevice>(script);
    device->compute = compute_doubling;
    compiler->on_compile = [this](const codegen::Source&) {
      graphs->forbidden("compile");
      if (block) {
        inside = true;
        while (block) std::this_thread::yield();
      }
    };
    if (!ranks) return;
    auto ends = thread_communicators(2);
    options.tuning.together.first_seconds = options.tuning.together.step_seconds = 30;
    const auto watched = std::make_shared<Watched>(std::move(ends[0]));
    watched->before = [this](int) {
      graphs->forbidden("collective");
      inside = true;
    };
    options.tuning.ranks = watched;
    other_end = std::move(ends[1]);
  }

  std::shared_ptr<CapturingDevice> graphs;
  std::shared_ptr<Communicator> other_end;
  std::atomic<bool> block{false}, inside{false};
};

/// How a launch in a capture ended.
struct Attempt {
  enum class Ended { recorded, refused, missing } ended;
  std::string why;
  std::unique_ptr<CapturingDevice::Graph> graph;
};

void launch(const DynamicTuned& handle, Buffers& b, Stream stream) {
  handle(stream, Values{kN}, b.y.data(), static_cast<const float*>(b.x.data()), kN);
}
void launch_in_a_region(const DynamicTuned& handle, Buffers& b, Stream stream) {
  Region production;
  production(handle, stream, Values{kN}, b.y.data(), static_cast<const float*>(b.x.data()), kN);
}

Attempt attempt(CapturingDevice& device, const std::function<void(Stream)>& launch) {
  Attempt attempt;
  device.begin(kStream);
  try {
    launch(kStream);
    attempt.ended = Attempt::Ended::recorded;
  } catch (const CaptureError& error) {
    attempt.ended = Attempt::Ended::refused;
    attempt.why = error.what();
  } catch (const MissingError& error) {
    attempt.ended = Attempt::Ended::missing;
  }
  attempt.graph = device.end(kStream);
  ++tried;
  broken += !attempt.graph->broken.empty();
  CHECK(attempt.graph->broken == std::vector<std::string>{});
  CHECK(attempt.graph->nodes.size() == (attempt.ended == Attempt::Ended::recorded));
  return attempt;
}

/// Brings the problem into a state; what it returns takes it out again.
using Undo = std::function<void()>;
using Bring = std::function<Undo(Capturer&, const DynamicTuned&, const fs::path&)>;

Undo nothing() {
  return [] {};
}

/// Another thread makes the problem ready, and does not get on.
Undo being_made(Capturer& process, const DynamicTuned& handle) {
  process.inside = false;
  process.block = true;
  auto maker = std::make_shared<std::jthread>([&process, handle] {
    try {
      handle.prepare({kN});
    } catch (const Error&) {
      // The other rank has gone.
    }
  });
  while (!process.inside) std::this_thread::yield();
  return [&process, maker] {
    process.block = false;
    process.other_end.reset();
  };
}

Undo on_stand_in(Capturer&, const DynamicTuned& handle) {
  Buffers b(kN);
  launch_in_a_region(handle, b, {});
  return nothing();
}

void prepare_on_the_other_rank(Capturer& first) {
  Directory directory;
  Process process(directory.path());
  process.options.tuning = first.options.tuning;
  process.options.tuning.ranks = first.other_end;
  process.runtime().tuned(doubling()).prepare({kN});
}

void add_untuned_to(const fs::path& directory) {
  Process process(directory);
  process.options.mode = Mode::untuned;
  CHECK_FALSE(process.runtime().tuned(doubling()).prepare({kN}));
}

struct Row {
  const char* state;
  Mode mode;
  Bring bring;
  Attempt::Ended launched, in_a_region;
  const char* why;   ///< a launch alone was refused
  bool provisional;  ///< where it is recorded
};

using Ended = Attempt::Ended;

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"unknown", Mode::tune_now, [](auto&, auto&, auto&) { return nothing(); }, Ended::refused,
       Ended::refused, "nothing is loaded for it", false},
      {"being made", Mode::tune_now,
       [](auto& process, auto& handle, auto&) { return being_made(process, handle); },
       Ended::refused, Ended::refused, "another thread is still making it ready", false},
      {"on a stand-in", Mode::tune_now,
       [](auto& process, auto& handle, auto&) { return on_stand_in(process, handle); },
       Ended::recorded, Ended::recorded, "", true},
      {"being made, on a stand-in", Mode::tune_now,
       [](auto& process, auto& handle, auto&) {
         on_stand_in(process, handle);
         return being_made(process, handle);
       },
       Ended::recorded, Ended::recorded, "", true},
      {"in use", Mode::tune_now,
       [](auto& process, auto& handle, auto&) {
         std::optional<std::jthread> peer;
         if (process.other_end) peer.emplace([&] { prepare_on_the_other_rank(process); });
         CHECK_FALSE(handle.prepare({kN}));
         return nothing();
       },
       Ended::recorded, Ended::recorded, "", false},
      {"missing", Mode::lookup_only,
       [](auto&, auto& handle, auto&) {
         CHECK(handle.prepare({kN}));
         return nothing();
       },
       Ended::missing, Ended::refused, "", false},
      {"missing, on a stand-in", Mode::lookup_only,
       [](auto& process, auto& handle, auto& directory) {
         CHECK(handle.prepare({kN}));
         add_untuned_to(directory);
         return on_stand_in(process, handle);
       },
       Ended::missing, Ended::recorded, "", true},
      {"failed", Mode::tune_now,
       [](auto& process, auto& handle, auto&) {
         for (const int a : {1, 2, 4, 8}) process.of(a).compile_log = "no";
         CHECK_THROWS_AS(handle.prepare({kN}), TuningFailedError);
         return nothing();
       },
       Ended::refused, Ended::refused, "making it ready has failed before", false}};
  return all;
}

void try_row(const Row& row, bool ranks, bool in_a_region) {
  CAPTURE(row.state, ranks, in_a_region);
  Directory directory;
  Capturer process(directory.path(), ranks);
  process.options.mode = row.mode;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const Undo undo = row.bring(process, handle, directory.path());
  const int launches = process.device->launches;
  Buffers b(kN);
  const Attempt got = attempt(*process.graphs, [&](Stream stream) {
    in_a_region ? launch_in_a_region(handle, b, stream) : launch(handle, b, stream);
  });
  Ended expected = in_a_region ? row.in_a_region : row.launched;
  // A stand-in is the choice of one rank.
  const bool stand_in_of_one = ranks && expected == Ended::recorded && row.provisional;
  if (stand_in_of_one) expected = Ended::refused;
  CHECK(got.ended == expected);
  if (got.ended == Ended::refused) {
    CHECK_THAT(got.why, Catch::StartsWith("kernel doubling for n=60: "));
    CHECK_THAT(got.why, Catch::Contains("call `prepare` before the capture"));
    if (!in_a_region && !stand_in_of_one) CHECK_THAT(got.why, Catch::Contains(row.why));
    if (stand_in_of_one) CHECK_THAT(got.why, Catch::Contains("the ranks have not chosen"));
  }
  if (!process.block) CHECK(process.device->launches == launches);
  const RuntimeStatistics statistics = runtime.statistics();
  CHECK(statistics.capture_errors == (expected == Ended::refused));
  CHECK(statistics.provisional == (expected == Ended::recorded && row.provisional));
  undo();
}

}  // namespace

// The three modes of a capture differ in what other threads may do: tests/unit/runtime/device/cuda.
TEST_CASE("a capture survives launches in all states of a problem", "[runtime][captures]") {
  for (const Row& row : rows())
    for (const bool in_a_region : {false, true}) try_row(row, false, in_a_region);
}

TEST_CASE("a capture survives launches in all states of a problem of several ranks",
          "[runtime][captures]") {
  for (const Row& row : rows()) {
    // Ranks give up a problem together, which ends in the default or in what is missing.
    if (row.mode == Mode::lookup_only || row.state == std::string("failed")) continue;
    for (const bool in_a_region : {false, true}) try_row(row, true, in_a_region);
  }
}

TEST_CASE("a launch of what is ready does not ask whether it is captured", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(kN);
  launch(handle, b, {});
  process.graphs->queries = 0;
  launch(handle, b, {});
  launch_in_a_region(handle, b, {});
  CHECK(process.graphs->queries == 0);
}

TEST_CASE("typed launches in a capture are held to the same", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(typed_doubling());
  Buffers b(kN);
  const auto launch_typed = [&](Stream stream) { handle(stream, b.y.data(), b.x.data(), kN); };
  CHECK(attempt(*process.graphs, launch_typed).ended == Ended::refused);
  handle.prepare({kN});
  const Attempt got = attempt(*process.graphs, launch_typed);
  CHECK(got.ended == Ended::recorded);
  process.graphs->run(CapturingDevice::instantiate(*got.graph));
  CHECK(b.doubled());
  CHECK(runtime.statistics().provisional == 0);
}

TEST_CASE("a run that collects does nothing in a capture either", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  process.options.mode = Mode::collect;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(kN);
  CHECK(attempt(*process.graphs, [&](Stream s) { launch(handle, b, s); }).ended == Ended::refused);
  launch(handle, b, {});
  process.graphs->begin(kStream);
  launch(handle, b, kStream);
  const auto graph = process.graphs->end(kStream);
  CHECK(graph->nodes.empty());
  CHECK(graph->broken.empty());
}

TEST_CASE("a stand-in is not put on the default stream beside a capture", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(kN);
  launch_in_a_region(handle, b, {});
  process.graphs->begin(kStream);
  CHECK_THROWS_WITH(launch(handle, b, {}), Catch::Contains("launch on a stream of its own"));
  CHECK(process.graphs->end(kStream)->broken.empty());
  CHECK(runtime.statistics().capture_errors == 1);
  CHECK(runtime.statistics().provisional == 0);
}

TEST_CASE("a graph keeps what it launches, and no longer", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  Buffers b(kN);
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

TEST_CASE("a graph keeps its stand-ins without being told to", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  Buffers b(kN);
  std::unique_ptr<CapturingDevice::Graph> graph;
  {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    launch_in_a_region(handle, b, {});
    graph = attempt(*process.graphs, [&](Stream s) { launch(handle, b, s); }).graph;
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
  Buffers b(kN);
  launch_in_a_region(handle, b, {});
  process.graphs->retain_error = "no user objects";
  process.graphs->begin(kStream);
  CHECK_THROWS_AS(launch(handle, b, kStream), EnvironmentError);
  CHECK_THROWS_AS(runtime.retain(kStream), EnvironmentError);
  process.graphs->retain_error.clear();
  CHECK(process.graphs->end(kStream)->nodes.empty());
  const Attempt again = attempt(*process.graphs, [&](Stream s) { launch(handle, b, s); });
  CHECK(again.graph->kept.size() == 1);
}

namespace {

/// A stand-in in a graph.
struct Refreshable {
  Directory directory;
  Capturer process{directory.path()};
  Buffers b{kN};
  std::optional<Runtime> runtime;
  std::optional<DynamicTuned> handle;
  std::unique_ptr<CapturingDevice::Graph> graph;
  CapturingDevice::Exec exec;
  std::vector<std::string> launched;

  explicit Refreshable(const KernelDefinition& kernel = doubling()) {
    process.of(8).seconds = 0.5e-3;
    runtime = process.runtime();
    handle = runtime->tuned(kernel);
    launch_in_a_region(*handle, b, {});
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
  CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
  const RefreshResult early = r.refresh();
  CHECK(early.refreshed == 0);
  REQUIRE(early.kept.size() == 2);
  CHECK(early.kept[0].node == &r.graph->nodes.front());
  CHECK(early.kept[0].launch == "doubling n=60 with a=2,b=0");
  CHECK_THAT(early.kept[0].why, Catch::Contains("nothing is in use"));
  r.handle->prepare({kN});
  CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
  const RefreshResult done = r.refresh();
  CHECK(done.refreshed == 2);
  CHECK(done.kept.empty());
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

TEST_CASE("what cannot be exchanged is kept and named", "[runtime][captures]") {
  SECTION("the driver refuses") {
    Refreshable r;
    r.handle->prepare({kN});
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
    r.handle->prepare({kN});
    const RefreshResult result = r.refresh();
    REQUIRE(result.kept.size() == 2);
    CHECK_THAT(result.kept[0].why, Catch::Contains("attributes"));
  }
  SECTION("a workspace") {
    KernelDefinition kernel = doubling();
    kernel.workspace = {.size = [](auto, auto, const DeviceLimits&) { return WorkspaceSize{8, 0}; },
                        .only_if = [](std::span<const std::int64_t> c) { return c[0] == 8; }};
    Refreshable r(kernel);
    r.handle->prepare({kN});
    const RefreshResult result = r.refresh();
    REQUIRE(result.kept.size() == 2);
    CHECK_THAT(result.kept[0].why, Catch::Contains("workspace"));
  }
  SECTION("the handle is gone") {
    Refreshable r;
    r.handle->prepare({kN});
    r.handle.reset();
    const RefreshResult result = r.refresh();
    REQUIRE(result.kept.size() == 2);
    CHECK_THAT(result.kept[0].why, Catch::Contains("handle is gone"));
    CHECK(r.run() == Names{"k<2, 0>", "k<2, 0>"});
  }
  SECTION("another graph") {
    Refreshable r;
    r.handle->prepare({kN});
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
    Buffers b(kN);
    launch_in_a_region(handle, b, {});
    const auto got = attempt(*process.graphs, [&](Stream s) { launch(handle, b, s); });
    handle.prepare({kN});
    auto exec = CapturingDevice::instantiate(*got.graph);
    const RefreshResult result = runtime.refresh({got.graph.get(), &exec});
    REQUIRE(result.kept.size() == 1);
    CHECK(result.kept[0].node == nullptr);
    CHECK_THAT(result.kept[0].why, Catch::Contains("did not name"));
  }
}

TEST_CASE("a workspace that is not there is a capture's error", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  const Runtime runtime = process.runtime();
  KernelDefinition kernel = doubling();
  kernel.workspace = {.size = [](auto, auto, const DeviceLimits&) { return WorkspaceSize{8, 0}; }};
  const auto handle = runtime.tuned(kernel);
  CHECK_FALSE(handle.prepare({kN}));
  Buffers b(kN);
  const auto in_capture = [&](Stream s) { launch(handle, b, s); };
  const Attempt refused = attempt(*process.graphs, in_capture);
  CHECK(refused.ended == Ended::refused);
  CHECK_THAT(refused.why, Catch::StartsWith("kernel doubling: the stream is being captured"));
  process.graphs->begin(kStream);
  const auto bound = handle.at({kN});
  CHECK_THROWS_AS(bound.reserve_workspace(kStream), CaptureError);
  CHECK_THROWS_AS(handle.use_workspace(kStream, nullptr, {}), CaptureError);
  process.graphs->end(kStream);
  CHECK(runtime.statistics().capture_errors == 3);
  bound.reserve_workspace(kStream);
  const int live = process.device->live_allocations;
  process.graphs->begin(kStream);
  launch(handle, b, kStream);
  runtime.retain(kStream);
  const auto graph = process.graphs->end(kStream);
  CHECK(graph->nodes.size() == 1);
  CHECK(graph->kept.size() == 1);  // one object, which has the kernel and the workspace
  CHECK(process.device->live_allocations == live);
}

TEST_CASE("a function is not measured in a capture", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  const Runtime runtime = process.runtime();
  int calls = 0;
  const Function<DoublingConfig, DoublingProblem, void(int)> work{
      .name = "work",
      .space = Space<DoublingConfig, DoublingProblem>{{2, 0}}.values(&DoublingConfig::a, {1, 2}),
      .call =
          [&](const DoublingConfig&, Stream, int) {
            ++calls;
            process.device->pass(1e-3);
          },
      .problem = [](int n) { return DoublingProblem{n}; }};
  const auto function = tuned(runtime, work);
  process.graphs->begin(kStream);
  CHECK_THROWS_WITH(function(kStream, kN), Catch::Contains("function work for n=60") &&
                                               Catch::Contains("before the capture"));
  CHECK_THROWS_AS(function.tune(kStream, kN), CaptureError);
  CHECK_THROWS_AS(function.with({})(kStream, kN), CaptureError);
  CHECK(calls == 0);
  function.with({.tune = false})(kStream, kN);
  CHECK(calls == 1);
  CHECK(process.graphs->end(kStream)->broken.empty());
  function({}, kN);
  calls = 0;
  process.graphs->begin(kStream);
  function(kStream, kN);
  function.with({})(kStream, kN);
  CHECK(calls == 2);
  CHECK_THROWS_AS(function.with({.retune = true})(kStream, kN), CaptureError);
  Region production;
  production(function, kStream, kN);
  CHECK(calls == 3);
  CHECK(process.graphs->end(kStream)->broken.empty());
  CHECK(runtime.statistics().capture_errors == 4);
}

TEST_CASE("a region is not tuned in a capture", "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(kN);
  process.graphs->begin(kStream);
  CHECK_THROWS_WITH(tune_region(runtime,
                                [&](Region& region) {
                                  region(handle, kStream, Values{kN}, b.y.data(),
                                         static_cast<const float*>(b.x.data()), kN);
                                }),
                    Catch::Contains("tune_region before the capture"));
  CHECK(process.graphs->end(kStream)->nodes.empty());
  CHECK(runtime.statistics().capture_errors == 1);
}

// After the others.
TEST_CASE("captures that launches have broken", "[runtime][captures]") {
  std::printf("captures tried %d, broken %d\n", tried, broken);
  CHECK(broken == 0);
}
