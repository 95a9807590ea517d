// Ranks that tune a region together: what they agree on.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <numeric>
#include <string>
#include <utility>

#include "region_ranks.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

using Job = RegionJob;

}  // namespace

TEST_CASE("ranks choose what is best on the slowest, in the same runs",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(3);
  for (std::size_t r = 0; r < 3; ++r) {
    job[r].kernel("first", 4).seconds = r == 1 ? 2e-3 : 0.1e-3;
    job[r].kernel("first", 8).seconds = 0.5e-3;
    job[r].kernel("second", 1).seconds = 0.5e-3;
  }
  job.run();
  job.check_plan(8, 1);
  for (std::size_t r = 0; r < 3; ++r) {
    // What ran is the same everywhere, launch by launch.
    CHECK(job[r].launched == job[0].launched);
    CHECK(candidate(job.results[r], 0, 4).seconds == Approx(2e-3));
  }
  SECTION("and again from their stores, in one run") {
    job.connect();
    job.run();
    job.check_plan(8, 1);
    CHECK(job.runs[0] == 1);
    CHECK(job.results[2].sites[0].tuned.from_store);
  }
  SECTION("one that has lost its store gets the others' choice") {
    job.directories[1] = std::make_unique<Directory>();
    const auto script = job[1].script;
    job.processes[1] = std::make_unique<RegionProcess>(job.directories[1]->path());
    for (std::size_t r = 0; r < 3; ++r) job[r].launched.clear();
    job.connect();
    job.run();
    job.check_plan(8, 1);
    CHECK(job.runs[0] == 1);
    // The first run was made before anything was agreed on.
    const std::vector<std::string> defaults{entry("first", 2), entry("second", 2)};
    for (std::size_t r = 0; r < 3; ++r) CHECK(job[r].launched == defaults);
  }
}

TEST_CASE("a candidate that one rank's record calls dangerous is tried by none",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  for (std::size_t r = 0; r < 2; ++r) {
    job[r].kernel("second", 1).seconds = 0.5e-3;
    job.options[r].max_runs = 6;  // so that more is to be tried the next time
    job.options[r].candidate_seconds = 0.5;
  }
  job[0].then = [](const std::string& instance) {
    if (instance == entry("first", 8)) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  job.run();
  REQUIRE(candidate(job.results[0], 0, 8).status == CandidateStatus::hung);
  REQUIRE(candidate(job.results[1], 0, 8).status != CandidateStatus::hung);
  for (std::size_t r = 0; r < 2; ++r) {
    job.options[r].max_runs = 0;
    job[r].delay = entry("second", 2);  // which is on record
    job[r].launched.clear();
  }
  job.connect();
  job.run();
  job.check_plan(2, 1);
  CHECK(job.runs[0] > 6);
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(std::ranges::count(job[r].launched, entry("first", 8)) == 0);
    CHECK(job[r].launched == job[0].launched);
  }
  CHECK(candidate(job.results[0], 0, 8).status == CandidateStatus::hung);
}

TEST_CASE("by the mean, if so asked", "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  for (std::size_t r = 0; r < 2; ++r) {
    job.options[r].together.reduction = RankReduction::mean;
    job[r].kernel("first", 4).seconds = r == 1 ? 0.9e-3 : 0.1e-3;
    job[r].kernel("first", 8).seconds = 0.6e-3;
  }
  job.run();
  job.check_plan(4, 2);
}

