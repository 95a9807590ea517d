// Tuning behind launches: what they get meanwhile, when anything is measured, and what is
// published.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <sys/resource.h>

#include "background_fixture.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/capturing_device.hpp"
#include "unit/runtime/prepare/prepare_fixture.hpp"
#include "unit/runtime/typed_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// How often the thread of lower priority has gone to sleep; 0: there is none.
long sleeps_of_background() {
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    if (::getpriority(PRIO_PROCESS, std::stoul(thread.path().filename())) <=
        ::getpriority(PRIO_PROCESS, 0))
      continue;
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);)
      if (line.starts_with("voluntary_ctxt_switches:"))
        return std::stol(line.substr(line.find('\t')));
  }
  return 0;
}

}  // namespace

TEST_CASE("a launch in the background's mode does not wait, and gets the winner later",
          "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(runtime.settled());
  run_once(handle, 60);
  CHECK(handle.config({60}) == Values{2, 0});
  CHECK_FALSE(runtime.settled());
  CHECK(runtime.metrics().generation == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(process.device->timings == 0);  // no window is open
  CHECK(handle.config({60}) == Values{2, 0});
  {
    const TuningWindow window = runtime.window();
    REQUIRE(becomes([&] { return runtime.settled(); }));
  }
  CHECK(handle.config({60}) == Values{8, 0});
  CHECK(runtime.statistics().tuned == 1);
  CHECK(runtime.metrics().generation == 1);
  CHECK(runtime.metrics().swaps_total == 1);
  SECTION("which is on record") {
    Served next(directory.path());
    const Runtime second = next.runtime();
    const auto again = second.tuned(doubling());
    run_once(again, 60);
    CHECK(again.config({60}) == Values{8, 0});
    CHECK(second.settled());
  }
}

TEST_CASE("what is compiled ahead is not compiled in a window", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  REQUIRE(becomes([&] { return process.compiler->compiles == 4; }));
  {
    const TuningWindow window = runtime.window();
    REQUIRE(becomes([&] { return runtime.settled(); }));
  }
  CHECK(process.compiler->compiles == 4);
}

TEST_CASE("a window that is closed is quiet, and the next one goes on", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  std::vector<std::int64_t> many;
  for (int a = 1; a <= 64; ++a) many.push_back(a);
  process.device->on_launch = [](const std::string&, void**) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling(many, 2));
  run_once(handle, 60);
  int windows = 0;
  for (; windows < 400 && !runtime.settled(); ++windows) {
    TuningWindow window = runtime.window();
    // Longer and longer, for machines and sanitizers that are slow.
    std::this_thread::sleep_for(std::chrono::milliseconds(60 << std::min(windows / 16, 5)));
    window.close();
    const int launches = process.device->launches;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    CHECK(process.device->launches == launches);
  }
  CHECK(windows > 1);
  CHECK(runtime.settled());
  CHECK(handle.config({60}) == Values{8, 0});
}

TEST_CASE("what can only wait for a window sleeps", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  REQUIRE(becomes([&] { return process.compiler->compiles == 4; }));
  auto before = sleeps_of_background();
  REQUIRE(becomes([&] {  // once it has nothing left to do
    before = sleeps_of_background();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return before > 0 && sleeps_of_background() == before;
  }));
  run_once(handle, 61);  // another problem is seen at once
  REQUIRE(becomes([&] { return sleeps_of_background() != before; }));
}

TEST_CASE("a window closes by itself", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  const Runtime runtime = process.runtime();
  const TuningWindow window = runtime.window({.max_seconds = 0.01});
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(process.device->timings == 0);
  CHECK_THROWS_AS(runtime.window({.max_seconds = -1}), UserError);
}

TEST_CASE("a duty measures without windows", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.background.duty = 0.5;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(handle.config({60}) == Values{8, 0});
  process.options.background.duty = 1.5;
  CHECK_THROWS_AS(process.runtime(), UserError);
}

TEST_CASE("what was found can wait for a commit", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.background.publish = Publish::at_commit;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  CHECK(runtime.commit().changes.empty());
  {
    const TuningWindow window = runtime.window();
    REQUIRE(becomes([&] { return runtime.statistics().tuned == 1; }));
  }
  CHECK(handle.config({60}) == Values{2, 0});
  CHECK_FALSE(runtime.settled());
  CommitReport report;
  REQUIRE(becomes([&] {
    report = runtime.commit();
    return !report.changes.empty();
  }));
  CHECK(report.generation == 1);
  CHECK(report.dropped == 0);
  CHECK(report.changes ==
        std::vector<CommitReport::Change>{{"doubling", {}, {{"n", 60}}, {{"a", 8}, {"b", 0}}}});
  CHECK(handle.config({60}) == Values{8, 0});
  CHECK(runtime.settled());
  CHECK(runtime.commit().changes.empty());
  CHECK(runtime.commit().generation == 1);
}

