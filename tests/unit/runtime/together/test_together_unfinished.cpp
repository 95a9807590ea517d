// Ranks that are stopped, or whose time is over: what they come to, and what stays on record.
#include <chrono>
#include <thread>

#include "runtime/tune/candidate_list.hpp"
#include "unit/runtime/ranks_fixture.hpp"
#include "unit/runtime/waiting.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

TuneResult result_alone(const fs::path& directory, const KernelDefinition& kernel) {
  Process alone(directory);
  auto known = alone.runtime().tuned(kernel).known({64});
  if (!known) throw std::runtime_error("no record");
  return std::move(*known);
}

const Candidate& of(const TuneResult& result, const Values& config) {
  for (const Candidate& c : result.candidates)
    if (c.config == config) return c;
  throw std::runtime_error("no such candidate");
}

/// All ranks tune with the options of their processes.
std::vector<TuneResult> tune_as_asked(Job& job, const KernelDefinition& kernel) {
  return job.run<TuneResult>([&](Process& process, int) {
    return process.runtime().tuned(kernel).tune({64}, process.options.tuning);
  });
}

/// The rank is stopped by its first launch, so it measures the default alone.
void stop_at_first_launch(Process& process) {
  std::stop_source stop;
  process.options.tuning.stop = stop.get_token();
  process.device->on_launch = [stop](const std::string&, void**) mutable { stop.request_stop(); };
}

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace

TEST_CASE("what ranks did not come to stays as it is on record", "[runtime][ranks]") {
  const KernelDefinition kernel = doubling(up_to(20));
  Job job(2);
  const auto ten =
      runtime::candidate_list(kernel, Values{64}, job[0].device->info(), 10, 1).configs;
  const Values winner = ten[5];
  for (const int r : {0, 1}) {
    job[r].of(static_cast<int>(winner[0])).seconds = 0.1 * kMs;
    job[r].options.tuning.max_evaluations = 10;
  }
  check_plan(tune_as_asked(job, kernel), static_cast<int>(winner[0]));
  job.restart();
  for (const int r : {0, 1}) job[r].options.tuning.max_evaluations = 20;
  stop_at_first_launch(job[1]);

  SECTION("the winner was better than what was found this time") {
    check_plan(tune_as_asked(job, kernel), 2);
    for (const int r : {0, 1}) {
      const auto known = result_alone(job[r].options.store.directory, kernel);
      CHECK(known.winner().config == winner);
      CHECK(known.count(CandidateStatus::measured) == 10);
    }
  }
  SECTION("the default is better by now") {
    for (const int r : {0, 1}) job[r].of(2).seconds = 0.05 * kMs;
    check_plan(tune_as_asked(job, kernel), 2);
    for (const int r : {0, 1}) {
      const auto known = result_alone(job[r].options.store.directory, kernel);
      CHECK(known.winner().config == Values{2, 0});
      CHECK(known.winner().seconds == Approx(0.05 * kMs));
      for (const Values& config : ten) CHECK(of(known, config).status == CandidateStatus::measured);
      CHECK(of(known, winner).seconds == Approx(0.1 * kMs));
    }
  }
  SECTION("nor is it lost when they are asked to measure again") {
    job[0].options.tuning.retune = true;
    check_plan(tune_as_asked(job, kernel), 2);
    for (const int r : {0, 1}) {
      const auto known = result_alone(job[r].options.store.directory, kernel);
      CHECK(known.winner().config == Values{2, 0});
      CHECK(known.count(CandidateStatus::measured) == 10);
    }
  }
}

TEST_CASE("of many problems, one that ranks do not come to keeps what they use for it",
          "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.1 * kMs;
  Findings findings;
  const auto configs = job.run<Values>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(doubling());
    const std::vector<TuneJob> jobs{{handle, {64}}, {handle, {65}}};
    findings.check(runtime.tune(jobs, {})[1].winner().config == Values{8, 0});
    stop_at_first_launch(process);
    TuneOptions again = process.options.tuning;
    again.retune = true;
    const auto results = runtime.tune(jobs, again);
    findings.check(results[0].winner().status == CandidateStatus::measured);
    findings.check(results[1].winner().status == CandidateStatus::not_tried);
    findings.check(results[1].agreed->outcome == RankReport::Outcome::plan);
    return handle.config({65});
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>(2, {8, 0}));
}

