// Regions whose candidates fail or are wrong, that throw, that are stopped, or that make no sense.
#include "region_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("candidates that fail are replaced for that launch, and told why", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("first", 1).compile_log = "line 7: no";
  process.kernel("first", 4).launch_error = "illegal instruction";
  process.kernel("first", 8).launch_error = "late trouble";
  process.kernel("first", 8).fails_after = 2;  // in its second timed run
  process.kernel("first", 8).seconds = 1e-9;
  process.kernel("second", 4).load_error = "no room";
  process.kernel("second", 4).seconds = 1e-9;
  process.kernel("second", 8).seconds = 0.1e-3;
  Pair pair(process);
  const RegionResult result = pair.tune();
  CHECK(chosen(result, 0) == 2);
  CHECK(chosen(result, 1) == 8);
  CHECK(candidate(result, 0, 1).status == CandidateStatus::compile_failed);
  CHECK(contains(candidate(result, 0, 1).reason, "line 7: no"));
  CHECK(candidate(result, 0, 4).status == CandidateStatus::launch_failed);
  CHECK(contains(candidate(result, 0, 4).reason, "illegal instruction"));
  CHECK(candidate(result, 0, 8).status == CandidateStatus::launch_failed);
  CHECK(contains(candidate(result, 0, 8).reason, "late trouble"));
  CHECK(contains(candidate(result, 1, 4).reason, "no room"));
  // Every run did its work, with the default in the place of what failed.
  CHECK(pair.y[0] == 2.0F * static_cast<float>(pair.runs));
}

TEST_CASE("what the region throws is passed on, and nothing is saved", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  Pair pair(process);
  for (const std::size_t at : {1, 2, 9}) {
    pair.runs = 0;
    CHECK_THROWS_AS(tune_region(pair.runtime,
                                [&](Region& region) {
                                  pair(region);
                                  if (pair.runs == at) throw std::domain_error("mine");
                                }),
                    std::domain_error);
    CHECK(pair.runs == at);
  }
  CHECK_FALSE(pair.first.known({64}));
  RegionOptions options;
  options.before = [] { throw std::domain_error("before"); };
  CHECK_THROWS_AS(pair.tune(options), std::domain_error);
  options = {};
  options.progress = [](const RegionProgress&) { throw std::domain_error("progress"); };
  CHECK_THROWS_AS(pair.tune(options), std::domain_error);

  process.kernel("second", 2).launch_error = "the default is broken";
  CHECK_THROWS_AS(pair.tune(), EnvironmentError);
}

TEST_CASE("a device that is lost ends it, naming what was tried", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("second", 1).launch_error = "device lost";
  Pair pair(process);
  try {
    pair.tune();
    FAIL("nothing was thrown");
  } catch (const runtime::DeviceLost& error) {
    CHECK(contains(error.what(), "second n=64 with a=1"));
  }
}

