// Runtime::metrics() after known work, and what a program hears of that work.
#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include "kiln_test.hpp"
#include "modes_fixture.hpp"
#include "prometheus_format.hpp"
#include "unit/runtime/allocations.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

PrometheusText text_of(const Runtime& runtime) {
  std::ostringstream out;
  write_prometheus(out, runtime.metrics());
  PrometheusText text(out.str());
  for (const std::string& problem : text.problems) FAIL_CHECK(problem);
  return text;
}

std::uint64_t sum(const MetricSeries& series) {
  std::uint64_t all = 0;
  for (const auto& [_, count] : series) all += count;
  return all;
}

/// All names with their labels, without the values.
std::set<std::string> series_of(const PrometheusText& text) {
  std::set<std::string> all;
  for (const auto& [name, family] : text.families)
    for (const auto& sample : family.samples) {
      std::string series = sample.name;
      for (const auto& [label, value] : sample.labels) series += "," + label + "=" + value;
      all.insert(series);
    }
  return all;
}

struct Heard {
  struct One {
    std::string name;
    std::uint64_t id, parent;
    std::map<std::string, std::string> attributes;
    bool failed;
  };
  std::mutex mutex;
  std::vector<One> spans;

  SpanSink sink() {
    return [this](const SpanData& s) {
      One one{std::string(s.name), s.id, s.parent, {}, s.failed};
      for (const SpanAttribute& a : s.attributes)
        one.attributes.emplace(std::string(a.name), std::string(a.value));
      std::lock_guard lock(mutex);
      spans.push_back(std::move(one));
    };
  }
  std::vector<One> named(const std::string& name) const {
    std::vector<One> found;
    for (const One& s : spans)
      if (s.name == name) found.push_back(s);
    return found;
  }
};

}  // namespace

TEST_CASE("metrics tell what a runtime did", "[runtime][metrics]") {
  const Directory directory;
  Process process(directory.path());
  process.of(8).seconds = 0.5e-3;
  process.of(4).compile_log = "error: no";
  process.of(1).run = [](void**) {};  // wrong
  Runtime runtime = process.runtime();
  const RuntimeMetrics before = runtime.metrics();
  CHECK(sum(before.compiles_total) == 0);
  CHECK(sum(before.build_info) == 1);
  auto handle = std::make_unique<DynamicTuned>(runtime.tuned(doubling()));
  CHECK(launch(*handle, 50));
  RuntimeMetrics now = runtime.metrics();
  CHECK(now.compiles_total.at({"compiled"}) == 3);
  CHECK(now.compiles_total.at({"failed"}) == 1);
  CHECK(now.compile_seconds.count() == 4);
  CHECK(now.tunings_total.at({"finished"}) == 1);
  CHECK(sum(now.tunings_total) == 1);
  CHECK(now.tuning_seconds.count() == 1);
  CHECK(now.tuning_seconds.sum > 0);
  CHECK(now.candidates_total.at({"measured"}) == 2);
  CHECK(now.candidates_total.at({"compile_failed"}) == 1);
  CHECK(now.candidates_total.at({"wrong_result"}) == 1);
  CHECK(sum(now.candidates_total) == 4);
  CHECK(now.store_files == 4);  // three binaries and a record
  CHECK(now.store_bytes > 0);
  CHECK(now.store_lookups_total.at({"all", "miss"}) > 0);
  CHECK(now.problems == MetricSeries{{{"doubling"}, 1}});
  CHECK(now.modules_loaded == 1);
  CHECK(now.module_bytes == std::string("k<8, 0>").size());
  CHECK(now.build_info.begin()->first.front() == KILN_VERSION);

  SECTION("once more, what is known is not counted again") {
    TuneOptions options;
    options.retune = false;
    handle->tune({50}, options);
    CHECK(sum(runtime.metrics().candidates_total) == 4);
    CHECK(sum(runtime.metrics().tunings_total) == 1);
  }
  SECTION("a search that goes on counts what it tries itself") {
    Process second(directory.path());
    const Runtime other = second.runtime();
    other.tuned(doubling({1, 2, 4, 8, 16})).tune({50});
    CHECK(other.metrics().candidates_total.at({"measured"}) == 1);
    CHECK(sum(other.metrics().candidates_total) == 1);
    CHECK(other.metrics().store_lookups_total.at({"disk", "hit"}) > 0);
  }
  SECTION("a tuning without a result has failed") {
    for (const int a : {1, 2, 4, 8}) process.of(a).launch_error = "no";
    CHECK_THROWS_AS(launch(*handle, 60), TuningFailedError);
    now = runtime.metrics();
    CHECK(now.tunings_total.at({"failed"}) == 1);
    CHECK(now.candidates_total.at({"launch_failed"}) == 3);
    CHECK(now.candidates_total.at({"compile_failed"}) == 2);
  }
  SECTION("a compiler that cannot be used") {
    process.compiler->on_compile = [](auto&) { throw EnvironmentError("no compiler"); };
    CHECK_THROWS_AS(launch(runtime.tuned(doubling({32}, 32)), 60), EnvironmentError);
    CHECK(runtime.metrics().compiles_total.at({"error"}) == 1);
  }
  SECTION("what a handle held is gone with it") {
    handle.reset();
    now = runtime.metrics();
    CHECK(now.problems == MetricSeries{{{"doubling"}, 0}});
    CHECK(now.modules_loaded == 0);
    CHECK(now.module_bytes == 0);
  }
  SECTION("a launch of what is ready counts nothing and allocates nothing") {
    Buffers b(50);
    const auto at = handle->at({50});
    at({}, b.y.data(), b.x.data(), 50);
    std::ostringstream first, second;
    write_prometheus(first, runtime.metrics());
    const std::size_t before_launch = allocations();
    at({}, b.y.data(), b.x.data(), 50);
    CHECK(allocations() == before_launch);
    write_prometheus(second, runtime.metrics());
    CHECK(first.str() == second.str());
  }
}