TEST_CASE("a complete record is not replaced by an incomplete one", "[runtime][ranks]") {
  Job job(2);
  {
    Process alone(job[0].options.store.directory);
    alone.of(8).seconds = 0.2 * kMs;
    alone.runtime().tuned(doubling()).tune({64});
  }
  for (const int r : {0, 1}) {
    job[r].options.tuning.together.on_partial_cache = OnPartialCache::retune;
    job[r].of(2).seconds = 0.1 * kMs;
  }
  stop_at_first_launch(job[1]);
  const auto results = tune_as_asked(job, doubling());
  check_plan(results, 2);
  CHECK_FALSE(results[0].complete);
  const auto known = result_alone(job[0].options.store.directory, doubling());
  CHECK(known.complete);
  CHECK(known.winner().config == Values{8, 0});
  CHECK(known.count(CandidateStatus::measured) == 4);
  CHECK_FALSE(result_alone(job[1].options.store.directory, doubling()).complete);
}

TEST_CASE("a winner on record that fails by now is replaced", "[runtime][ranks]") {
  Job job(2);
  {
    Process alone(job[0].options.store.directory);
    alone.of(8).seconds = 0.1 * kMs;
    alone.runtime().tuned(doubling()).tune({64});
  }
  RankOptions options = job.settings();
  options.on_partial_cache = OnPartialCache::retune;
  job.set(options);
  for (const int r : {0, 1}) job[r].of(4).seconds = 0.5 * kMs;
  job[1].of(8).compile_log = "not here";
  check_plan(job.tune(), 4);
  CHECK(result_alone(job[0].options.store.directory, doubling()).winner().config == Values{4, 0});
  job.restart();
  check_plan(job.tune(), 4);
  for (const int r : {0, 1}) CHECK(measured(job[r]) == 0);
}

TEST_CASE("the default fails and nothing else was come to: the result says so, and nothing is used",
          "[runtime][ranks]") {
  Job job(2);
  std::vector<std::stop_source> stops(2);
  for (const int r : {0, 1}) {
    auto& stop = stops[static_cast<std::size_t>(r)];
    job[r].options.tuning.stop = stop.get_token();
    job[r].device->on_launch = [&stop](const std::string& entry, void**) {
      stop.request_stop();
      if (entry == "k<2, 0>") throw EnvironmentError("refused");
    };
  }
  Findings findings;
  const auto results = job.run<TuneResult>([&](Process& process, int) {
    const auto handle = process.runtime().tuned(doubling());
    TuneResult result = handle.tune({64}, process.options.tuning);
    findings.check_throws<TuningFailedError>([&] { handle.config({64}); }, "launch_failed");
    return result;
  });
  CHECK(findings.wrong() == "");
  check_defaults(results, "stopped on rank");
  for (const TuneResult& r : results) {
    CHECK(r.winner().status == CandidateStatus::launch_failed);
    CHECK(r.winner().reason == "refused");
    CHECK(r.count(CandidateStatus::not_tried) == 3);
  }
  for (const int r : {0, 1}) CHECK(job.directory(r).entries(".json").empty());
}

TEST_CASE("stopped before the best are timed again: the first round decides", "[runtime][ranks]") {
  Job job(2);
  RankOptions options = job.settings();
  options.strategy = RankStrategy::shard;
  options.finalists = 2;
  job.set(options);
  std::stop_source stop;
  job[1].options.tuning.stop = stop.get_token();
  // What candidates cost, then the first round.
  job.watch(1).after_reduce = [&](int nth) {
    if (nth == 1) stop.request_stop();
  };
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.3 * kMs;
    job[r].of(4).seconds = 0.5 * kMs;
  }
  const auto results = tune_as_asked(job, doubling());
  check_plan(results, 8);
  for (const TuneResult& r : results) {
    CHECK(r.count(CandidateStatus::measured) == 4);
    CHECK(r.winner().seconds == Approx(0.3 * kMs));
  }
  for (const int r : {0, 1}) {
    const auto known = result_alone(job[r].options.store.directory, doubling());
    CHECK(known.winner().config == Values{8, 0});
  }
}

