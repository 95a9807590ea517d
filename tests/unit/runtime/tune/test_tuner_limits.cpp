// Ends before the search is over, what a run starts from, and what it leaves behind.
#include <algorithm>
#include <atomic>
#include <set>

#include "runtime/tune/best_guess.hpp"
#include "tuner_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

std::vector<std::int64_t> up_to(int n) {
  std::vector<std::int64_t> values;
  for (int i = 1; i <= n; ++i) values.push_back(i);
  return values;
}

TuneResult run(Bench& bench, const KernelDefinition& kernel, const TuneOptions& options,
               const runtime::TuneContext& context) {
  return tune_kernel(bench, kernel, {100}, options, context);
}

std::vector<Values> tried(const TuneResult& result) {
  std::vector<Values> configs;
  for (const Candidate& c : result.candidates) configs.push_back(c.config);
  return configs;
}

}  // namespace

TEST_CASE("a target time is enough", "[runtime][tuner]") {
  Bench bench;
  const KernelDefinition kernel = doubling(up_to(200), 100);
  for (int a = 1; a <= 200; ++a) bench.seconds(a, (1 + 0.01 * std::abs(a - 50)) * kMs);
  TuneOptions options;
  options.target_seconds = 1.25 * kMs;
  const TuneResult r = tune(bench, kernel, options);
  CHECK(r.end == SearchEnd::target);
  CHECK_FALSE(r.complete);
  CHECK(r.winner().seconds <= 1.25 * kMs);
  CHECK(r.candidates.size() < 100);
  SECTION("of which the default may be the first") {
    options.target_seconds = 1;
    const TuneResult first = tune(bench, kernel, options);
    CHECK(first.candidates.size() <= 8);  // one group
  }
}

TEST_CASE("what runs untuned is measured before all else, and leaves only for what is faster",
          "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling(up_to(200), 100);
  kernel.cost = [](auto config, auto, const auto&) { return config[0] == 4 ? 1e-6 : 1e-3; };
  kernel.untuned_by_cost = [](const auto&) { return true; };
  for (int a = 1; a <= 200; ++a) bench.seconds(a, kMs);
  TuneOptions options;
  SECTION("so the shortest run has it") {
    options.target_seconds = 1;
    const TuneResult r = tune(bench, kernel, options);
    CHECK(r.winner().config == Values{4, 0});
    CHECK(find(r, {100, 0}).status == CandidateStatus::not_tried);
    CHECK(r.warnings.empty());
  }
  SECTION("so it wins a tie") { CHECK(tune(bench, kernel).winner().config == Values{4, 0}); }
  SECTION("but not against a faster one") {
    bench.seconds(7, 0.9 * kMs);
    CHECK(tune(bench, kernel).winner().config == Values{7, 0});
  }
}

TEST_CASE("where nothing is launched, no space is walked for what runs untuned",
          "[runtime][tuner]") {
  Bench bench;
  KernelDefinition kernel = doubling(up_to(200), 100);
  int guesses = 0;
  kernel.cost = [&](auto, auto, const auto&) { return ++guesses * 1e-3; };
  kernel.untuned_by_cost = [](const auto&) { return true; };
  const unsigned empty = GENERATE(0, 1, 2);
  kernel.launch = [empty](auto, auto) {
    return Launch{{empty != 0, empty != 1, empty != 2}, {32}, 0};
  };
  const Values problem{64};
  CHECK(runtime::untuned_config(kernel, problem, bench.device->info()) == Values{100, 0});
  CHECK(guesses == 0);
}

TEST_CASE("a request to stop leaves the best so far", "[runtime][tuner]") {
  Bench bench;
  const KernelDefinition kernel = doubling(up_to(500), 1);
  bench.seconds(1, 2 * kMs);
  TuneOptions options;
  options.strategy = "random";
  std::stop_source source;
  options.stop = source.get_token();

  SECTION("in the middle") {
    options.progress = [&](const TuneProgress& p) {
      if (p.evaluated >= 20) source.request_stop();
    };
    const TuneResult r = tune(bench, kernel, options);
    CHECK(r.end == SearchEnd::stopped);
    CHECK_FALSE(r.complete);
    CHECK(r.candidates.size() >= 20);
    CHECK(r.candidates.size() < 60);
    CHECK(r.winner().seconds == Approx(kMs));

    // The next run tries none of them again.
    bench.builder.finish_builds();
    const int before = bench.compiler->compiles;
    options.stop = {};
    options.progress = nullptr;
    options.max_evaluations = r.candidates.size() + 10;
    const TuneResult more = tune(bench, kernel, options, &r);
    CHECK(more.end == SearchEnd::evaluations);
    CHECK(more.evaluated == 10);
    CHECK(bench.compiler->compiles <= before + 10);
    const std::vector<Values> all = tried(more);
    CHECK(std::set<Values>(all.begin(), all.end()).size() == all.size());
    for (const Values& config : tried(r))
      CHECK(std::find(all.begin(), all.end(), config) != all.end());
  }
  SECTION("before anything was measured") {
    source.request_stop();
    const TuneResult r = tune(bench, kernel, options);
    CHECK(r.end == SearchEnd::stopped);
    CHECK(r.winner_index == 0);
    CHECK(r.winner().config == Values{1, 0});
  }
  CHECK(bench.device->live_kernels == 0);
  CHECK(bench.device->live_allocations == 0);
}

