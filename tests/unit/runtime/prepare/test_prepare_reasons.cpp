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
