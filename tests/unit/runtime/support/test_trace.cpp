#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "kiln/trace.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("a trace is what Chrome's viewer reads", "[runtime][trace]") {
  TuneResult a, b;
  a.kernel = "gemm";
  a.spans = {{"compile", "compiler 0", "x=1", 100.5, 0.25}, {"time", "tuner", "\"\xff", 100, 0.5}};
  b.kernel = "rmsnorm";
  b.spans = {{"compile", "compiler 0", "", 200, 1}};
  const Directory directory;
  const std::vector<TuneResult> both{a, b};
  write_chrome_trace(directory.path() / "t.json", both);
  const auto trace = nlohmann::json::parse(read_text(directory.path() / "t.json"));
  std::map<int, std::string> lanes;
  std::vector<nlohmann::json> spans;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M")
      lanes[event.at("tid")] = event.at("args").at("name");
    else
      spans.push_back(event);
  }
  CHECK(lanes.size() == 2);
  REQUIRE(spans.size() == 3);
  CHECK(spans[0].at("name") == "compile");
  CHECK(spans[0].at("ph") == "X");
  CHECK(spans[0].at("ts") == Approx(0.5e6));
  CHECK(spans[0].at("dur") == Approx(0.25e6));
  CHECK(lanes.at(spans[0].at("tid")) == "compiler 0");
  CHECK(spans[0].at("tid") == spans[2].at("tid"));
  CHECK(spans[2].at("ts") == Approx(100e6));

  write_chrome_trace(directory.path() / "t.json", {});
  CHECK(nlohmann::json::parse(read_text(directory.path() / "t.json")).at("traceEvents").empty());
  CHECK_THROWS_AS(write_chrome_trace(directory.path() / "no" / "t.json", both), EnvironmentError);
}