TEST_CASE("a run starts with what others found", "[runtime][tuner]") {
  Bench bench;
  const KernelDefinition kernel = doubling(up_to(300), 5);
  runtime::TuneContext context;
  context.starts = {{77, 0}, {12345, 0}, {5, 0}, {77, 0}, {1}, {200, 0}};
  TuneOptions options;
  options.max_evaluations = 3;
  const TuneResult r = run(bench, kernel, options, context);
  REQUIRE(r.candidates.size() == 3);
  CHECK(r.candidates[0].config == Values{5, 0});
  CHECK(r.candidates[1].config == Values{77, 0});
  CHECK(r.candidates[2].config == Values{200, 0});

  SECTION("unless the budget is for the default alone") {
    options.max_evaluations = 1;
    CHECK(run(bench, kernel, options, context).candidates.size() == 1);
  }
  SECTION("unless a constraint forbids it") {
    KernelDefinition strict = kernel;
    strict.space.where("not 77", [](auto c, auto, const auto&) { return c[0] != 77; });
    CHECK(run(bench, strict, options, context).candidates[1].config == Values{200, 0});
  }
}

TEST_CASE("the config in use stays within the noise", "[runtime][tuner]") {
  Bench bench;
  bench.seconds(1, 1.0 * kMs);
  bench.seconds(2, 2.0 * kMs);  // the default
  bench.seconds(8, 1.003 * kMs);
  KernelDefinition kernel = doubling({1, 2, 8});
  kernel.cost = [](auto, auto, const DeviceLimits&) { return 1.0; };
  runtime::TuneContext context;
  CHECK(run(bench, kernel, {}, context).winner().config == Values{1, 0});
  context.incumbent = {8, 0};
  CHECK(run(bench, kernel, {}, context).winner().config == Values{8, 0});
  bench.seconds(8, 1.05 * kMs);
  CHECK(run(bench, kernel, {}, context).winner().config == Values{1, 0});
}

TEST_CASE("an unfinished run is saved as it goes", "[runtime][tuner]") {
  Bench bench;
  const KernelDefinition kernel = doubling(up_to(64), 2);
  bench.seconds(9, 0.5 * kMs);
  std::vector<TuneResult> saved;
  runtime::TuneContext context;
  context.save = [&](const TuneResult& r) { saved.push_back(r); };
  TuneOptions options;
  options.strategy = "exhaustive";
  const TuneResult r = run(bench, kernel, options, context);
  REQUIRE_FALSE(saved.empty());
  for (const TuneResult& s : saved) {
    CHECK_FALSE(s.complete);
    CHECK(s.winner().status == CandidateStatus::measured);
  }
  CHECK(saved.front().candidates.size() < r.candidates.size());
  // What was saved can be gone on from.
  Bench second;
  const TuneResult rest = tune(second, kernel, options, &saved.front());
  CHECK(rest.complete);
  CHECK(rest.candidates.size() == 64);
  CHECK(rest.evaluated == 64 - saved.front().candidates.size());
}

TEST_CASE("the parts of a run's time are told", "[runtime][tuner]") {
  Bench bench;
  const TuneResult r = tune(bench, doubling(up_to(20)));
  CHECK(r.wall_seconds > 0);
  CHECK(r.compile_seconds + r.verify_seconds + r.time_seconds + r.search_seconds <=
        r.wall_seconds * 1.001);
  std::set<std::string> names, lanes;
  for (const TraceSpan& s : r.spans) {
    names.insert(s.name);
    lanes.insert(s.lane);
    CHECK(s.seconds >= 0);
  }
  for (const char* name : {"compile", "verify", "time", "search", "finals"})
    CHECK(names.count(name) == 1);
  CHECK(lanes.count("tuner") == 1);
  // Which of the compile workers come to do something is up to the machine.
  CHECK(std::any_of(lanes.begin(), lanes.end(),
                    [](const std::string& lane) { return lane.starts_with("compiler "); }));
}

TEST_CASE("a machine that slows down does not make the later candidates lose", "[runtime][tuner]") {
  Bench bench;
  const KernelDefinition kernel = doubling(up_to(60), 1);
  bench.seconds(60, 0.9 * kMs);
  TuneOptions options;
  options.strategy = "exhaustive";
  options.progress = [&](const TuneProgress& p) {
    bench.device->pace = 1 + 0.02 * static_cast<double>(p.evaluated);
  };
  // By its unscaled time the last config, at 2.2 times the first one's pace, would have no chance.
  CHECK(tune(bench, kernel, options).winner().config == Values{60, 0});
}

