// Runtime::tune for many problems within one budget, on the fake device.
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "kiln_test.hpp"
#include "modes_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::vector<std::int64_t> many_values() {
  std::vector<std::int64_t> values(400);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i) + 1;
  return values;
}

}  // namespace

TEST_CASE("a budget for many problems that suffices tunes all to the end", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.of(4).seconds = 0.5e-3;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const std::vector<TuneJob> jobs{{handle, {50}}, {handle, {60}}, {handle, {50}}, {handle, {70}}};
  const auto results = runtime.tune(jobs, {.max_seconds = 60});
  REQUIRE(results.size() == 4);
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    CHECK(results[j].problem == jobs[j].problem);
    CHECK(results[j].complete);
    CHECK(results[j].winner().config == Values{4, 0});
    CHECK_FALSE(results[j].from_store);
    CHECK(handle.config(jobs[j].problem) == Values{4, 0});
  }
  CHECK(process.compiler->compiles == 4);  // what problems share is compiled once
  CHECK(runtime.statistics().tuned == 3);
  const auto again = runtime.tune(jobs, {.max_seconds = 60});
  for (const TuneResult& result : again) CHECK(result.from_store);
}

TEST_CASE("a budget that does not suffice is kept, and each problem has something to launch",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  std::vector<TuneJob> jobs;
  constexpr int kProblems = 60;
  {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling(many_values()));
    for (int n = 0; n < kProblems; ++n) jobs.push_back({handle, {100 + n}, n == 40 ? 5.0 : 1.0});
    process.compiler->on_compile = [](const codegen::Source&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    };
    std::vector<TuneResult> results;
    // Not the seconds of a busy machine: far less than all of it takes, 400 x 10 ms of compiling.
    CHECK(seconds_of([&] { results = runtime.tune(jobs, {.max_seconds = 0.4}); }) < 10);
    REQUIRE(results.size() == jobs.size());
    CHECK(process.compiler->compiles < 400);
    CHECK(results[40].winner().status == CandidateStatus::measured);  // the heaviest comes first
    std::size_t untried = 0;
    for (const TuneResult& result : results) {
      CHECK_FALSE(result.complete);
      if (result.winner().status == CandidateStatus::measured) continue;
      ++untried;
      CHECK(result.end == SearchEnd::seconds);
      CHECK_THAT(result.winner().reason, Catch::Contains("budget for all problems"));
    }
    CHECK(untried > 0);
    // Launches neither compile nor measure what the budget has not reached.
    const int compiles = process.compiler->compiles, timings = process.device->timings;
    for (int n = 0; n < kProblems; ++n) CHECK(launch(handle, 100 + n));
    CHECK(process.compiler->compiles == compiles);
    CHECK(process.device->timings == timings);
  }
  // A process that comes later goes on.
  Process later(directory.path());
  const Runtime runtime = later.runtime();
  const auto handle = runtime.tuned(doubling(many_values()));
  const auto before = handle.known({140});
  REQUIRE(before);
  const auto results =
      runtime.tune(std::vector<TuneJob>{{handle, {140}, 1}, {handle, {141}, 1}},
                   {.max_evaluations = before->candidates.size() + 3, .max_seconds = 60});
  CHECK(results[0].candidates.size() >= before->candidates.size());
  CHECK(results[0].evaluated <= 4);
  CHECK(results[0].end == SearchEnd::evaluations);
  CHECK(results[1].winner().status == CandidateStatus::measured);
}

TEST_CASE("a thousand equal problems are one", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const std::vector<TuneJob> jobs(1000, TuneJob{handle, {50}, 1});
  const auto results = runtime.tune(jobs, {.max_seconds = 30});
  CHECK(results.size() == 1000);
  CHECK(runtime.statistics().tuned == 1);
  CHECK(results[999].complete);
  CHECK(runtime.tune(std::vector<TuneJob>{}, {.max_seconds = 1}).empty());
}

TEST_CASE("weights and budgets that make no sense are refused before anything is done",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const Runtime other = process.runtime();
  const auto handle = runtime.tuned(doubling());
  for (const double weight : {-1.0, std::nan(""), HUGE_VAL})
    for (const double seconds : {0.0, 5.0})
      CHECK_THROWS_WITH(
          runtime.tune(std::vector<TuneJob>{{handle, {50}, 1}, {handle, {60}, weight}},
                       {.max_seconds = seconds}),
          Catch::Contains("weight of kernel doubling"));
  const std::vector<TuneJob> jobs{{handle, {50}}};
  for (const double seconds : {-1.0, std::nan(""), HUGE_VAL})
    CHECK_THROWS_AS(runtime.tune(jobs, {.max_seconds = seconds}), UserError);
  CHECK_THROWS_WITH(other.tune(jobs, {.max_seconds = 5}), Catch::Contains("another runtime"));
  CHECK_THROWS_AS(
      runtime.tune(std::vector<TuneJob>{{handle, {50}}, {handle, {0}}}, {.max_seconds = 5}),
      UserError);  // an empty grid
  CHECK(process.compiler->compiles == 0);
  // 0 is no limit, and next to nothing still gives each problem something to launch.
  CHECK(runtime.tune(jobs, {.max_seconds = 0})[0].complete);
  const auto tiny =
      runtime.tune(std::vector<TuneJob>{{handle, {70}}, {handle, {80}}}, {.max_seconds = 1e-9});
  REQUIRE(tiny.size() == 2);
  CHECK(launch(handle, 70));
  CHECK(launch(handle, 80));
}

TEST_CASE("one problem that fails does not take the others' time", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  KernelDefinition broken = doubling();
  broken.name = "broken";
  broken.entry = "wrong";
  for (const int a : {1, 2, 4, 8})
    (*process.script)["wrong<" + std::to_string(a) + ", 0>"].compile_log = "no such kernel";
  const auto good = runtime.tuned(doubling()), bad = runtime.tuned(broken);
  CHECK_THROWS_AS(
      runtime.tune(std::vector<TuneJob>{{bad, {50}, 9}, {good, {50}, 1}}, {.max_seconds = 30}),
      TuningFailedError);
  REQUIRE(good.known({50}));
  CHECK(good.known({50})->complete);
}

TEST_CASE("a budget can be stopped", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling(many_values()));
  std::stop_source stop;
  TuneOptions options;
  options.max_seconds = 60;
  options.stop = stop.get_token();
  options.progress = [&](const TuneProgress& p) {
    if (p.evaluated > 3) stop.request_stop();
  };
  const std::vector<TuneJob> jobs{{handle, {50}}, {handle, {60}}, {handle, {70}}};
  auto results = runtime.tune(jobs, options);
  REQUIRE(results.size() == 3);
  CHECK(results[0].end == SearchEnd::stopped);
  CHECK(results[0].winner().status == CandidateStatus::measured);
  CHECK(results[2].end == SearchEnd::stopped);
  CHECK(results[2].winner().status == CandidateStatus::not_tried);
  for (const int n : {50, 60, 70}) CHECK(launch(handle, n));
  results = runtime.tune(jobs, options);  // stopped already
  CHECK(results[1].winner().status == CandidateStatus::not_tried);
}

TEST_CASE("a handle with a chosen config is timed, not tuned, within a budget",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling()).with_config({8, 0});
  const auto results =
      runtime.tune(std::vector<TuneJob>{{handle, {50}}, {handle, {60}}}, {.max_seconds = 30});
  for (const TuneResult& result : results) {
    CHECK(result.winner().config == Values{8, 0});
    CHECK(result.winner().status == CandidateStatus::measured);
  }
  CHECK(process.compiler->compiles == 1);
}