TEST_CASE("a region may wait for its other ranks inside", "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(3);
  std::barrier<> meet(3);
  // All that makes ranks different: builds, failures, times, limits.
  job[0].kernel("first", 1).compile_log = "not here";
  job[0].kernel("first", 1).seconds = 1e-9;
  job[1].kernel("first", 1).seconds = 1e-9;
  job[1].kernel("second", 4).launch_error = "not here either";
  job[1].kernel("second", 4).fails_after = 2;
  job[2].kernel("second", 4).seconds = job[0].kernel("second", 4).seconds = 1e-9;
  job[2].kernel("second", 8).load_error = "no room on this one";
  for (std::size_t r = 0; r < 3; ++r) job[r].kernel("second", 1).seconds = 0.5e-3;
  const auto step = [&](std::size_t, Region& region, DynamicTuned& first, DynamicTuned& second,
                        float* y) {
    region(first, {}, {64}, y, 64);
    meet.arrive_and_wait();
    region(second, {}, {64}, y, 64);
    meet.arrive_and_wait();
  };
  SECTION("to the end") {
    job.run(step);
    job.check_plan(2, 1);
    CHECK(contains(candidate(job.results[0], 0, 1).reason, "not here"));
    CHECK(contains(candidate(job.results[2], 0, 1).reason, "another rank"));
    CHECK(contains(candidate(job.results[1], 1, 4).reason, "not here either"));
    CHECK(contains(candidate(job.results[0], 1, 4).reason, "another rank"));
    CHECK(contains(candidate(job.results[0], 1, 8).reason, "another rank"));
    // A candidate that one rank cannot build is run by none.
    for (std::size_t r = 0; r < 3; ++r)
      CHECK(std::count(job[r].launched.begin(), job[r].launched.end(), entry("first", 1)) == 0);
  }
  SECTION("stopped by one rank") {
    std::stop_source stop;
    job.options[2].stop = stop.get_token();
    job.options[2].progress = [&](const RegionProgress& p) {
      if (p.runs == 6) stop.request_stop();
    };
    job.run(step);
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(job.runs[r] == 6);
      CHECK(job.results[r].end == SearchEnd::stopped);
      CHECK(job.results[r].tuned());
      CHECK(job.results[r].agreed.plan_digest == job.results[0].agreed.plan_digest);
    }
  }
  SECTION("with fewer runs allowed on one rank") {
    job.options[1].max_runs = 9;
    job.run(step);
    CHECK(job.runs == std::vector<int>{9, 9, 9});
  }
  SECTION("with less time on one rank") {
    job.options[0].max_seconds = 0.03;
    job[0].then = [](const std::string&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    job.run(step);
    CHECK(job.runs[1] == job.runs[0]);
    CHECK(job.runs[2] == job.runs[0]);
    CHECK(job.runs[0] < 20);
  }
  SECTION("with a verdict of one rank") {
    bool guilty = false;
    job.options[1].before = [&] { guilty = false; };
    job[1].then = [&](const std::string& instance) { guilty |= instance == entry("second", 1); };
    job.options[1].check = [&]() -> std::string { return guilty ? "off by one" : ""; };
    job.run(step);
    job.check_plan(2, 2);
    CHECK(candidate(job.results[1], 1, 1).reason == "off by one");
    CHECK(contains(candidate(job.results[0], 1, 1).reason, "another rank"));
    CHECK(candidate(job.results[0], 1, 1).status == CandidateStatus::wrong_result);
  }
}

TEST_CASE("with a communicator of one rank a region is each rank's own",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  job[0].kernel("first", 8).seconds = 0.1e-3;
  job[1].kernel("first", 1).seconds = 0.1e-3;
  for (std::size_t r = 0; r < 2; ++r) {
    job[r].options.tuning.ranks = std::move(job.options[r].ranks);
    job.options[r].ranks = std::move(thread_communicators(1).front());
  }
  job.run();
  for (std::size_t r = 0; r < 2; ++r) {
    CHECK(job.thrown[r] == "");
    CHECK(job.results[r].agreed.outcome == Outcome::plan);
    CHECK(job.results[r].agreed.size == 1);
  }
  CHECK(chosen(job.results[0], 0) == 8);
  CHECK(chosen(job.results[1], 0) == 1);
}

TEST_CASE("a rank that runs a region alone goes on with what all have agreed on",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  std::barrier agreed(2);
  std::vector<std::vector<Values>> in_use(2);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < 2; ++r) {
    job[r].options.tuning.ranks = job.options[r].ranks;
    job[r].kernel("first", 8).seconds = 0.1e-3;
    threads.emplace_back([&, r] {
      Pair pair(job[r]);
      pair.tune(job.options[r]);
      agreed.arrive_and_wait();
      RegionOptions alone = job.options[r];
      alone.together.first_seconds = alone.together.step_seconds = 0.2;
      if (r == 0) job.results.push_back(pair.tune(alone));
      in_use[r] = {pair.first.config({64}), pair.second.config({64})};
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_FALSE(job.results.at(0).tuned());
  CHECK(in_use[0] == std::vector<Values>{{8, 0}, {2, 0}});
  CHECK(in_use[1] == in_use[0]);
}

TEST_CASE("the runtime's ranks are the region's", "[runtime][region][ranks]") {
  Watchdog watchdog;
  Job job(2);
  for (std::size_t r = 0; r < 2; ++r) {
    job[r].options.tuning.ranks = std::move(job.options[r].ranks);
    job[r].options.tuning.together = job.options[r].together;
    job[r].kernel("second", 4).seconds = r == 0 ? 0.1e-3 : 5e-3;
  }
  job.run();
  job.check_plan(2, 2);
}
