// What ranks remember, each for itself or all: what is used, and what is saved.
#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "kiln/report.hpp"
#include "runtime/measure/bench.hpp"
#include "unit/runtime/ranks_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// What a process of one rank leaves in its store.
void tune_alone(const fs::path& directory, int best, const KernelDefinition& kernel = doubling(),
                const std::string& strategy = TuneOptions().strategy) {
  Process alone(directory);
  alone.of(best).seconds = 0.2 * kMs;
  alone.options.tuning.strategy = strategy;
  alone.runtime().tuned(kernel).tune({64});
}

Values known_alone(const fs::path& directory, const KernelDefinition& kernel) {
  Process alone(directory);
  return alone.runtime().tuned(kernel).known({64})->winner().config;
}

}  // namespace

TEST_CASE("a second start uses what was saved, and measures nothing", "[runtime][ranks]") {
  for (const bool one_store : {false, true}) {
    Job job(2, one_store);
    for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
    const auto first = job.tune();
    check_plan(first, 8);
    // One rank per store writes.
    CHECK(job.directory(0).entries(".json").size() == 1);
    job.restart();
    const auto second = job.tune();
    check_plan(second, 8);
    CHECK(second[0].agreed->plan_digest == first[0].agreed->plan_digest);
    for (const int r : {0, 1}) {
      CHECK(measured(job[r]) == 0);
      CHECK(job[r].compiler->compiles == 0);
      CHECK(second[static_cast<std::size_t>(r)].from_store);
    }
  }
}

TEST_CASE("times taken in step answer no tuning that asks for other launches", "[runtime][ranks]") {
  Job job(2);
  job.in_step();
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.2 * kMs;
    job[r].options.tuning.launching = Launching::graph;
  }
  check_plan(job.tune(), 8);
  job.restart();
  check_plan(job.tune(), 8);
  for (const int r : {0, 1}) CHECK(measured(job[r]) == 0);
  Process alone(job[0].options.store.directory);
  alone.of(8).seconds = 0.2 * kMs;
  const DynamicTuned kernel = alone.runtime().tuned(doubling());
  CHECK(kernel.known({64})->winner().config == Values{8, 0});  // launches are content
  CHECK(measured(alone) == 0);
  CHECK_FALSE(kernel.tune({64}).from_store);
  CHECK(measured(alone) > 0);
}

TEST_CASE(
    "a rank on which a budget has cut a candidate off does not try it again with no more time",
    "[runtime][ranks][cut]") {
  Job job(2);
  const auto tune = [&](double budget) {
    std::array<int, 2> launched{};
    for (const int r : {0, 1}) {
      job[r].of(8).seconds = 0.2 * kMs;
      job[r].device->on_launch = [&launched, budget, r](const std::string& entry, void**) {
        if (entry != "k<4, 0>") return;
        ++launched[static_cast<std::size_t>(r)];
        if (r == 1) throw runtime::TrialCut(budget, "the budget ended");
      };
      job[r].options.tuning.max_seconds = budget;
    }
    const auto results = job.run<TuneResult>([&](Process& process, int) {
      return process.runtime().tuned(doubling()).tune({64}, process.options.tuning);
    });
    check_plan(results, 8);
    return launched[1];
  };
  CHECK(tune(30) == 1);
  job.restart();
  CHECK(tune(31) == 0);
  job.restart();
  CHECK(tune(50) == 1);
}

TEST_CASE("only some remember: it is given to the others, or all measure", "[runtime][ranks]") {
  for (const OnPartialCache policy : {OnPartialCache::distribute, OnPartialCache::retune}) {
    Job job(3);
    RankOptions options = job.settings();
    options.on_partial_cache = policy;
    job.set(options);
    job[1].of(8).seconds = 0.2 * kMs;
    tune_alone(job[1].options.store.directory, 8);
    for (const int r : {0, 1, 2}) job[r].of(4).seconds = 0.3 * kMs;
    const bool given = policy == OnPartialCache::distribute;
    check_plan(job.tune(), given ? 8 : 4);
    for (const int r : {0, 2}) {
      CHECK((measured(job[r]) == 0) == given);
      CHECK(job.directory(r).entries(".json").size() == 1);
    }
  }
}

TEST_CASE("ranks that remember different winners come to one", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) tune_alone(job[r].options.store.directory, r == 0 ? 4 : 8);
  const auto results = job.tune();
  check_plan(results, static_cast<int>(results[0].winner().config[0]));
  CHECK(results[0].winner().config != Values{2, 0});
  job.restart();
  check_plan(job.tune(), static_cast<int>(results[0].winner().config[0]));
}