TEST_CASE("however many problems there are, labels stay the same", "[runtime][metrics]") {
  const Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::untuned;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  launch(handle, 1);
  const std::set<std::string> few = series_of(text_of(runtime));
  for (int n = 2; n <= 500; ++n) launch(handle, n);
  const PrometheusText many = text_of(runtime);
  CHECK(series_of(many) == few);
  CHECK(many.value("kiln_problems", {{"kernel", "doubling"}}) == 500);
  for (const std::string& series : few) CHECK(series.find(",n=") == std::string::npos);
}

TEST_CASE("metrics are read while others work", "[runtime][metrics][threads]") {
  const Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  std::atomic<bool> done{false};
  std::jthread reader([&] {
    while (!done) runtime.metrics();
  });
  for (int n = 1; n < 10; ++n) launch(handle, n);
  done = true;
  reader.join();
  CHECK(runtime.metrics().tunings_total.at({"finished"}) == 9);
}

TEST_CASE("a program hears of the work that a launch makes", "[runtime][spans]") {
  const Directory directory;
  Heard heard;
  Process process(directory.path());
  process.options.spans = heard.sink();
  process.of(4).compile_log = "error: no";
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  launch(handle, 50);
  const auto tune = heard.named("kiln.tune");
  REQUIRE(tune.size() == 1);
  CHECK(tune[0].parent == 0);
  CHECK(tune[0].attributes.at("kernel") == "doubling");
  CHECK(tune[0].attributes.at("problem") == "n=50");
  CHECK(tune[0].attributes.at("end") == "finished");
  for (const char* name : {"kiln.compile", "kiln.load", "kiln.verify", "kiln.time"}) {
    INFO(name);
    CHECK_FALSE(heard.named(name).empty());
    for (const auto& part : heard.named(name)) {
      CHECK(part.parent == tune[0].id);
      CHECK(part.attributes.at("kernel") == "doubling");
    }
  }
  const auto compiles = heard.named("kiln.compile");
  CHECK(compiles.size() == 4);
  for (const auto& compile : compiles)
    CHECK(compile.failed == (compile.attributes.at("config") == "a=4,b=0"));

  SECTION("and of none when it is ready") {
    const std::size_t before = heard.spans.size();
    launch(handle, 50);
    CHECK(heard.spans.size() == before);
  }
  SECTION("also outside of tunings") {
    heard.spans.clear();
    launch(handle.with_config(Values{2, 0}), 60);
    REQUIRE(heard.spans.size() == 2);
    CHECK(heard.spans[0].name == "kiln.load");
    CHECK(heard.spans[0].parent == 0);
    CHECK(heard.spans[1].name == "kiln.swap");
  }
}

