// Runtime::tune for many problems within one budget, on the fake device.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <iterator>
#include <latch>
#include <map>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>

#include "kiln/report.hpp"
#include "kiln_test.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "unit/runtime/serve/modes_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

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
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling(many_values()));
  std::vector<TuneJob> jobs;
  for (int n = 100; n < 160; ++n) jobs.push_back({handle, {n}, 1});
  // All of it would take 400 x 10 ms on two threads.
  process.compiler->on_compile = [](const codegen::Source&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  const double seconds = GENERATE(0.2, 1e-9);
  const auto results = runtime.tune(jobs, {.max_seconds = seconds});
  REQUIRE(results.size() == jobs.size());
  CHECK(process.compiler->compiles < 400);
  CHECK(process.compiler->compiles >= 1);
  std::size_t untried = 0;
  for (const TuneResult& result : results) {
    CHECK_FALSE(result.complete);
    if (result.winner().status == CandidateStatus::measured) continue;
    ++untried;
    CHECK(result.end == SearchEnd::seconds);
    CHECK_THAT(result.winner().reason, Catch::Contains("the shared budget ran out"));
  }
  CHECK(untried > 0);
  // Launches neither compile nor measure what the budget has not reached.
  detail::Access::engine(runtime)->builder().finish_builds();  // those that had begun
  const int compiles = process.compiler->compiles, timings = process.device->timings;
  for (int n = 100; n < 160; ++n) CHECK(launch(handle, n));
  CHECK(process.compiler->compiles == compiles);
  CHECK(process.device->timings == timings);
  CHECK(runtime.wanted().wanted.empty());
}

TEST_CASE("what is not reached is launched as its nearest neighbour's winner",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  for (int a = 1; a <= 400; ++a)
    if (a != 2) process.of(a).seconds = 0.5e-3;  // all are better than the default
  const Runtime runtime = process.runtime();
  const std::string chosen_by = GENERATE("nobody", "cost", "author");
  const bool chosen = chosen_by != "nobody";
  KernelDefinition kernel = doubling(many_values());
  if (chosen_by == "cost") kernel.untuned_by_cost = [](const DeviceLimits&) { return true; };
  if (chosen_by == "author")
    kernel.default_for = [](auto, const DeviceLimits&) { return Values{2, 0}; };
  const auto even = runtime.tuned(kernel), odd = runtime.tuned(kernel);
  const auto handle_of = [&](std::int64_t n) { return n % 2 == 0 ? even : odd; };
  std::vector<TuneJob> jobs;
  for (int n = 100; n < 160; ++n) jobs.push_back({handle_of(n), {n}});
  std::stop_source stop;
  TuneOptions options{.max_seconds = 1000};
  options.stop = stop.get_token();
  options.progress = [&](const TuneProgress&) {
    if (runtime.statistics().tuned >= 3) stop.request_stop();
  };
  const auto results = runtime.tune(jobs, options);
  std::map<std::int64_t, Values> winners;
  for (const TuneResult& r : results)
    if (r.winner().status == CandidateStatus::measured) winners[r.problem[0]] = r.winner().config;
  REQUIRE_FALSE(winners.empty());
  REQUIRE(winners.size() < results.size());
  detail::Access::engine(runtime)->builder().finish_builds();  // those that had begun
  const int compiles = process.compiler->compiles;
  for (const TuneResult& r : results) {
    const std::int64_t n = r.problem[0];
    INFO(n << " " << to_string(r.winner().status) << " " << to_string(r.end));
    CHECK(handle_of(n).config({n}) == r.winner().config);
    if (winners.contains(n)) continue;
    // If two are equally far away, the larger one is nearer, by the ratio of sizes.
    const auto above = winners.lower_bound(n);
    const auto nearest = above != winners.end() &&
                                 (above == winners.begin() ||
                                  std::log2(above->first + 1.0) - std::log2(n + 1.0) <
                                      std::log2(n + 1.0) - std::log2(std::prev(above)->first + 1.0))
                             ? above
                             : std::prev(above);
    const std::string told = "it is the winner for n=" + std::to_string(nearest->first);
    if (chosen) {
      CHECK(r.winner().reason.find("it is the winner for") == std::string::npos);
    } else {
      CHECK(r.winner().config == nearest->second);
      // The default needs no such reason; where the run was stopped it may be the winner.
      if (r.winner().config != Values{2, 0}) CHECK_THAT(r.winner().reason, Catch::Contains(told));
    }
  }
  CHECK(process.compiler->compiles == compiles);
}