TEST_CASE("a winner beyond the list of candidates is used when all have it",
          "[runtime][ranks][slow]") {
  Job job(2);
  const KernelDefinition kernel = doubling(up_to(300));
  for (const int r : {0, 1}) {
    tune_alone(job[r].options.store.directory, 299, kernel, "exhaustive");
    CHECK(known_alone(job[r].options.store.directory, kernel) == Values{299, 0});
  }
  const auto results = job.run<Values>([&](Process& process, int) {
    process.options.tuning.max_evaluations = 3;
    return process.runtime().tuned(kernel).config({64});
  });
  CHECK(results == std::vector<Values>{{299, 0}, {299, 0}});
  for (const int r : {0, 1}) CHECK(measured(job[r]) == 0);
}

TEST_CASE("a launch is collective, and a record alone is no choice", "[runtime][ranks]") {
  Job job(2);
  tune_alone(job[0].options.store.directory, 8);
  for (const Mode mode : {Mode::lookup_only, Mode::untuned}) {
    for (const int r : {0, 1}) job[r].options.mode = mode;
    const auto configs = job.run<Values>([](Process& process, int) {
      const auto handle = process.runtime().tuned(doubling());
      if (handle.prepare({64})) return Values{-1};  // no binary either
      return handle.config({64});
    });
    CHECK(configs[0] == Values{2, 0});
    CHECK(configs[1] == (mode == Mode::untuned ? Values{2, 0} : Values{-1}));
    job.restart();
  }
  for (const int r : {0, 1}) job[r].options.mode = Mode::tune_now;
  const auto configs = job.run<Values>(
      [](Process& process, int) { return process.runtime().tuned(doubling()).config({64}); });
  CHECK(configs == std::vector<Values>{{8, 0}, {8, 0}});
  job.restart();
  for (const int r : {0, 1}) job[r].options.mode = Mode::lookup_only;
  const auto frozen = job.run<Values>(
      [](Process& process, int) { return process.runtime().tuned(doubling()).config({64}); });
  CHECK(frozen == std::vector<Values>{{8, 0}, {8, 0}});
}

TEST_CASE("a mode that measures nothing reports no time", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].options.mode = Mode::untuned;
  job.run<int>([](Process& process, int) {  // the untuned config is compiled
    process.runtime().tuned(doubling()).prepare({64});
    return 0;
  });
  job.restart();
  for (const int r : {0, 1}) job[r].options.mode = Mode::lookup_only;
  const auto results = job.run<TuneResult>(
      [](Process& process, int) { return process.runtime().tuned(doubling()).tune({64}); });
  for (const TuneResult& result : results) {
    CHECK(result.winner().config == Values{2, 0});
    CHECK(result.winner().status == CandidateStatus::not_tried);
    CHECK(result.winner().reason == "this mode does not measure");
    CHECK(result.winner().samples.empty());
    CHECK(result.winner().seconds == 0);
    CHECK_FALSE(result.complete);
    CHECK(result.end == SearchEnd::stopped);
    CHECK(kiln::to_json(result).find("_ms\"") == std::string::npos);
  }
}

TEST_CASE("what one rank did not come to is no record of a search that is over",
          "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  SECTION("a shorter list") {
    for (const int r : {0, 1}) job[r].options.tuning.max_evaluations = 2;
    const auto results = job.run<TuneResult>([](Process& process, int) {
      return process.runtime().tuned(doubling()).tune({64}, process.options.tuning);
    });
    for (const TuneResult& r : results) {
      CHECK(r.agreed->outcome == Outcome::plan);
      CHECK_FALSE(r.complete);
      CHECK(r.candidates.size() == 2);
    }
    job.restart();
    for (const int r : {0, 1}) job[r].options.tuning.max_evaluations = 0;
    check_plan(job.tune(), 8);
  }
  SECTION("a rank was stopped at once") {
    std::stop_source stop;
    stop.request_stop();
    job[1].options.tuning.stop = stop.get_token();
    const auto results = job.run<TuneResult>([](Process& process, int) {
      return process.runtime().tuned(doubling()).tune({64}, process.options.tuning);
    });
    check_defaults({results[1]}, "stopped on rank 1");
    check_defaults({results[0]}, "another rank was stopped");
    for (const TuneResult& r : results) CHECK_FALSE(r.complete);
    for (const int r : {0, 1}) CHECK(job.directory(r).entries(".json").empty());
    job[1].options.tuning.stop = {};
    check_plan(job.tune(128), 8);
  }
}

TEST_CASE("a better winner of a longer search is not overwritten", "[runtime][ranks][slow]") {
  Job job(2);
  const KernelDefinition kernel = doubling(up_to(300));
  tune_alone(job[0].options.store.directory, 299, kernel, "exhaustive");
  const auto configs = job.run<Values>([&](Process& process, int) {
    process.options.tuning.max_evaluations = 3;
    return process.runtime().tuned(kernel).config({64});
  });
  CHECK(configs[0] == configs[1]);
  CHECK(configs[0] != Values{299, 0});
  CHECK(known_alone(job[0].options.store.directory, kernel) == Values{299, 0});
}