TEST_CASE("an exchange of what launches get is counted and heard of", "[runtime][metrics][spans]") {
  const Directory directory;
  Heard heard;
  Process process(directory.path());
  process.options.spans = heard.sink();
  process.options.mode = Mode::untuned;
  process.of(8).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  launch(handle, 50);
  CHECK(runtime.metrics().swaps_total == 0);
  auto swaps = heard.named("kiln.swap");
  REQUIRE(swaps.size() == 1);
  CHECK(swaps[0].attributes == std::map<std::string, std::string>{{"kernel", "doubling"},
                                                                  {"problem", "n=50"},
                                                                  {"config", "a=2,b=0"}});
  handle.tune({50});
  CHECK(runtime.metrics().swaps_total == 1);
  swaps = heard.named("kiln.swap");
  REQUIRE(swaps.size() == 2);
  CHECK(swaps[1].attributes.at("config") == "a=8,b=0");
  CHECK(swaps[1].attributes.at("before") == "a=2,b=0");
  TuneOptions again;
  again.retune = false;
  handle.tune({50}, again);  // the same config
  CHECK(runtime.metrics().swaps_total == 1);
  CHECK(heard.named("kiln.swap").size() == 2);
}

TEST_CASE("launches that were not prepared are counted by kernel", "[runtime][metrics][seal]") {
  const Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::untuned;
  const Runtime runtime = process.runtime();
  KernelDefinition other = doubling();
  other.name = "other_doubling";
  const auto one = runtime.tuned(doubling()), two = runtime.tuned(other);
  launch(one, 50);
  runtime.seal();
  launch(one, 50);
  launch(one, 60);
  launch(one, 60);
  CHECK_THROWS_AS(launch(two, 60), UnpreparedError);
  CHECK(runtime.metrics().unprepared_launches_total ==
        MetricSeries{{{"doubling", "true"}, 2},
                     {{"doubling", "false"}, 0},
                     {{"other_doubling", "true"}, 0},
                     {{"other_doubling", "false"}, 1}});
  CHECK(runtime.statistics().unprepared_served == 2);
  CHECK(runtime.statistics().unprepared_refused == 1);
}

TEST_CASE("agreements of ranks are counted and heard of", "[runtime][metrics][ranks]") {
  Job job(2);
  Heard heard;
  job[0].options.spans = heard.sink();
  const auto metrics = job.run<RuntimeMetrics>([](Process& process, int) {
    const Runtime runtime = process.runtime();
    launch(runtime.tuned(doubling()), 64);
    return runtime.metrics();
  });
  for (const RuntimeMetrics& m : metrics) {
    CHECK(m.agreements_total.at({"plan"}) == 1);
    CHECK(sum(m.agreements_total) == 1);
    CHECK(m.agreement_seconds.count() == 1);
    CHECK(sum(m.candidates_total) > 0);
    CHECK(sum(m.tunings_total) == 0);
  }
  const auto agreements = heard.named("kiln.agree");
  REQUIRE(agreements.size() == 1);
  CHECK(agreements[0].attributes.at("outcome") == "plan");
  CHECK(agreements[0].attributes.at("rank") == "0");
  for (const char* name : {"kiln.compile", "kiln.load", "kiln.verify", "kiln.time"}) {
    INFO(name);
    const auto parts = heard.named(name);
    CHECK(std::ranges::any_of(parts, [&](const auto& p) { return p.parent == agreements[0].id; }));
  }
}
