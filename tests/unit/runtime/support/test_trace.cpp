#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "kiln/trace.hpp"
#include "kiln_test.hpp"
#include "trace_schema.hpp"
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
    if (event.at("name") == "thread_name")
      lanes[event.at("tid")] = event.at("args").at("name");
    else if (event.at("ph") == "X")
      spans.push_back(event);
  }
  CHECK(lanes.size() == 2);
  REQUIRE(spans.size() == 3);
  CHECK(trace_problems(trace).empty());
  CHECK(spans[0].at("name") == "time");
  CHECK(spans[1].at("name") == "compile");
  CHECK(spans[1].at("ts") == Approx(0.5e6));
  CHECK(spans[1].at("dur") == Approx(0.25e6));
  CHECK(lanes.at(spans[1].at("tid")) == "compiler 0");
  CHECK(spans[1].at("tid") == spans[2].at("tid"));
  CHECK(spans[2].at("ts") == Approx(100e6));

  write_chrome_trace(directory.path() / "t.json", {});
  CHECK(nlohmann::json::parse(read_text(directory.path() / "t.json")).at("traceEvents").empty());
  CHECK_THROWS_AS(write_chrome_trace(directory.path() / "no" / "t.json", both), EnvironmentError);
}

TEST_CASE("in a trace ranks are processes, and arrows lead from compiling to loading to launches",
          "[runtime][trace]") {
  std::vector<TuneResult> ranks(2);
  for (int r = 0; r < 2; ++r) {
    ranks[static_cast<std::size_t>(r)].kernel = "gemm";
    RankReport& report = ranks[static_cast<std::size_t>(r)].agreed.emplace();
    report.rank = r;
    report.size = 2;
  }
  ranks[0].spans = {{"compile", "compiler 0", "x=1", 10, 1}, {"find", "compiler 1", "x=2", 10, 0.1},
                    {"load", "tuner", "x=2", 11, 0.1},       {"load", "tuner", "x=1", 12, 0.1},
                    {"load", "tuner", "x=3", 13, 0.1},   // nobody knows where it comes from
                    {"load", "tuner", "x=1", 14, 0.1},   // for the finals
                    {"swap", "tuner", "x=1", 16, 0.1},   // launches get it
                    {"swap", "tuner", "x=4", 17, 0.1}};  // nobody knows where it was loaded
  ranks[1].spans = {{"load", "tuner", "x=1", 15, 0.1}};  // compiled by another process
  const Directory directory;
  write_chrome_trace(directory.path() / "t.json", ranks);
  const auto trace = nlohmann::json::parse(read_text(directory.path() / "t.json"));
  const auto problems = trace_problems(trace);
  for (const std::string& problem : problems) UNSCOPED_INFO(problem);
  CHECK(problems.empty());
  std::map<int, std::string> processes;
  std::vector<std::pair<double, double>> arrows;  // in the order in which they end
  std::map<int, double> begins;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_name")
      processes[event.at("pid")] = event.at("args").at("name");
    if (event.at("ph") == "s") begins[event.at("id")] = event.at("ts");
    if (event.at("ph") == "f") {
      CHECK(event.at("pid") == 0);
      arrows.emplace_back(begins.at(event.at("id")), event.at("ts"));
    }
  }
  CHECK(processes == std::map<int, std::string>{{0, "rank 0 of 2"}, {1, "rank 1 of 2"}});
  CHECK(arrows == std::vector<std::pair<double, double>>{{0, 1e6}, {0, 2e6}, {0, 4e6}, {4e6, 6e6}});
}

TEST_CASE("the schema finds what is wrong with a trace", "[runtime][trace]") {
  using nlohmann::json;
  const json name{
      {"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", 0}, {"args", {{"name", "a"}}}};
  const json slice{{"name", "x"}, {"ph", "X"}, {"pid", 1}, {"tid", 0}, {"ts", 5}, {"dur", 2}};
  const json start{{"name", "b"}, {"cat", "b"}, {"ph", "s"}, {"id", 1},
                   {"pid", 1},    {"tid", 0},   {"ts", 5}};
  json end = start;
  end["ph"] = "f";
  end["bp"] = "e";
  end["ts"] = 6;
  const auto wrong = [](const std::vector<json>& events) {
    return !trace_problems(json{{"traceEvents", events}}).empty();
  };
  const auto without = [](json event, const char* field) {
    event.erase(field);
    return event;
  };
  CHECK_FALSE(wrong({name, slice, start, end}));
  CHECK(wrong({slice}));
  CHECK(wrong({name, without(slice, "dur")}));
  CHECK(wrong({name, without(slice, "pid")}));
  CHECK(wrong({name, slice, start}));
  CHECK(wrong({name, slice, end}));
  CHECK(wrong({name, slice, start, without(end, "bp")}));
  end["ts"] = 8;
  CHECK(wrong({name, slice, start, end}));
  end["ts"] = 4;
  CHECK(wrong({name, slice, start, end}));
  CHECK(!trace_problems(json::array()).empty());
}
