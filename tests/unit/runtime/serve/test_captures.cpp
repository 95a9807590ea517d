// Launches on a stream that is being captured, in all states of a problem.
#include <cstdio>
#include <functional>
#include <thread>

#include "kiln/function.hpp"
#include "kiln/prepare.hpp"
#include "kiln/region.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/serve/captures_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr int kN = kCaptured;
int tried = 0, broken = 0;

/// How a launch in a capture ended.
struct Attempt {
  enum class Ended { recorded, refused, missing } ended;
  std::string why;
  std::unique_ptr<CapturingDevice::Graph> graph;
};

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

/// By both ranks, if there are two.
std::optional<Missing> prepare(Capturer& process, const DynamicTuned& handle) {
  std::optional<std::jthread> other;
  if (process.other_end)
    other.emplace([&] {
      Directory directory;
      Process peer(directory.path());
      peer.compiler = std::make_shared<FakeCompiler>(process.script);
      peer.options.mode = process.options.mode;
      peer.options.tuning = process.options.tuning;
      peer.options.tuning.ranks = process.other_end;
      try {
        peer.runtime().tuned(doubling()).prepare({kN});
      } catch (const Error&) {
        // As on the first rank.
      }
    });
  return handle.prepare({kN});
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
         CHECK_FALSE(prepare(process, handle));
         return nothing();
       },
       Ended::recorded, Ended::recorded, "", false},
      {"missing", Mode::lookup_only,
       [](auto& process, auto& handle, auto&) {
         CHECK(prepare(process, handle));
         return nothing();
       },
       Ended::missing, Ended::refused, "", false},
      {"missing, on a stand-in", Mode::lookup_only,
       [](auto& process, auto& handle, auto& directory) {
         CHECK(prepare(process, handle));
         add_untuned_to(directory);
         return on_stand_in(process, handle);
       },
       Ended::missing, Ended::recorded, "", true},
      {"failed", Mode::tune_now,
       [](auto& process, auto& handle, auto&) {
         for (const int a : {1, 2, 4, 8}) process.of(a).compile_log = "no";
         CHECK_THROWS_AS(prepare(process, handle), UserError);
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
    CHECK_THAT(got.why, Catch::Contains("kernel doubling for n=60: "));
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
  for (const Row& row : rows())
    for (const bool in_a_region : {false, true}) try_row(row, true, in_a_region);
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

TEST_CASE("what was prepared untuned is captured as that, and refreshed once it is tuned",
          "[runtime][captures]") {
  Directory directory;
  Capturer process(directory.path());
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Manifest manifest;
  manifest.wanted.push_back(WantedInstance{"doubling", {}, "generic", {{"n", kN}}, {}});
  REQUIRE(runtime.prepare(manifest, {.work = PrepareWork::compile}).problems.size() == 1);
  Buffers b(kN);
  const auto captured = attempt(*process.graphs, [&](Stream stream) { launch(handle, b, stream); });
  REQUIRE(captured.ended == Attempt::Ended::recorded);
  CHECK(runtime.statistics().provisional == 1);
  auto exec = CapturingDevice::instantiate(*captured.graph);
  const auto early = runtime.refresh({captured.graph.get(), &exec});
  CHECK(early.refreshed == 0);
  REQUIRE(early.kept.size() == 1);
  CHECK_THAT(early.kept[0].launch, Catch::Contains("doubling n=60"));
  handle.tune({kN});
  CHECK(runtime.refresh({captured.graph.get(), &exec}).refreshed == 1);
  // What is tuned is captured as such.
  const auto second = attempt(*process.graphs, [&](Stream stream) { launch(handle, b, stream); });
  CHECK(second.ended == Attempt::Ended::recorded);
  CHECK(runtime.statistics().provisional == 1);
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
  CHECK_THROWS_WITH(launch(handle, b, {}), Catch::Contains("launch on another stream"));
  CHECK(process.graphs->end(kStream)->broken.empty());
  CHECK(runtime.statistics().capture_errors == 1);
  CHECK(runtime.statistics().provisional == 0);
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
  CHECK_THAT(refused.why, Catch::Contains("kernel doubling: the stream is being captured"));
  process.graphs->begin(kStream);
  const auto bound = handle.at({kN});
  CHECK_THROWS_AS(bound.reserve_workspace(kStream), CaptureError);
  CHECK_THROWS_AS(handle.use_workspace(kStream, nullptr, {}), CaptureError);
  CHECK_THROWS_WITH(handle.release_workspace(kStream), Catch::Contains("kernel doubling: "));
  process.graphs->end(kStream);
  CHECK(runtime.statistics().capture_errors == 4);
  bound.reserve_workspace(kStream);
  CHECK(attempt(*process.graphs, in_capture).ended == Ended::recorded);
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