TEST_CASE("limits end it with the best so far", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("first", 1).seconds = 0.1e-3;
  process.kernel("first", 8).seconds = 0.01e-3;
  Pair pair(process);
  RegionOptions options;
  std::stop_source stop;
  SECTION("runs") {
    options.max_runs = 10;
    const RegionResult result = pair.tune(options);
    CHECK(result.runs == 10);
    CHECK(result.end == SearchEnd::evaluations);
    CHECK(result.seconds == 0);
    std::size_t untried = 0;
    for (const Candidate& c : result.sites[0].tuned.candidates)
      untried += c.status == CandidateStatus::not_tried;
    CHECK(untried > 0);
    CHECK(result.sites[0].tuned.winner().status == CandidateStatus::measured);
  }
  SECTION("a stop request") {
    options.stop = stop.get_token();
    options.progress = [&](const RegionProgress& p) {
      if (p.runs == 7) stop.request_stop();
    };
    const RegionResult result = pair.tune(options);
    CHECK(result.runs == 7);
    CHECK(result.end == SearchEnd::stopped);
  }
  SECTION("a stop request before anything") {
    stop.request_stop();
    options.stop = stop.get_token();
    const RegionResult result = pair.tune(options);
    CHECK(result.runs == 1);
    CHECK(chosen(result, 0) == 2);
  }
  SECTION("seconds") {
    options.max_seconds = 0.05;
    process.then = [](const std::string&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    const RegionResult result = pair.tune(options);
    CHECK(result.end == SearchEnd::seconds);
    CHECK(result.runs < 1 + 4 * 4 + 12);
  }
  SECTION("candidates") {
    options.max_evaluations = 2;
    const RegionResult result = pair.tune(options);
    CHECK(result.sites[0].tuned.candidates.size() == 2);
  }
}

TEST_CASE("wrong results disqualify the guilty candidate, and no other", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  Pair pair(process);
  RegionOptions options;
  options.before = [&] { pair.y.assign(64, 0.0F); };
  options.check = [&]() -> std::string {
    return pair.y[0] == 2 ? "" : "y[0] is " + std::to_string(pair.y[0]);
  };
  const auto wrong = [](void** args) { (*static_cast<float**>(args[0]))[0] = 7; };
  process.kernel("first", 1).seconds = 0.5e-3;
  process.kernel("second", 8).seconds = 0.5e-3;
  SECTION("one of two that were tried") {
    process.kernel("second", 1).run = wrong;
    process.kernel("second", 1).seconds = 1e-9;
    const RegionResult result = pair.tune(options);
    CHECK(chosen(result, 0) == 1);
    CHECK(chosen(result, 1) == 8);
    CHECK(candidate(result, 1, 1).status == CandidateStatus::wrong_result);
    CHECK(contains(candidate(result, 1, 1).reason, "y[0] is 7"));
    CHECK(candidate(result, 0, 1).status == CandidateStatus::measured);
  }
  SECTION("two that are wrong together only") {
    bool with = false;
    process.kernel("first", 1).run = [&](void** args) {
      count_up(args);
      with = true;
    };
    process.kernel("second", 1).run = [&](void** args) {
      if (with) return;
      count_up(args);
    };
    options.before = [&] {
      pair.y.assign(64, 0.0F);
      with = false;
    };
    const RegionResult result = pair.tune(options);
    CHECK(candidate(result, 0, 1).status == CandidateStatus::wrong_result);
    CHECK(candidate(result, 1, 1).status == CandidateStatus::wrong_result);
    CHECK(contains(candidate(result, 0, 1).reason, "together"));
    CHECK(chosen(result, 1) == 8);
  }
  SECTION("an exception is a verdict, too") {
    options.check = [&]() -> std::string {
      if (pair.y[0] != 2) throw std::runtime_error("thrown");
      return {};
    };
    process.kernel("first", 1).run = wrong;
    const RegionResult result = pair.tune(options);
    CHECK(candidate(result, 0, 1).status == CandidateStatus::wrong_result);
    CHECK(candidate(result, 0, 1).reason == "thrown");
  }
  SECTION("a region that is wrong to begin with is not tuned") {
    options.before = nullptr;
    pair.y.assign(64, 5.0F);
    CHECK(contains(pair.refused(options), "y[0] is 7"));
    CHECK(pair.runs == 1);
  }
  SECTION("a verdict that turns against what was right ends in the defaults") {
    options.check = [&]() -> std::string { return pair.runs > 20 ? "tired" : ""; };
    const RegionResult result = pair.tune(options);
    CHECK_FALSE(result.tuned());
    CHECK(chosen(result, 0) == 2);
    CHECK(contains(result.agreed.why, "results are wrong"));
  }
}

TEST_CASE("what makes no sense is refused", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  Pair pair(process);
  RegionOptions options;
  SECTION("repeats") {
    options.repeats = 0;
    CHECK(contains(pair.refused(options), "repeats"));
  }
  SECTION("calls") {
    options.calls = 0;
    CHECK(contains(pair.refused(options), "calls"));
  }
  SECTION("warmup") {
    options.warmup = -1;
    CHECK(contains(pair.refused(options), "warmup"));
  }
  SECTION("seconds") {
    options.max_seconds = -1;
    CHECK(contains(pair.refused(options), "max_seconds"));
    options.max_seconds = 0;
    options.candidate_seconds = -1;
    CHECK(contains(pair.refused(options), "candidate_seconds"));
  }
  SECTION("strategies that run on some ranks only") {
    options.together.strategy = RankStrategy::shard;
    CHECK(contains(pair.refused(options), "shard"));
  }
  CHECK(pair.runs == 0);
  CHECK_THROWS_AS(tune_region(pair.runtime, nullptr), UserError);
  const auto foreign = process.runtime().tuned(counting("first"));
  CHECK_THROWS_AS(tune_region(pair.runtime,
                              [&](Region& region) { region(foreign, {}, {4}, pair.y.data(), 4); }),
                  UserError);
  Region region;
  CHECK_THROWS_AS(region(pair.first, {}, {4}, pair.y.data(), 4.0F), UserError);
  CHECK_THROWS_AS(region(pair.first, {}, {4, 5}, pair.y.data(), 4), UserError);
}