TEST_CASE("in step: time is over while candidates are built", "[runtime][ranks]") {
  const KernelDefinition kernel = doubling(up_to(40));
  Job job(2);
  job.in_step();
  for (const int r : {0, 1}) {
    job[r].options.tuning.max_seconds = patient(2);
    job[r].of(2).seconds = 0.2 * kMs;
  }
  job[0].compiler->on_compile = [](const codegen::Source&) { sleep_for(patient(0.12)); };
  const auto results = tune_as_asked(job, kernel);
  check_plan(results, 2);
  const std::size_t timed = results[0].count(CandidateStatus::measured);
  CHECK(timed > 1);  // not all of the time went into building
  CHECK(timed < 30);
  for (const TuneResult& r : results) {
    CHECK(r.count(CandidateStatus::measured) == timed);
    CHECK(r.count(CandidateStatus::not_tried) == 40 - timed);
    CHECK_FALSE(r.complete);
    CHECK(r.end == SearchEnd::seconds);
    CHECK(r.wall_seconds < patient(15));
  }
  CHECK(job[0].device->launches == job[1].device->launches);
}

TEST_CASE("a limit of time does not count how long ranks wait for the last to come",
          "[runtime][ranks]") {
  const bool lockstep = GENERATE(false, true);
  Job job(2);
  RankOptions options = job.settings();
  options.lockstep = lockstep;
  if (!lockstep) options.strategy = RankStrategy::shard;
  job.set(options);
  for (const int r : {0, 1}) {
    job[r].options.tuning.max_seconds = patient(2);
    job[r].of(8).seconds = 0.2 * kMs;
  }
  const auto results = job.run<TuneResult>([](Process& process, int rank) {
    if (rank == 1) sleep_for(patient(2.2));
    return process.runtime().tuned(doubling()).tune({64}, process.options.tuning);
  });
  check_plan(results, 8);
  for (const TuneResult& r : results) CHECK(r.count(CandidateStatus::measured) == 4);
}

TEST_CASE("in step: a stop while candidates are built ends all ranks at once", "[runtime][ranks]") {
  Job job(2);
  job.in_step();
  std::stop_source stop;
  job[1].options.tuning.stop = stop.get_token();
  job[1].compiler->on_compile = [&](const codegen::Source&) {
    stop.request_stop();
    sleep_for(0.02);
  };
  const auto results = tune_as_asked(job, doubling(up_to(40)));
  check_defaults({results[0]}, "another rank was stopped");
  check_defaults({results[1]}, "stopped on rank 1");
  for (const int r : {0, 1}) {
    CHECK(job[r].device->launches == 0);
    CHECK_FALSE(results[static_cast<std::size_t>(r)].agreed->broken);
  }
  CHECK(job[1].compiler->compiles < 10);
}

TEST_CASE("in step: a stop on one rank ends all with what was timed", "[runtime][ranks]") {
  Job job(2);
  job.in_step();
  std::stop_source stop;
  job[1].options.tuning.stop = stop.get_token();
  const Values last =
      runtime::candidate_list(doubling(), Values{64}, job[0].device->info(), 0, 1).configs[1];
  const int a = static_cast<int>(last[0]);
  for (const int r : {0, 1}) job[r].of(a).seconds = 0.5 * kMs;
  job[1].device->on_launch = [&](const std::string& entry, void**) {
    if (entry == "k<" + std::to_string(a) + ", 0>") stop.request_stop();
  };
  const auto results = tune_as_asked(job, doubling());
  check_plan(results, a);
  for (const TuneResult& r : results) {
    CHECK(r.count(CandidateStatus::measured) == 2);
    CHECK(r.count(CandidateStatus::not_tried) == 2);
    CHECK_FALSE(r.complete);
  }
  CHECK(job[0].device->launches == job[1].device->launches);
  for (const int r : {0, 1})
    CHECK(result_alone(job[r].options.store.directory, doubling()).winner().config == last);
}
