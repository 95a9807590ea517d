// Captured launches on a sealed runtime: they load nothing, and still serve what was not prepared.
#include "kiln_test.hpp"
#include "unit/runtime/allocations.hpp"
#include "unit/runtime/capturing_device.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("a sealed runtime serves a capture with what is loaded", "[runtime][captures]") {
  Directory directory;
  Process process(directory.path());
  const auto graphs = std::make_shared<CapturingDevice>(process.script);
  graphs->compute = compute_doubling;
  process.device = graphs;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  handle.prepare({60});
  const Stream stream{reinterpret_cast<void*>(0x5000)};
  Buffers b(70);
  const auto launch = [&] {
    handle(stream, Values{70}, b.y.data(), static_cast<const float*>(b.x.data()), 70);
  };

  SECTION("and knows that this is provisional") {
    runtime.seal(OnUnprepared::serve);
    graphs->begin(stream);
    launch();
    const auto graph = graphs->end(stream);
    CHECK(graph->broken == std::vector<std::string>{});
    CHECK(graph->nodes.size() == 1);
    CHECK(runtime.statistics().provisional == 1);
    CHECK(runtime.statistics().unprepared_served == 1);
    CHECK(runtime.wanted().wanted.size() == 1);
    // The kernel was loaded for another problem, which is in use; this one is not.
    auto exec = CapturingDevice::instantiate(*graph);
    const RefreshResult result = runtime.refresh({graph.get(), &exec});
    REQUIRE(result.kept.size() == 1);
    CHECK(result.kept[0].launch == "doubling n=70 with a=2,b=0");
    CHECK_THAT(result.kept[0].why, Catch::Contains("nothing final is in use"));
  }
  SECTION("or refuses the launch before it touches the stream") {
    runtime.seal(OnUnprepared::error);
    graphs->begin(stream);
    CHECK_THROWS_AS(launch(), UnpreparedError);
    const auto graph = graphs->end(stream);
    CHECK(graph->broken == std::vector<std::string>{});
    CHECK(graph->nodes.empty());
    CHECK(runtime.statistics().unprepared_refused == 1);
  }
  SECTION("and counts a launch that would break the capture as no served one") {
    runtime.seal(OnUnprepared::serve);
    graphs->begin(stream);
    CHECK_THROWS_AS(
        handle(Stream{}, Values{70}, b.y.data(), static_cast<const float*>(b.x.data()), 70),
        CaptureError);
    const auto graph = graphs->end(stream);
    CHECK(graph->broken == std::vector<std::string>{});
    CHECK(runtime.statistics().capture_errors == 1);
    CHECK(runtime.statistics().unprepared_served == 0);
  }
}

TEST_CASE("stand-ins for captures are kept by their launches alone", "[runtime][captures]") {
  runtime::Captures captures(std::make_shared<CapturingDevice>(std::make_shared<Script>()));
  runtime::CapturedStandIns stand_ins(captures);
  const int kernel = 0;
  detail::Launchable made;
  made.problem = {1};
  made.config = {2, 0};
  made.loaded = &kernel;
  made.owner = std::make_shared<const int>(0);
  const auto stand_in = std::make_shared<const detail::Launchable>(made);
  made.owner.reset();
  for (std::vector<std::int64_t> problem{1}; problem[0] < 1000; ++problem[0])
    CHECK(stand_ins.of(stand_in, problem, {})->problem == problem);
  CHECK(stand_in.use_count() == 1);
  CHECK(stand_in->owner.use_count() == 1);
}

TEST_CASE("a captured stand-in that is another problem's provisional config is noted once",
          "[runtime][captures][background]") {
  Directory directory;
  Process process(directory.path());
  const auto graphs = std::make_shared<CapturingDevice>(process.script);
  graphs->compute = compute_doubling;
  process.device = graphs;
  process.options.mode = Mode::background;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Buffers b(70);
  handle({}, Values{60}, b.y.data(), static_cast<const float*>(b.x.data()), 60);
  runtime.seal(OnUnprepared::serve);
  const Stream stream{reinterpret_cast<void*>(0x5000)};
  graphs->begin(stream);
  handle(stream, Values{70}, b.y.data(), static_cast<const float*>(b.x.data()), 70);
  const auto graph = graphs->end(stream);
  CHECK(graph->nodes.size() == 1);
  CHECK(runtime.statistics().provisional == 1);
  // What is found for the other problem is not what this launch is exchanged for.
  const auto served = detail::Access::engine(runtime)->serving().handles().front();
  auto made = served->load_config(Values{60}, Values{8, 0}, nullptr);
  served->problems().choose(std::get<detail::Launchable>(std::move(made)));
  auto exec = CapturingDevice::instantiate(*graph);
  const RefreshResult result = runtime.refresh({graph.get(), &exec});
  CHECK(result.refreshed == 0);
  REQUIRE(result.kept.size() == 1);
  CHECK(result.kept[0].launch == "doubling n=70 with a=2,b=0");
  graphs->run(exec);
  CHECK(b.doubled());
}