TEST_CASE("a process that comes later goes on where a budget ended", "[runtime][budget]") {
  Directory directory;
  std::size_t before = 0;
  {
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling(many_values()));
    std::stop_source stop;
    TuneOptions options{.max_seconds = 600};
    options.stop = stop.get_token();
    options.progress = [&](const TuneProgress& p) {
      if (p.evaluated > 5) stop.request_stop();
    };
    const std::vector<TuneJob> jobs{{handle, {139}, 1}, {handle, {140}, 5}, {handle, {141}, 1}};
    const auto results = runtime.tune(jobs, options);
    REQUIRE(results[1].winner().status == CandidateStatus::measured);  // the heaviest comes first
    CHECK(results[0].winner().status == CandidateStatus::not_tried);
    before = results[1].candidates.size();
  }
  Process later(directory.path());
  const Runtime runtime = later.runtime();
  const auto handle = runtime.tuned(doubling(many_values()));
  std::vector<TuneJob> jobs{{handle, {140}, 5}, {handle, {141}, 1}};
  SECTION("with what it has on record") {
    const auto results = runtime.tune(jobs, {.max_evaluations = before + 3, .max_seconds = 600});
    CHECK(results[0].candidates.size() >= before);
    CHECK(results[0].evaluated <= 4);
    CHECK(results[0].end == SearchEnd::evaluations);
    CHECK(results[1].winner().status == CandidateStatus::measured);
  }
  SECTION("first with what it has nothing on record of, unless all is measured anew") {
    std::stop_source stop;
    TuneOptions options{.max_seconds = 600};
    options.retune = GENERATE(false, true);
    options.stop = stop.get_token();
    options.progress = [&](const TuneProgress& p) {
      if (p.evaluated > 1) stop.request_stop();
    };
    const auto results = runtime.tune(jobs, options);
    CHECK((results[1].evaluated > 0) != options.retune);
    CHECK((results[0].evaluated > 0) == options.retune);
  }
}

namespace {

/// Jobs that take hardly any time, but have their part of the budget.
void add_fillers(std::vector<TuneJob>& jobs, const Runtime& runtime, int count) {
  const auto chosen = runtime.tuned(doubling()).with_config({8, 0});
  for (int i = 0; i < count; ++i) jobs.push_back({chosen, {500 + i}});
}

}  // namespace

TEST_CASE("a search that ends too early to find anything right goes on later",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const Values first = doubling().space.default_config(process.device->info().target);
  process.of(static_cast<int>(first[0])).run = [](void**) {};
  std::vector<TuneJob> jobs{{handle, {50}}};
  TuneOptions options;
  // The first slice, a sixtieth of the time, is over before anything but the default is tried.
  bool slow = true;
  options.progress = [&](const TuneProgress&) {
    if (std::exchange(slow, false)) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  };
  SECTION("and finds it") {
    add_fillers(jobs, runtime, 59);
    options.max_seconds = 60;
    const auto results = runtime.tune(jobs, options);
    CHECK(results[0].winner().status == CandidateStatus::measured);
    CHECK(results[0].complete);
  }
  SECTION("and where no time is left, no other result is lost") {
    jobs.insert(jobs.begin(), {runtime.tuned(doubling()).with_config({8, 0}), {60}, 1});
    options.max_seconds = 1;
    const auto results = runtime.tune(jobs, options);
    REQUIRE(results.size() == 2);
    CHECK(results[1].winner().status == CandidateStatus::not_tried);
  }
}

