#include <set>

#include "kiln/function.hpp"
#include "region_fixture.hpp"
#include "typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

struct CopyKnobs {
  int blocks;
};
struct CopyProblem {
  int n;
};
KILN_CONFIG(CopyKnobs, blocks)
KILN_PROBLEM(CopyProblem, n)

namespace {

/// `first` and `second` one after the other on 64 elements.
struct Pair {
  explicit Pair(RegionProcess& process)
      : runtime(process.runtime()),
        first(runtime.tuned(counting("first"))),
        second(runtime.tuned(counting("second"))) {}

  void operator()(Region& region) {
    ++runs;
    region(first, {}, {64}, y.data(), 64);
    region(second, {}, {64}, y.data(), 64);
  }
  RegionResult tune(const RegionOptions& options = {}) {
    return tune_region(runtime, [this](Region& region) { (*this)(region); }, options);
  }
  std::string refused(const RegionOptions& options) {
    try {
      tune(options);
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  Runtime runtime;
  DynamicTuned first, second;
  std::vector<float> y = std::vector<float>(64);
  std::size_t runs = 0;
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a region's kernels are chosen together and used from then on", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("first", 8).seconds = 0.5e-3;
  process.kernel("second", 1).seconds = 0.25e-3;
  Pair pair(process);
  std::vector<std::size_t> progress;
  RegionOptions options;
  options.progress = [&](const RegionProgress& p) {
    progress.push_back(p.runs);
    CHECK(p.total == 8);
    CHECK(p.done <= p.total);
  };
  const RegionResult result = pair.tune(options);
  REQUIRE(result.sites.size() == 2);
  CHECK(result.tuned());
  CHECK(result.sites[0].tuned.kernel == "first");
  CHECK(result.sites[0].launches == 1);
  CHECK(chosen(result, 0) == 8);
  CHECK(chosen(result, 1) == 1);
  CHECK(result.sites[0].tuned.winner().seconds == Approx(0.5e-3));
  CHECK(result.sites[1].tuned.winner().seconds == Approx(0.25e-3));
  CHECK(result.sites[0].tuned.default_candidate().seconds == Approx(1e-3));
  CHECK(result.runs == pair.runs);
  CHECK(progress.size() == pair.runs - 1);
  CHECK(pair.y[0] == 2.0F * static_cast<float>(pair.runs));  // nothing ran outside of the region
  CHECK(result.default_seconds > 0);
  CHECK(result.seconds > 0);
  CHECK(pair.runtime.statistics().tuned == 2);

  process.launched.clear();
  Region production;
  CHECK_FALSE(production.tuning());
  pair(production);
  const std::vector<std::string> best{entry("first", 8), entry("second", 1)};
  CHECK(process.launched == best);
  pair.first({}, {64}, pair.y.data(), 64);  // the handle, without any region
  CHECK(process.launched.back() == entry("first", 8));

  SECTION("another process finds it in the store, and runs the region once") {
    RegionProcess next(directory.path());
    Pair again(next);
    const RegionResult known = again.tune();
    CHECK(known.runs == 1);
    CHECK(known.sites.at(0).tuned.from_store);
    CHECK(chosen(known, 0) == 8);
    CHECK(next.launched == best);
    CHECK(next.compiler->compiles == 0);
    SECTION("unless it is to be tuned anew") {
      next.kernel("first", 4).seconds = 0.1e-3;
      RegionOptions anew;
      anew.retune = true;
      CHECK(chosen(again.tune(anew), 0) == 4);
    }
  }
  SECTION("a program that does not tune finds it, too") {
    RegionProcess next(directory.path());
    Pair again(next);
    Region region;
    again(region);
    CHECK(next.launched == best);
    CHECK(again.runtime.statistics().tuned == 0);
  }
}

TEST_CASE("in production nothing is measured and the default stands in", "[runtime][region]") {
  Directory directory;
  RegionProcess process(directory.path());
  Pair pair(process);
  Region region;
  pair(region);
  pair(region);
  CHECK(process.launched == std::vector<std::string>{entry("first", 2), entry("second", 2),
                                                     entry("first", 2), entry("second", 2)});
  CHECK(pair.runtime.statistics().tuned == 0);
  CHECK(process.device->loads == 2);
}

TEST_CASE("each candidate has its runs, finished sites stay at their best", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  const Runtime runtime = process.runtime();
  const auto few = runtime.tuned(counting("few", {1, 2}));
  const auto many = runtime.tuned(counting("many", {1, 2, 3, 4, 5}));
  process.kernel("few", 1).seconds = 0.1e-3;
  float y[4] = {};
  RegionOptions options;
  options.warmup = 2;
  options.repeats = 3;
  options.finalists = 0;
  const RegionResult result = tune_region(
      runtime,
      [&](Region& region) {
        region(few, {}, {4}, y, 4);
        region(many, {}, {4}, y, 4);
      },
      options);
  // The first run, five candidates, the closing runs.
  CHECK(result.runs == 1 + 5 * 5 + 5);
  CHECK(chosen(result, 0) == 1);
  for (const Candidate& c : result.sites[1].tuned.candidates) CHECK(c.samples.size() == 3);
  std::map<std::string, int> count;
  for (const std::string& instance : process.launched) ++count[instance];
  CHECK(count[entry("few", 2)] == 1 + 5);
  CHECK(count[entry("few", 1)] == 5 + 3 * 5 + 5);
  CHECK(count[entry("many", 5)] == 5);
  CHECK(count[entry("many", 2)] == 1 + 5 + 5);
}

TEST_CASE("what counts is the time in place, not the time alone", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  // Alone, 8 is the best for `second`; after `first` with 1, the only good one, it is the worst.
  process.kernel("first", 1).seconds = 0.1e-3;
  process.kernel("second", 8).seconds = 0.5e-3;
  process.kernel("second", 4).seconds = 0.6e-3;
  std::string before;
  process.then = [&](const std::string& instance) {
    process.device->pace = before == entry("first", 1) && instance == entry("second", 8) ? 3 : 1;
    before = instance;
  };
  Pair pair(process);
  const RegionResult result = pair.tune();
  CHECK(chosen(result, 0) == 1);
  CHECK(chosen(result, 1) == 4);
  // Its time is that of the finals.
  CHECK(candidate(result, 1, 8).seconds == Approx(1.5e-3));
  SECTION("first impressions, taken while others were tried, would have misled") {
    RegionOptions options;
    options.finalists = 0;
    options.retune = true;
    CHECK(chosen(pair.tune(options), 1) == 8);
  }
}

TEST_CASE("problems of one kernel are sites of their own, launches of one are not",
          "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  const Runtime runtime = process.runtime();
  KernelDefinition kernel = counting("k");
  kernel.bucket = [](std::span<const std::int64_t> p) { return Values{(p[0] + 15) / 16 * 16}; };
  const auto handle = runtime.tuned(kernel), same = runtime.tuned(kernel);
  std::vector<float> y(100);
  // 8 is good for the large problem only.
  process.then = [&](const std::string& instance) { (void)instance; };
  int size = 0;
  process.device->on_launch = [&](const std::string& instance, void** args) {
    size = *static_cast<int*>(args[1]);
    process.device->pace = instance == entry("k", size > 50 ? 8 : 1) ? 0.1 : 1;
    if (size == 10) process.device->pace *= 3;
  };
  const RegionResult result = tune_region(runtime, [&](Region& region) {
    region(handle, {}, {5}, y.data(), 5);
    region(handle, {}, {100}, y.data(), 100);
    region(same, {}, {10}, y.data(), 10);  // the bucket of 5
    region(handle, {}, {0}, y.data(), 0);  // nothing to do
  });
  REQUIRE(result.sites.size() == 2);
  CHECK(result.sites[0].tuned.problem == Values{16});
  CHECK(result.sites[0].launches == 2);
  CHECK(result.sites[0].tuned.winner().seconds == Approx((0.1e-3 + 0.3e-3) / 2));
  CHECK(result.sites[1].tuned.problem == Values{112});
  CHECK(chosen(result, 0) == 1);
  CHECK(chosen(result, 1) == 8);
  CHECK(handle.config({5})[0] == 1);
  CHECK(same.config({16})[0] == 1);
  CHECK(handle.config({100})[0] == 8);
}

TEST_CASE("a typed handle in a region", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  Process process(directory.path());
  (*process.script)[typed_entry(4)].seconds = 0.2e-3;
  const Runtime runtime = process.runtime();
  const Typed kernel = typed_doubling();
  const auto handle = runtime.tuned(kernel);
  Buffers b(50);
  const auto step = [&](Region& region) { region(handle, Stream{}, b.y.data(), b.x.data(), 50); };
  const RegionResult result = tune_region(runtime, step);
  CHECK(chosen(result, 0) == 4);
  CHECK(b.doubled());
  b.y.assign(50, 0);
  Region region;
  step(region);
  CHECK(b.doubled());
  CHECK(handle.config({50}).a == 4);
}

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

TEST_CASE("a device that is lost ends it, naming who was tried", "[runtime][region]") {
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

TEST_CASE("wrong results disqualify who is guilty, and nobody else", "[runtime][region]") {
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
    CHECK(contains(result.agreed.why, "wrong results"));
  }
}

TEST_CASE("sites that come and go", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("second", 8).seconds = 0.1e-3;
  Pair pair(process);
  const auto third = pair.runtime.tuned(counting("third"));
  SECTION("every other run") {
    const RegionResult result = tune_region(pair.runtime, [&](Region& region) {
      region(pair.first, {}, {64}, pair.y.data(), 64);
      if (pair.runs++ % 2 == 0) region(pair.second, {}, {64}, pair.y.data(), 64);
    });
    CHECK(chosen(result, 1) == 8);
    CHECK(candidate(result, 1, 1).status == CandidateStatus::measured);
  }
  SECTION("never again") {
    const RegionResult result = tune_region(pair.runtime, [&](Region& region) {
      region(pair.first, {}, {64}, pair.y.data(), 64);
      if (pair.runs++ == 0) region(pair.second, {}, {64}, pair.y.data(), 64);
    });
    CHECK(candidate(result, 0, 8).status == CandidateStatus::measured);
    CHECK(candidate(result, 1, 8).status == CandidateStatus::not_tried);
    CHECK(contains(candidate(result, 1, 8).reason, "did not launch"));
    CHECK(chosen(result, 1) == 2);
  }
  SECTION("late") {
    const RegionResult result = tune_region(pair.runtime, [&](Region& region) {
      pair(region);
      if (pair.runs > 3) region(third, {}, {64}, pair.y.data(), 64);
    });
    CHECK(result.sites.size() == 2);
    CHECK(result.late == std::vector<std::string>{"third n=64"});
    const std::set<std::string> seen(process.launched.begin(), process.launched.end());
    CHECK(seen.count(entry("third", 2)) == 1);
    CHECK(seen.count(entry("third", 8)) == 0);
  }
  SECTION("none at all") {
    const RegionResult result = tune_region(pair.runtime, [](Region&) {});
    CHECK(result.sites.empty());
    CHECK(result.runs == 1);
    CHECK(result.tuned());
  }
}

TEST_CASE("nested regions", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("inner", 8).seconds = 0.1e-3;
  process.kernel("outer", 4).seconds = 0.1e-3;
  const Runtime runtime = process.runtime();
  const auto inner = runtime.tuned(counting("inner")), outer = runtime.tuned(counting("outer"));
  float y[8] = {};
  const auto inner_step = [&](Region& region) { region(inner, {}, {8}, y, 8); };
  SECTION("with the same Region the inner one's sites are the outer one's") {
    const RegionResult result = tune_region(runtime, [&](Region& region) {
      inner_step(region);
      region(outer, {}, {8}, y, 8);
    });
    REQUIRE(result.sites.size() == 2);
    CHECK(chosen(result, 0) == 8);
    CHECK(chosen(result, 1) == 4);
  }
  SECTION("a tune_region inside tunes once, before the outer one times anything") {
    std::vector<std::size_t> inner_runs;
    const RegionResult result = tune_region(runtime, [&](Region& region) {
      inner_runs.push_back(tune_region(runtime, inner_step).runs);
      region(outer, {}, {8}, y, 8);
    });
    REQUIRE(result.sites.size() == 1);
    CHECK(chosen(result, 0) == 4);
    CHECK(result.sites[0].tuned.winner().seconds == Approx(0.1e-3));
    CHECK(inner.config({8})[0] == 8);
    REQUIRE(inner_runs.size() == result.runs);
    CHECK(inner_runs[0] > 10);
    for (std::size_t i = 1; i < inner_runs.size(); ++i) CHECK(inner_runs[i] == 1);
  }
  SECTION("also one that the first run did not come to, and one that is always tuned anew") {
    RegionOptions anew;
    anew.retune = true;
    int runs = 0;
    const RegionResult result = tune_region(runtime, [&](Region& region) {
      if (++runs > 3) CHECK(tune_region(runtime, inner_step, anew).runs > 1);
      region(outer, {}, {8}, y, 8);
    });
    CHECK(chosen(result, 0) == 4);
    CHECK(result.sites[0].tuned.winner().seconds == Approx(0.1e-3));
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
  SECTION("warmup") {
    options.warmup = -1;
    CHECK(contains(pair.refused(options), "warmup"));
  }
  SECTION("seconds") {
    options.max_seconds = -1;
    CHECK(contains(pair.refused(options), "max_seconds"));
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

TEST_CASE("a log says what was run", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("first", 4).launch_error = "no such thing";
  Pair pair(process);
  RegionOptions options;
  options.name = "step";
  options.log_folder = directory.path() / "logs";
  pair.tune(options);
  const std::string text = read_text(options.log_folder / "step.rank-0.log");
  CHECK(contains(text, "first n=64 is launched 1 times in a run"));
  CHECK(contains(text, "second n=64 with a=1,b=0: 1 ms here"));
  CHECK(contains(text, "first n=64 with a=4,b=0: no such thing"));
}

TEST_CASE("functions with knobs are sites like kernels", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("first", 8).seconds = 0.1e-3;
  Pair pair(process);
  std::vector<int> calls;
  const Function<CopyKnobs, CopyProblem, void(std::vector<float>&, int)> copy{
      .name = "copy",
      .space = Space<CopyKnobs, CopyProblem>{CopyKnobs{2}}.values(&CopyKnobs::blocks, {1, 2, 3, 4}),
      .call =
          [&](const CopyKnobs& knobs, Stream, std::vector<float>& to, int n) {
            calls.push_back(knobs.blocks);
            if (knobs.blocks == 4) throw std::runtime_error("four is too many");
            to[std::size_t(n) - 1] = float(knobs.blocks);
            process.device->pass(knobs.blocks == 3 ? 0.2e-3 : 1e-3);
          },
      .problem = [](const std::vector<float>&, int n) { return CopyProblem{n}; }};
  const auto function = tuned(pair.runtime, copy);
  std::vector<float> to(16);
  const auto step = [&](Region& region) {
    pair(region);
    region(function, Stream{}, to, 16);
  };
  const RegionResult result = tune_region(pair.runtime, step);
  REQUIRE(result.sites.size() == 3);
  CHECK(result.sites[2].tuned.kernel == "copy");
  CHECK(chosen(result, 0) == 8);
  CHECK(chosen(result, 2) == 3);
  CHECK(result.sites[2].tuned.winner().seconds == Approx(0.2e-3));
  CHECK(candidate(result, 2, 4).status == CandidateStatus::launch_failed);
  CHECK(candidate(result, 2, 4).reason == "four is too many");
  CHECK(std::count(calls.begin(), calls.end(), 4) == 1);

  calls.clear();
  Region production;
  step(production);
  function(Stream{}, to, 16);
  CHECK(calls == std::vector<int>{3, 3});
  CHECK(function.knobs({16}).blocks == 3);

  // Another process: from the store, in production and when it asks again.
  RegionProcess next(directory.path());
  Pair again(next);
  const auto there = tuned(again.runtime, copy);
  calls.clear();
  Region region;
  region(there, Stream{}, to, 16);
  region(there, Stream{}, to, 16);
  const auto other_step = [&](Region& r) {
    again(r);
    r(there, Stream{}, to, 16);
  };
  CHECK(tune_region(again.runtime, other_step).runs == 1);
  CHECK(calls == std::vector<int>{3, 3, 3});
}

TEST_CASE("a function that is not known runs with its default in production", "[runtime][region]") {
  Directory directory;
  RegionProcess process(directory.path());
  const Runtime runtime = process.runtime();
  std::vector<int> calls;
  const Function<CopyKnobs, CopyProblem, void(int)> copy{
      .name = "copy",
      .space = Space<CopyKnobs, CopyProblem>{CopyKnobs{2}}.values(&CopyKnobs::blocks, {1, 2, 3}),
      .call = [&](const CopyKnobs& knobs, Stream, int) { calls.push_back(knobs.blocks); },
      .problem = [](int n) { return CopyProblem{n}; }};
  const auto function = tuned(runtime, copy);
  Region region;
  region(function, Stream{}, 16);
  CHECK(calls == std::vector<int>{2});
}