TEST_CASE("one rank asks to measure again: all do", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  check_plan(job.tune(), 8);
  job.restart();
  job[1].options.tuning.retune = true;
  for (const int r : {0, 1}) job[r].of(4).seconds = 0.1 * kMs;
  check_plan(job.tune(), 4);
  for (const int r : {0, 1}) CHECK(measured(job[r]) > 0);
}

TEST_CASE("ranks that measure again try what all have on record, in the list or not",
          "[runtime][ranks]") {
  const KernelDefinition kernel = doubling(up_to(300));
  Job job(2);
  bool all = true;
  SECTION("all have it") {}
  SECTION("one rank has it") { all = false; }
  for (const int r : {0, 1}) {
    if (all || r == 0) tune_alone(job[r].options.store.directory, 299, kernel, "exhaustive");
    job[r].of(299).seconds = 0.2 * kMs;
    job[r].options.tuning.max_evaluations = 5;
    job[r].options.tuning.retune = true;
  }
  const auto tried = job.run<std::size_t>([&](Process& process, int) {
    const TuneResult result = process.runtime().tuned(kernel).tune({64}, process.options.tuning);
    return std::ranges::count(result.candidates, CandidateStatus::measured, &Candidate::status) +
           (result.winner().config == Values{299, 0} ? 100U : 0U);
  });
  for (const std::size_t count : tried) CHECK(count == (all ? 105 : 5));
}

TEST_CASE("where one rank asks to measure again, all try what crashed on them before",
          "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.2 * kMs;
    job[r].device->on_launch = [](const std::string& entry, void**) {
      if (entry == "k<4, 0>") throw runtime::TrialFault(CandidateStatus::crashed, "a fault");
    };
  }
  check_plan(job.tune(), 8);
  job.restart();
  job[1].options.tuning.retune = true;
  for (const int r : {0, 1}) job[r].of(4).seconds = 0.1 * kMs;
  check_plan(job.tune(), 4);
}

TEST_CASE("ranks without a disk remember while they live", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.2 * kMs;
    job[r].options.store.disk = false;
  }
  const auto stored = job.run<bool>([](Process& process, int) {
    const Runtime runtime = process.runtime();
    runtime.tuned(doubling()).tune({64});
    return runtime.tuned(doubling()).tune({64}).from_store;
  });
  CHECK(stored == std::vector<bool>{true, true});
}

TEST_CASE("what all hold is used, whatever else is asked at the same time", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.2 * kMs;
  check_plan(job.tune(64), 8);
  job.restart();
  for (const int r : {0, 1}) job[r].of(4).seconds = 0.1 * kMs;
  const auto all = job.run<std::vector<TuneResult>>([](Process& process, int) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(doubling());
    return runtime.tune(std::vector<TuneJob>{{handle, {64}}, {handle, {65}}}, {});
  });
  for (const auto& results : all) {
    CHECK(results[0].winner().config == Values{8, 0});
    CHECK(results[0].from_store);
    CHECK(results[1].winner().config == Values{4, 0});
  }
}

TEST_CASE("a rank that finds out what candidates cost keeps no rank waiting that need not",
          "[runtime][ranks]") {
  const KernelDefinition kernel = doubling(up_to(100));
  constexpr int kProblems = 2;  // fewer than ranks, so that candidates are shared out
  Job job(3);
  for (const int r : {0, 1, 2}) job[r].options.compile_threads = 1;  // so that shares are large
  {
    Process alone(job[0].options.store.directory);
    alone.options.tuning.max_evaluations = 100;
    const auto handle = alone.runtime().tuned(kernel);
    for (int p = 0; p < kProblems; ++p) handle.tune({64 + p});
  }
  RankOptions options = job.settings();
  options.strategy = RankStrategy::shard;
  options.first_seconds = patient(2);
  job.set(options);
  int launches = 0;
  job[1].device->on_launch = [&](const std::string&, void**) {
    ++launches;
    std::this_thread::sleep_for(std::chrono::duration<double>(patient(0.08)));
  };
  job[1].of(2).seconds = 2;  // so that it is not timed often
  const auto all = job.run<std::vector<TuneResult>>([&](Process& process, int) {
    process.options.tuning.max_evaluations = 100;
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(kernel);
    std::vector<TuneJob> jobs;
    for (int p = 0; p < kProblems; ++p) jobs.push_back({handle, {64 + p}});
    return runtime.tune(jobs, {});
  });
  for (const auto& results : all)
    for (const TuneResult& r : results) {
      CHECK(r.agreed->outcome == Outcome::plan);
      CHECK(r.agreed->why == "");
    }
  CHECK(launches > 0);
}