TEST_CASE("a budget waits for another tuning, and then goes on", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling(many_values()));
  CHECK_FALSE(handle.tune({50}, {.max_evaluations = 3}).complete);
  std::latch held(1), let_go(1);
  std::jthread other([&] {
    bool first = true;
    TuneOptions options{.max_evaluations = 2};
    options.progress = [&](const TuneProgress&) {
      if (!std::exchange(first, false)) return;
      held.count_down();
      let_go.wait();
    };
    handle.tune({999}, options);
  });
  held.wait();
  std::jthread releases([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    let_go.count_down();
  });
  // The first slice of each is over before the turn comes.
  std::vector<TuneJob> jobs{{handle, {50}}};
  add_fillers(jobs, runtime, 119);
  const auto results = runtime.tune(jobs, {.max_evaluations = 6, .max_seconds = 60});
  CHECK_FALSE(results[0].from_store);
  CHECK(results[0].evaluated >= 1);
  CHECK(results[0].end == SearchEnd::evaluations);
  CHECK(results[1].winner().status == CandidateStatus::measured);
}

TEST_CASE("what is measured anew has one slice for each problem", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling(many_values()));
  handle.tune({50}, {.max_evaluations = 20});
  std::vector<TuneJob> jobs{{handle, {50}}};
  add_fillers(jobs, runtime, 9);
  // The slice, a tenth of the time, is over long before its search.
  bool slow = true;
  TuneOptions options{.max_seconds = 3, .retune = true};
  options.progress = [&](const TuneProgress& p) {
    if (p.evaluated >= 1 && std::exchange(slow, false))
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
  };
  const auto results = runtime.tune(jobs, options);
  CHECK_FALSE(results[0].complete);
  CHECK(results[0].end == SearchEnd::seconds);
}

TEST_CASE("a budget keeps within the bound of problems", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.options.max_problems = 16;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  std::vector<TuneJob> jobs;
  for (int n = 100; n < 200; ++n) jobs.push_back({handle, {n}});
  CHECK(runtime.tune(jobs, {.max_seconds = 1e-9}).size() == 100);
  CHECK(runtime.metrics().problems.at({"doubling"}) <= 17);
  for (int n = 300; n < 332; ++n) launch(handle, n);
  CHECK(runtime.metrics().problems.at({"doubling"}) <= 17);
}

TEST_CASE("a budget may be longer than a lifetime", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  const std::vector<TuneJob> jobs{{handle, {50}, 1e308}, {handle, {50}, 1e308}, {handle, {60}, 1}};
  for (const double seconds : {1e9, 1e300}) {
    const auto results = runtime.tune(jobs, {.max_seconds = seconds});
    for (const TuneResult& result : results) CHECK(result.complete);
  }
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
  for (const double seconds : {0.0, 5.0})
    CHECK_THROWS_WITH(other.tune(jobs, {.max_seconds = seconds}),
                      Catch::Contains("another runtime"));
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
  const auto results =
      runtime.tune(std::vector<TuneJob>{{bad, {50}, 9}, {good, {50}, 1}}, {.max_seconds = 30});
  REQUIRE(results.size() == 2);
  CHECK_THAT(results[0].failure, Catch::Contains("no such kernel"));
  CHECK(results[0].kernel == "broken");
  CHECK(results[0].problem == Values{50});
  CHECK(results[0].winner().status == CandidateStatus::not_tried);
  CHECK(results[0].winner().reason == results[0].failure);
  CHECK_THAT(to_json(results[0]), Catch::Contains("\"failure\":"));
  CHECK(results[1].failure.empty());
  CHECK(results[1].complete);
  CHECK_THAT(to_json(results[1]), !Catch::Contains("\"failure\":"));
  REQUIRE(good.known({50}));
  // Where all fail, there is nothing to hide.
  CHECK_THROWS_AS(
      runtime.tune(std::vector<TuneJob>{{bad, {50}, 9}, {bad, {60}, 1}}, {.max_seconds = 30}),
      TuningFailedError);
}