TEST_CASE("prepare puts nothing in use that waits for a commit", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.background.publish = Publish::at_commit;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  tune_behind(runtime, handle);
  const auto other = runtime.tuned(doubling());
  Manifest manifest;
  manifest.wanted.push_back(WantedInstance{"doubling", {}, "generic", {{"n", 60}}, {}});
  runtime.prepare(manifest, {.work = PrepareWork::compile});
  CHECK(handle.config({60}) == Values{2, 0});
  CHECK(other.config({60}) == Values{2, 0});
  REQUIRE(becomes([&] { return !runtime.commit().changes.empty(); }));
  CHECK(handle.config({60}) == Values{8, 0});
}

TEST_CASE("a commit leaves alone what was decided meanwhile", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.background.publish = Publish::at_commit;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  tune_behind(runtime, handle);
  detail::Access::engine(runtime)->serving().handles().front()->use(Values{60}, Values{4, 0});
  CHECK(runtime.settled());
  CHECK(runtime.commit().changes.empty());
  CHECK(handle.config({60}) == Values{4, 0});
}

TEST_CASE("what is chosen while a launch compiles is not tuned behind it",
          "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  std::function<void()> choose;
  process.compiler->on_compile = [&](const codegen::Source&) {
    if (const auto once = std::exchange(choose, nullptr)) std::thread(once).join();
  };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const auto core = detail::Access::engine(runtime)->serving().handles().front();
  choose = [&] { core->use(Values{60}, Values{4, 0}); };
  run_once(handle, 60);
  CHECK(handle.config({60}) == Values{4, 0});
  REQUIRE(becomes([&] { return runtime.settled(); }));  // no window is needed for that
  CHECK(process.device->timings == 0);
}

TEST_CASE("other modes have no windows", "[runtime][background]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  CHECK_THROWS_AS(runtime.window(), UserError);
  CHECK_THROWS_AS(runtime.commit(), UserError);
  CHECK(runtime.settled());
}

TEST_CASE("a problem that cannot be tuned behind stays untuned, and is settled",
          "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  KernelDefinition kernel = doubling();
  kernel.reference = [](auto, auto) { throw UserError("no reference today"); };
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  run_once(handle, 60);
  const TuningWindow window = runtime.window();
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(handle.config({60}) == Values{2, 0});
  REQUIRE(process.warnings().size() == 1);
  CHECK_THAT(process.warnings()[0],
             Catch::Contains("what is in use stays") && Catch::Contains("no reference today"));
}

TEST_CASE("what the background has measured, as it was asked to, is not measured again",
          "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.tuning.retune = true;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  {
    const TuningWindow window = runtime.window();
    REQUIRE(becomes([&] { return runtime.settled(); }));
  }
  Manifest manifest;
  manifest.wanted.push_back({"doubling", {}, "generic", {{"n", 60}}, {}});
  const PrepareReport report = runtime.prepare(manifest);
  CHECK(report.problems.at(0).state == PreparedState::known);
  CHECK(runtime.statistics().tuned == 1);
}

TEST_CASE("a handle, or a runtime, may end while its problem is measured",
          "[runtime][background]") {
  Directory directory;
  for (int round = 0; round < 20; ++round) {
    Served process(directory.path());
    process.options.tuning.retune = true;
    std::atomic<bool> measuring{false};
    process.device->on_launch = [&](const std::string&, void**) { measuring = true; };
    std::optional<Runtime> runtime(process.runtime());
    std::optional<TuningWindow> window(runtime->window());
    {
      const auto handle = runtime->tuned(doubling());
      run_once(handle, 60 + round);
      measuring = false;
      if (round % 2 == 0) REQUIRE(becomes([&] { return measuring.load(); }));
    }
    if (round % 4 < 2) window.reset();
    runtime.reset();
  }
}

TEST_CASE("an explicit tuning does not wait for the background", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.device->on_launch = [](const std::string&, void**) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
  std::vector<std::int64_t> many;
  for (int a = 1; a <= 200; ++a) many.push_back(a);
  process.options.background.max_evaluations = 200;
  const Runtime runtime = process.runtime();
  const auto slow = runtime.tuned(doubling(many, 2));
  const auto handle = runtime.tuned(doubling());
  const TuningWindow window = runtime.window();
  run_once(slow, 60);
  REQUIRE(becomes([&] { return process.device->timings > 0; }));
  CHECK(handle.tune({70}).winner().config == Values{8, 0});
  CHECK_FALSE(runtime.settled());  // the other problem is not ready for long
  CHECK(handle.config({70}) == Values{8, 0});
  // A problem in the background's care is settled by an explicit tuning.
  run_once(handle, 80);
  handle.tune({80});
  CHECK(handle.config({80}) == Values{8, 0});
}

