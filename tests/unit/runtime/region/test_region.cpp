// What a region chooses, by which runs, and what it does in production.
#include <map>
#include <set>

#include "region_fixture.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

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
      next.delay = entry("first", 8);
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

TEST_CASE("a run may be several calls in a row", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("first", 8).seconds = 0.5e-3;
  Pair pair(process);
  RegionOptions options;
  options.calls = 3;
  std::size_t before = 0, after = 0;
  options.before = [&] { CHECK(pair.runs == 3 * before++); };
  options.check = [&] {
    CHECK(pair.runs == 3 * ++after);
    return std::string();
  };
  const RegionResult result = pair.tune(options);
  CHECK(pair.runs == 3 * result.runs);
  CHECK(before == result.runs);
  CHECK(after == result.runs);
  CHECK(result.sites[0].launches == 3);
  CHECK(chosen(result, 0) == 8);
  CHECK(result.sites[0].tuned.winner().seconds == Approx(0.5e-3));  // of one launch
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
    process.delay = entry("second", 4);  // so that it does not stay for being on record
    CHECK(chosen(pair.tune(options), 1) == 8);
  }
}

TEST_CASE("what is on record stays where whole runs are faster with it", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("first", 4).seconds = 0.2e-3;
  Pair pair(process);
  REQUIRE(chosen(pair.tune(), 0) == 4);
  // By its own time another one is faster now. A run takes longer with one of the two.
  process.kernel("first", 8).seconds = 0.1e-3;
  const int slow = GENERATE(4, 8);
  process.delay = entry("first", slow);
  RegionOptions options;
  options.retune = true;
  CHECK(chosen(pair.tune(options), 0) == (slow == 8 ? 4 : 8));
  CHECK(pair.first.config({64})[0] == (slow == 8 ? 4 : 8));
}

TEST_CASE("a region that is stopped before anything is measured replaces nothing",
          "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("second", 4).seconds = 0.5e-3;
  Pair pair(process);
  REQUIRE(chosen(pair.tune(), 1) == 4);
  std::stop_source stop;
  stop.request_stop();
  RegionOptions options;
  options.retune = true;
  options.stop = stop.get_token();
  pair.tune(options);
  CHECK(pair.second.config({64})[0] == 4);
}

TEST_CASE("what a region chose stays in use when its problem is prepared", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("second", 4).seconds = 0.5e-3;
  Pair pair(process);
  CHECK(chosen(pair.tune(), 1) == 4);
  // Meanwhile another process has found something else, and it is on record.
  RegionOptions anew;
  anew.retune = true;
  {
    RegionProcess other(directory.path());
    other.kernel("second", 8).seconds = 0.5e-3;
    other.delay = entry("second", 4);
    Pair others(other);
    CHECK(chosen(others.tune(anew), 1) == 8);
  }

  Manifest manifest;
  manifest.wanted.push_back({"second", {}, "generic", {{"n", 64}}, {}});
  const PrepareReport report = pair.runtime.prepare(manifest);
  CHECK(report.problems.at(0).state == PreparedState::known);
  CHECK(report.problems.at(0).config.at("a") == 4);
  CHECK(pair.second.config({64})[0] == 4);
  // A handle that no region has used takes what is on record.
  const auto fresh = pair.runtime.tuned(counting("second"));
  pair.runtime.prepare(manifest);
  CHECK(fresh.config({64})[0] == 8);
  CHECK(pair.second.config({64})[0] == 4);
  // Another choice replaces it.
  process.kernel("second", 1).seconds = 0.25e-3;
  process.delay = entry("second", 8);
  CHECK(chosen(pair.tune(anew), 1) == 1);
  CHECK(pair.second.config({64})[0] == 1);
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
