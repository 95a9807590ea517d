// Functions with knobs in a region.
#include <algorithm>
#include <atomic>
#include <functional>

#include "kiln/communicators.hpp"
#include "kiln/function.hpp"
#include "region_fixture.hpp"
#include "unit/runtime/waiting.hpp"

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

TEST_CASE("on a sealed runtime a region loads nothing and asks no store",
          "[runtime][region][seal]") {
  Directory directory;
  RegionProcess process(directory.path());
  Pair pair(process);
  std::vector<int> calls;
  const Function<CopyKnobs, CopyProblem, void(int)> copy{
      .name = "copy",
      .space = Space<CopyKnobs, CopyProblem>{CopyKnobs{2}}.values(&CopyKnobs::blocks, {1, 2, 3}),
      .call = [&](const CopyKnobs& knobs, Stream, int) { calls.push_back(knobs.blocks); },
      .problem = [](int n) { return CopyProblem{n}; }};
  const auto function = tuned(pair.runtime, copy);
  Region region;
  region(pair.first, {}, {64}, pair.y.data(), 64);
  pair.runtime.seal();
  const auto before = pair.runtime.statistics();
  const int loads = process.device->loads;
  process.launched.clear();
  region(pair.first, {}, {32}, pair.y.data(), 32);
  CHECK(process.launched.size() == 1);
  CHECK_THROWS_AS(region(pair.second, {}, {64}, pair.y.data(), 64), UnpreparedError);
  region(function, Stream{}, 16);
  CHECK(calls == std::vector<int>{2});
  const auto after = pair.runtime.statistics();
  CHECK(process.device->loads == loads);
  CHECK(after.store.misses == before.store.misses);
  CHECK(after.store.memory_hits == before.store.memory_hits);
  CHECK(after.unprepared_served == 2);
  CHECK(after.unprepared_refused == 1);
  pair.runtime.seal(OnUnprepared::error);
  CHECK_THROWS_AS(region(function, Stream{}, 16), UnpreparedError);
  CHECK(calls == std::vector<int>{2});
  CHECK(pair.runtime.statistics().unprepared_refused == 2);
}

namespace {

Function<CopyKnobs, CopyProblem, void(int)> copy_by(const std::function<void(int blocks)>& call) {
  return {
      .name = "copy",
      .space = Space<CopyKnobs, CopyProblem>{CopyKnobs{2}}.values(&CopyKnobs::blocks, {1, 2, 3, 4}),
      .call = [call](const CopyKnobs& knobs, Stream, int) { call(knobs.blocks); },
      .problem = [](int n) { return CopyProblem{n}; }};
}

}  // namespace

TEST_CASE("a launch in a region that takes too long is told of while it runs, and is hung",
          "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  std::atomic<int> told = 0;
  process.options.log = [&](LogLevel, std::string_view text) {
    told += text.find("copy n=16 with blocks=4: it has taken") != std::string_view::npos;
  };
  Pair pair(process);
  std::vector<int> calls;
  const auto function =
      tuned(pair.runtime, copy_by([&](int blocks) {
              calls.push_back(blocks);
              if (blocks == 4) CHECK(becomes([&] { return told > 0; }));
              process.device->pass(blocks == 3 ? 0.2e-3 : blocks == 4 ? 1e-6 : 1e-3);
            }));
  RegionOptions options;
  options.candidate_seconds = patient(1);
  std::string overdue;
  options.progress = [&](const RegionProgress& now) {
    if (!now.overdue.empty()) overdue = now.overdue;
  };
  const auto step = [&](Region& region) {
    pair(region);
    region(function, Stream{}, 16);
  };
  const RegionResult result = tune_region(pair.runtime, step, options);
  CHECK(overdue == "copy n=16 with blocks=4");
  CHECK(chosen(result, 2) == 3);
  CHECK(candidate(result, 2, 4).status == CandidateStatus::hung);
  CHECK(pair.runtime.metrics().overdue_calls_total == 1);
  // It did its work once: nothing was launched in its place.
  CHECK(std::count(calls.begin(), calls.end(), 4) == 1);
  CHECK(calls.size() == result.runs);
}

TEST_CASE("a region whose ranks come to nothing leaves a function its knobs",
          "[runtime][region][ranks]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  Pair pair(process);
  std::vector<int> calls;
  const auto function = tuned(pair.runtime, copy_by([&](int blocks) {
                                calls.push_back(blocks);
                                process.device->pass(blocks == 3 ? 0.2e-3 : 1e-3);
                              }));
  function(Stream{}, 16);
  REQUIRE(calls.back() == 3);
  RegionOptions options;
  options.ranks = std::move(thread_communicators(2).front());
  options.together.first_seconds = options.together.step_seconds = 0.2;
  const RegionResult result =
      tune_region(pair.runtime, [&](Region& region) { region(function, Stream{}, 16); }, options);
  CHECK_FALSE(result.tuned());
  function(Stream{}, 16);
  CHECK(calls.back() == 3);
}

TEST_CASE("what a function launches inside of itself is timed apart", "[runtime][region]") {
  Watchdog watchdog;
  Directory directory;
  RegionProcess process(directory.path());
  process.kernel("first", 8).seconds = 0.1e-3;
  const Runtime runtime = process.runtime();
  const auto inner = runtime.tuned(counting("first"));
  std::vector<float> y(64);
  Region* current = nullptr;
  const Function<CopyKnobs, CopyProblem, void(int)> outer{
      .name = "outer",
      .space = Space<CopyKnobs, CopyProblem>{CopyKnobs{2}}.values(&CopyKnobs::blocks, {1, 2, 3}),
      .call =
          [&](const CopyKnobs& knobs, Stream, int) {
            process.device->pass(knobs.blocks == 3 ? 2e-3 : 5e-3);
            (*current)(inner, {}, {64}, y.data(), 64);
          },
      .problem = [](int n) { return CopyProblem{n}; }};
  const auto function = tuned(runtime, outer);
  const RegionResult result = tune_region(runtime, [&](Region& region) {
    current = &region;
    region(function, Stream{}, 16);
  });
  REQUIRE(result.sites.size() == 2);
  CHECK(chosen(result, 0) == 3);
  CHECK(chosen(result, 1) == 8);
  CHECK(result.sites[0].tuned.winner().seconds > 2e-3);
  CHECK(result.sites[1].tuned.winner().seconds == Approx(0.1e-3));
}