TEST_CASE("graphs that captured untuned launches are refreshed", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  const auto graphs = std::make_shared<CapturingDevice>(process.script);
  graphs->compute = compute_doubling;
  process.device = graphs;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  const Stream stream{reinterpret_cast<void*>(0x5000)};
  Buffers b(60);
  graphs->begin(stream);
  handle(stream, Values{60}, b.y.data(), static_cast<const float*>(b.x.data()), 60);
  const auto graph = graphs->end(stream);
  CHECK(graph->broken.empty());
  auto exec = CapturingDevice::instantiate(*graph);
  CHECK(runtime.statistics().provisional == 1);
  CHECK(runtime.refresh({graph.get(), &exec}).refreshed == 0);
  {
    const TuningWindow window = runtime.window();
    REQUIRE(becomes([&] { return runtime.settled(); }));
  }
  CHECK(runtime.refresh({graph.get(), &exec}).refreshed == 1);
}

TEST_CASE("another handle of a kernel waits for the commit, too", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.options.background.publish = Publish::at_commit;
  const Runtime runtime = process.runtime();
  const auto first = runtime.tuned(doubling());
  run_once(first, 60);
  {
    const TuningWindow window = runtime.window();
    REQUIRE(becomes([&] { return runtime.statistics().tuned == 1; }));
  }
  const auto second = runtime.tuned(doubling());
  run_once(second, 60);
  CHECK(second.config({60}) == Values{2, 0});
  CommitReport report;
  REQUIRE(becomes([&] {
    report = runtime.commit();
    return !report.changes.empty();
  }));
  CHECK(report.changes.size() == 1);
  CHECK(first.config({60}) == Values{8, 0});
  CHECK(second.config({60}) == Values{8, 0});
  CHECK(runtime.settled());
  const auto third = runtime.tuned(doubling());
  CHECK(third.config({60}) == Values{8, 0});
}

TEST_CASE("captured launches of a bound kernel with a workspace are provisional, too",
          "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  const auto graphs = std::make_shared<CapturingDevice>(process.script);
  graphs->compute = compute_doubling;
  process.device = graphs;
  KernelDefinition kernel = doubling();
  kernel.workspace = {.size = [](auto, auto, const DeviceLimits&) { return WorkspaceSize{8, 0}; }};
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  const Stream stream{reinterpret_cast<void*>(0x5000)};
  Buffers b(60);
  const DynamicBound bound = handle.at({60});
  bound.reserve_workspace(stream);
  bound(stream, b.y.data(), static_cast<const float*>(b.x.data()), 60);
  CHECK(runtime.statistics().provisional == 0);
  graphs->begin(stream);
  bound(stream, b.y.data(), static_cast<const float*>(b.x.data()), 60);
  const auto graph = graphs->end(stream);
  CHECK(graph->broken.empty());
  CHECK(graph->nodes.size() == 1);
  CHECK(runtime.statistics().provisional == 1);
  auto exec = CapturingDevice::instantiate(*graph);
  CHECK(runtime.refresh({graph.get(), &exec}).kept.size() == 1);
}

TEST_CASE("preparing settles what turns out to run the winner already", "[runtime][background]") {
  Directory directory;
  Served process(directory.path());
  process.of(8).seconds = 1e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  run_once(handle, 60);
  CHECK_FALSE(runtime.settled());
  {
    Process other(directory.path());
    CHECK(other.runtime().tuned(doubling()).tune({60}).winner().config == Values{2, 0});
  }
  const PrepareReport report = runtime.prepare(problems({60}));
  CHECK(states(report) == States{PreparedState::known});
  CHECK(runtime.settled());
  CHECK(handle.config({60}) == Values{2, 0});
  CHECK(process.device->timings == 0);
}

TEST_CASE("a search that was interrupted goes on behind the launches of the next process",
          "[runtime][background]") {
  Directory directory;
  {
    Process first(directory.path());
    first.of(4).seconds = 0.8e-3;
    first.options.tuning.max_evaluations = 3;
    const TuneResult unfinished = first.runtime().tuned(doubling()).tune({60});
    REQUIRE_FALSE(unfinished.complete);
  }
  Served process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const bool prepared = GENERATE(false, true);
  if (prepared) runtime.prepare(problems({60}), {.work = PrepareWork::compile});
  run_once(handle, 60);
  CHECK_FALSE(runtime.settled());
  runtime.prepare(problems({60}), {.work = PrepareWork::look_up});
  CHECK_FALSE(runtime.settled());
  const TuningWindow window = runtime.window();
  REQUIRE(becomes([&] { return runtime.settled(); }));
  CHECK(handle.config({60}) == Values{8, 0});
}
