// Captured launches on a sealed runtime: they load nothing, and still serve what was not prepared.
#include "kiln_test.hpp"
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
    CHECK_THAT(result.kept[0].why, Catch::Contains("nothing tuned is in use"));
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
}