TEST_CASE("what a kernel's functions throw fails its own problems alone", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.device->info().limits.compute_capability = 90;  // where guesses are compiled ahead
  const Runtime runtime = process.runtime();
  KernelDefinition broken = doubling();
  broken.name = "broken";
  const bool lists = GENERATE(true, false);
  if (lists)
    broken.configs = [](auto, const DeviceLimits&) -> std::vector<Values> { throw 7; };
  else
    broken.cost = [](auto, auto, const DeviceLimits&) -> double { throw 7; };
  const auto good = runtime.tuned(doubling()), bad = runtime.tuned(broken);
  const auto results = runtime.tune(std::vector<TuneJob>{{bad, {50}}, {good, {50}}, {bad, {60}}},
                                    {.max_seconds = 30});
  REQUIRE(results.size() == 3);
  for (const std::size_t failed : {0U, 2U})
    CHECK_THAT(results[failed].failure, Catch::Contains("not derived from std::exception"));
  CHECK(results[1].complete);
}

TEST_CASE("best guesses that are compiled ahead leave most of a budget to measuring",
          "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  process.device->info().limits.compute_capability = 90;
  const Runtime runtime = process.runtime();
  KernelDefinition kernel = doubling(many_values());
  kernel.cost = [](auto config, auto problem, const DeviceLimits&) {
    return 1 + std::abs(static_cast<double>(config[0] - problem[0]));  // each has its own guess
  };
  std::atomic<int> before_data = -1;
  kernel.workload = [&, draw = kernel.workload](auto p, Workload& w) {
    int none = -1;
    before_data.compare_exchange_strong(none, process.compiler->compiles);
    draw(p, w);
  };
  // Sanitized, describing 300 problems takes longer than a second: all of it is stretched alike.
  process.compiler->on_compile = [](const codegen::Source&) {
    std::this_thread::sleep_for(std::chrono::duration<double>(test::patient(.18)));
  };
  const auto handle = runtime.tuned(kernel);
  std::vector<TuneJob> jobs;
  for (int n = 100; n < 400; ++n) jobs.push_back({handle, {n}});
  const auto start = std::chrono::steady_clock::now();
  const auto results = runtime.tune(jobs, {.max_seconds = test::patient(3)});
  CHECK(before_data >= 1);   // the pick of all, and some guesses, unless the machine is slow
  CHECK(before_data < 300);  // as many guesses were to be compiled
  CHECK(std::ranges::any_of(
      results, [](const TuneResult& r) { return r.winner().status == CandidateStatus::measured; }));
  CHECK(std::chrono::steady_clock::now() - start <
        std::chrono::duration<double>(test::patient(30)));
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

TEST_CASE("a handle with a fixed config is timed, not tuned, within a budget",
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

TEST_CASE("a problem that is named twice is measured again once", "[runtime][budget]") {
  Directory directory;
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  KernelDefinition kernel = doubling();
  kernel.bucket = [](auto p) { return Values{(p[0] + 63) / 64 * 64}; };
  const auto handle = runtime.tuned(kernel);
  const std::vector<TuneJob> jobs{{handle, {50}}, {handle, {70}}, {handle, {60}}};
  TuneOptions again;
  again.retune = true;
  const auto results = runtime.tune(jobs, again);
  CHECK(runtime.statistics().tuned == 2);
  REQUIRE(results.size() == 3);
  CHECK(results[0].problem == Values{64});
  CHECK(results[1].problem == Values{128});
  CHECK(results[2].problem == Values{64});
}
