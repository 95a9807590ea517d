// A candidate that takes a rank's device with it: the next processes go on without it.
#include <algorithm>
#include <string>
#include <vector>

#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

const Candidate& of(const TuneResult& result, int a) {
  return *std::ranges::find(result.candidates, Values{a, 0}, &Candidate::config);
}

bool warns(const TuneResult& result, const std::string& what) {
  return std::ranges::any_of(result.warnings, [&](const std::string& text) {
    return text.find(what) != std::string::npos;
  });
}

}  // namespace

TEST_CASE("a candidate that took a rank's device is tried by no later process",
          "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.1 * kMs;
  job[1].of(4).launch_error = "device lost";
  RankOptions options = job.settings();
  options.lockstep = GENERATE(false, true);
  options.strategy = RankStrategy::replicate;
  job.set(options);
  check_defaults(job.tune(), "device lost");
  CHECK(job.directory(0).entries(".json").empty());
  REQUIRE(job.directory(1).entries(".json").size() == 1);
  CHECK_THAT(read_text(job.directory(1).entries(".json").front()), Catch::Contains("crashed"));

  job.restart();
  int launched = 0;  // by rank 1
  job[1].device->on_launch = [&](const std::string& entry, void**) {
    launched += entry.find("k<4, 0>") != std::string::npos;
  };
  const auto results = job.tune();
  check_plan(results, 8);
  CHECK(launched == 0);
  CHECK_FALSE(job[1].device->is_lost);
  CHECK(of(results[1], 4).status == CandidateStatus::crashed);
  CHECK_THAT(of(results[1], 4).reason, Catch::Contains("device lost"));
  for (const TuneResult& r : results) CHECK(r.complete);
}

TEST_CASE("after_fault asks for workers once a rank has lost its device", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.1 * kMs;
  job.in_step();
  const auto restart = [&](bool retune = false) {
    job.restart();
    for (const int r : {0, 1}) job[r].options.isolation = Isolation::after_fault;
    for (const int r : {0, 1}) job[r].options.tuning.retune = retune;
  };
  restart();
  SECTION("of a candidate, in a fresh store") { job[1].of(4).launch_error = "device lost"; }
  SECTION("of the winner on record, before anything else has a time") {
    for (const int r : {0, 1}) job[r].options.tuning.max_evaluations = 1;
    check_plan(job.tune(), 2);
    restart(true);
    for (const int r : {0, 1}) job[r].options.tuning.max_evaluations = 0;
    job[1].of(2).launch_error = "device lost";
  }
  for (const TuneResult& r : job.tune()) {
    CHECK(r.agreed->outcome == Outcome::defaults);
    CHECK_FALSE(warns(r, "not in workers"));
  }
  restart();
  // Its device has no workers: that it says so shows that it would have them.
  CHECK(warns(job.tune()[1], "not in workers"));
}

TEST_CASE("a lost device without a candidate that worked is remembered by the process",
          "[runtime][ranks]") {
  Job job(2);
  for (const int a : {1, 2, 4, 8}) job[1].of(a).launch_error = "device lost";
  job.in_step();
  for (const int r : {0, 1}) job[r].options.isolation = Isolation::after_fault;
  const auto warned = job.run<int>([](Process& process, int) {
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    handle.tune({64});
    const TuneResult again = handle.tune({64});
    return static_cast<int>(warns(again, "not in workers"));
  });
  CHECK(warned == std::vector<int>{0, 1});
  CHECK(job.directory(1).entries(".json").empty());
}