TEST_CASE("a kernel that loses the device ends the run, and is the only one blamed",
          "[runtime][tuner]") {
  // Lost while its results are checked, while it is timed, in the final.
  const int launches = GENERATE(0, 1, 2, 40);
  Bench bench;
  const KernelDefinition kernel = doubling({1, 2, 4, 8, 16, 32});
  bench.of(8).launch_error = "device lost";
  bench.of(8).fails_after = launches;
  std::vector<TuneResult> saved;
  runtime::TuneContext context;
  context.save = [&](const TuneResult& r) { saved.push_back(r); };
  TuneOptions options;
  options.strategy = "exhaustive";
  const auto run = [&] { tune_kernel(bench, kernel, {100}, options, context); };
  CHECK_THROWS_AS(run(), runtime::DeviceLost);
  REQUIRE_FALSE(saved.empty());
  const TuneResult& last = saved.back();
  CHECK_FALSE(last.complete);
  CHECK(find(last, {8, 0}).status == CandidateStatus::crashed);
  CHECK(find(last, {8, 0}).reason == "device lost");
  CHECK(last.winner().status == CandidateStatus::measured);
  CHECK(last.count(CandidateStatus::crashed) == 1);
  // The next process goes on without it.
  Bench fresh;
  const TuneResult rest = tune(fresh, kernel, options, &last);
  CHECK(rest.complete);
  CHECK(rest.count(CandidateStatus::measured) == 5);
  CHECK(find(rest, {8, 0}).status == CandidateStatus::crashed);
}

TEST_CASE("a device that is lost to something else is blamed on no candidate", "[runtime][tuner]") {
  // Before the default is loaded, and after some candidates were timed.
  const int loads = GENERATE(0, 3);
  Bench bench;
  const KernelDefinition kernel = doubling({1, 2, 4, 8, 16, 32});
  bench.device->on_load = [&](const std::string&) {
    if (bench.device->loads >= loads) bench.device->is_lost = true;
  };
  std::vector<TuneResult> saved;
  runtime::TuneContext context;
  context.save = [&](const TuneResult& r) { saved.push_back(r); };
  TuneOptions options;
  options.strategy = "exhaustive";
  CHECK_THROWS_AS(tune_kernel(bench, kernel, {100}, options, context), runtime::DeviceLost);
  for (const TuneResult& r : saved) {
    CHECK_FALSE(r.complete);
    CHECK(r.count(CandidateStatus::crashed) == 0);
    CHECK(r.count(CandidateStatus::launch_failed) == 0);
  }
  runtime::KernelMaker maker(kernel, Values{100}, bench.device, bench.builder, 0);
  const runtime::Build build = maker.build({1, 0});
  CHECK_THROWS_AS(maker.load({1, 0}, build), runtime::DeviceLost);
}

TEST_CASE("a record has all that was tried, and the better winner", "[runtime][tuner]") {
  const auto result = [](std::vector<std::pair<int, double>> tried, bool complete) {
    TuneResult r;
    for (const auto& [a, seconds] : tried) {
      Candidate& c = r.candidates.emplace_back();
      c.config = {a, 0};
      c.status = CandidateStatus::measured;
      c.seconds = seconds;
    }
    r.complete = complete;
    return r;
  };
  const auto check = [](const TuneResult& r, int winner, std::size_t tried, bool complete) {
    CHECK(r.winner().config == Values{winner, 0});
    CHECK(r.candidates.size() == tried);
    CHECK(r.complete == complete);
  };
  using runtime::merged;
  check(merged(result({{1, 1.0}}, false), result({{2, 1.3}}, false)), 1, 2, false);
  check(merged(result({{1, 2.0}}, false), result({{2, 1.3}}, true)), 2, 2, true);
  // A search that was over stays over, and has what a later one was cut off with.
  check(merged(result({{1, 2.0}}, true), result({{2, 1.3}}, false)), 2, 2, true);
  check(merged(result({{1, 1.0}}, true), result({{2, 1.3}}, false)), 1, 2, true);
  // What was measured again counts by its new time.
  check(merged(result({{1, 1.0}}, false), result({{2, 1.3}, {1, 1.4}}, false)), 2, 2, false);
}

TEST_CASE("there is no trial of a build without a binary", "[tuner]") {
  test::Bench bench;
  bench.of(4).compile_log = "error: no";
  const KernelDefinition kernel = test::doubling();
  runtime::KernelMaker maker(kernel, Values{50}, bench.device, bench.builder, 1);
  const Values right{2, 0}, wrong{4, 0};
  CHECK(std::get<0>(maker.trial(right, maker.build(right)).code));
  CHECK_THROWS_AS(maker.trial(wrong, maker.build(wrong)), CompileError);
  runtime::Build build;
  CHECK_THROWS_AS(maker.trial(right, build), InternalError);
  build.outcome = Missing{"doubling{a=2,b=0}", {}, {}, {}, "this mode compiles nothing"};
  CHECK_THROWS_AS(maker.trial(right, build), MissingError);
}
