// Why a problem of a manifest is not as it was asked for.
#include <span>

#include "kiln_test.hpp"
#include "prepare_fixture.hpp"

using namespace kiln;
using namespace kiln::test;
using enum PreparedState;

TEST_CASE("a problem whose functions throw what is no std::exception fails alone",
          "[runtime][prepare]") {
  Directory directory;
  Process process(directory.path());
  KernelDefinition kernel = doubling();
  const auto breaks = [](std::span<const std::int64_t> problem) {
    if (problem[0] == 60) throw 42;
  };
  SECTION("its bucket") {
    kernel.bucket = [=](auto problem) {
      breaks(problem);
      return ProblemValues(problem);
    };
  }
  SECTION("its launch") {
    kernel.launch = [=, launch = kernel.launch](auto config, auto problem, const auto& limits) {
      breaks(problem);
      return launch(config, problem, limits);
    };
  }
  SECTION("its data") {
    kernel.workload = [=, make = kernel.workload](auto problem, Workload& data) {
      breaks(problem);
      make(problem, data);
    };
  }
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  const PrepareReport report = runtime.prepare(problems({50, 60, 70}));
  REQUIRE(states(report) == States{tuned, failed, tuned});
  CHECK_THAT(report.problems[1].why, Catch::Contains("not derived from std::exception"));
  CHECK(launch(handle, 50));
  CHECK(launch(handle, 70));
}

TEST_CASE("what a report calls missing is what its reason is about", "[runtime][prepare]") {
  Directory directory;
  Process process(directory.path());
  process.of(1).compile_log = "error: a cannot be 1";
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  Manifest manifest = problems({50});
  REQUIRE(states(runtime.prepare(manifest, {.work = PrepareWork::compile})) == States{untuned});
  manifest.wanted[0] = wanted(50, 4);
  const PrepareReport missing = runtime.prepare(manifest, {.work = PrepareWork::look_up});
  CHECK_FALSE(missing.problems[0].why.empty());
  CHECK(missing.problems[0].missing);
  // One instance is missing, and the other one, which is named later, is known not to compile.
  manifest.wanted.push_back(wanted(50, 1));
  runtime.prepare({{wanted(50, 1)}}, {.work = PrepareWork::compile});
  const PrepareReport both = runtime.prepare(manifest, {.work = PrepareWork::look_up});
  CHECK_THAT(both.problems[0].why, Catch::Contains("a cannot be 1"));
  CHECK_FALSE(both.problems[0].missing);
}

TEST_CASE("where the default runs in place of the untuned config, its error is the reason",
          "[runtime][prepare]") {
  Directory directory;
  Process process(directory.path());
  KernelDefinition kernel = doubling();
  kernel.cost = [](const auto& config, const auto&, const auto&) {
    return config[0] == 1 ? 1.0 : 2.0;
  };
  kernel.untuned_by_cost = [](const auto&) { return true; };
  process.of(1).compile_log = "error: a cannot be 1";
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(kernel);
  for (int time = 0; time < 2; ++time) {
    CAPTURE(time);
    const PrepareReport report = runtime.prepare(problems({50}), {.work = PrepareWork::compile});
    CHECK(states(report) == States{on_default});
    CHECK_THAT(report.problems[0].why, Catch::Contains("a cannot be 1"));
    CHECK(handle.config({50}) == Values{2, 0});
  }
  // The binary of another one is not there.
  KernelDefinition other = kernel;
  other.cost = [](const auto& config, const auto&, const auto&) {
    return config[0] == 4 ? 1.0 : 2.0;
  };
  const Runtime later = process.runtime();
  const auto lacking = later.tuned(other);
  for (int time = 0; time < 2; ++time) {
    CAPTURE(time);
    const PrepareReport report = later.prepare(problems({50}), {.work = PrepareWork::look_up});
    CHECK(states(report) == States{on_default});
    REQUIRE(report.problems[0].missing);
    CHECK(report.problems[0].why == report.problems[0].missing->explain());
  }
  // The default is in use, and stays where nothing is tuned.
  const PrepareReport report = later.prepare(problems({50}), {.work = PrepareWork::compile});
  CHECK(states(report) == States{on_default});
  CHECK_THAT(report.problems[0].why, Catch::Contains("was put in use before"));
  CHECK_FALSE(report.problems[0].missing);
}

TEST_CASE("a search that cannot go on leaves what is on record in use", "[runtime][prepare]") {
  Directory directory;
  {
    Process process(directory.path());
    const Runtime runtime = process.runtime();
    const auto handle = runtime.tuned(doubling());
    for (const int n : {1000, 2000}) CHECK_FALSE(handle.tune({n}, {.max_evaluations = 2}).complete);
  }
  Process process(directory.path());
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  SECTION("without memory") {
    process.options.reserve_bytes = 9'900'000;
    process.device->capacity = 10'000'000;
    const Runtime tight = process.runtime();
    const auto own = tight.tuned(doubling());
    const PrepareReport report = tight.prepare(problems({1000}));
    CHECK(states(report) == States{known});
    CHECK_THAT(report.problems[0].why, Catch::Contains("are reserved"));
    CHECK_FALSE(report.problems[0].config.empty());
    CHECK_FALSE(report.complete());
    CHECK(launch(own, 1000));
  }
  SECTION("without time, also those that were not come to") {
    const PrepareReport report = runtime.prepare(problems({1000, 2000}), {.max_seconds = 1e-9});
    for (const PreparedProblem& p : report.problems) {
      CHECK(p.state == known);
      CHECK_FALSE(p.why.empty());
    }
    CHECK_FALSE(report.complete());
  }
}
