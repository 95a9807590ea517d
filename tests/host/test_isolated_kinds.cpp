// A worker must do what the program's own bench does: kernels that are judged in other ways than by
// a reference, with a candidate that ends the worker on the way.
#include <atomic>
#include <cstring>

#include "kiln_test.hpp"
#include "temporary_directory.hpp"
#include "trouble.hpp"

using namespace kiln;
using kiln::test::TemporaryDirectory;
using trouble::kProblem;

namespace {

/// The culprit comes between the default, which may define what is right, and the others.
KernelDefinition kernel() {
  return trouble::kernel({trouble::slow, trouble::null, trouble::fast, trouble::wrong});
}

TuneResult tune(const KernelDefinition& kernel, Isolation isolation = Isolation::always) {
  RuntimeOptions o;
  o.device = "host";
  o.store.disk = false;
  o.isolation = isolation;
  o.compile_processes = 0;
  const Runtime runtime(o);
  TuneOptions options;
  options.strategy = "exhaustive";
  options.candidate_seconds = 5;
  return runtime.tuned(kernel).tune({kProblem}, options);
}

/// The first such warning; others are about a machine that is busy.
std::string about_processes(const TuneResult& result) {
  for (const std::string& warning : result.warnings)
    if (warning.find("process") != std::string::npos || warning.find("worker") != std::string::npos)
      return warning;
  return {};
}

void check_statuses(const TuneResult& result) {
  CHECK(trouble::of(result, trouble::slow).status == CandidateStatus::measured);
  CHECK(trouble::of(result, trouble::fast).status == CandidateStatus::measured);
  CHECK(trouble::of(result, trouble::null).status == CandidateStatus::crashed);
  CHECK(trouble::of(result, trouble::wrong).status == CandidateStatus::wrong_result);
  CHECK(result.winner().config == Values{trouble::fast});
  CHECK(about_processes(result).empty());
}

bool doubled(const void* got, const void* from, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    if (static_cast<const float*>(got)[i] != 2 * static_cast<const float*>(from)[i]) return false;
  return true;
}

}  // namespace

TEST_CASE("a check runs in the program, on outputs that a worker sends", "[host][isolation]") {
  KernelDefinition k = kernel();
  int references = 0, checks = 0;
  const bool with_reference = GENERATE(false, true);
  if (with_reference)
    k.reference = [inner = k.reference, &references](auto problem, std::span<void* const> args) {
      ++references;
      inner(problem, args);
      // It may use inputs as scratch.
      static_cast<float*>(args[1])[0] = -77;
    };
  else
    k.reference = {};
  k.check = [&](auto problem, std::span<void* const> got,
                std::span<void* const> expected) -> std::string {
    ++checks;
    if (got[1] != expected[1] || *static_cast<const int*>(got[2]) != problem[0])
      return "inputs are others";
    if (with_reference && !doubled(expected[0], expected[1], problem[0]))
      return "what is expected is not right";
    return doubled(got[0], got[1], problem[0]) ? "" : "it does not double";
  };
  const TuneResult result = tune(k);
  check_statuses(result);
  CHECK(trouble::of(result, trouble::wrong).reason == "it does not double");
  CHECK(references == (with_reference ? 1 : 0));
  CHECK(checks >= 3);
  k.check = [](auto, auto, auto) -> std::string { throw std::runtime_error("no idea"); };
  CHECK_THROWS_AS(tune(k), TuningFailedError);
}

TEST_CASE("an argument that launches change is as it was for each candidate, in each worker",
          "[host][isolation]") {
  KernelDefinition k = trouble::in_place_kernel({trouble::slow, trouble::null, trouble::wrong,
                                                 trouble::later, trouble::exits, trouble::fast});
  const bool has_reference = GENERATE(true, false);
  if (!has_reference) k.reference = {};  // then the default defines what is right
  const TuneResult result = tune(k);
  for (const std::int64_t mode : {trouble::null, trouble::later, trouble::exits}) {
    CAPTURE(mode, trouble::of(result, mode).reason);
    CHECK(trouble::of(result, mode).status == CandidateStatus::crashed);
  }
  for (const std::int64_t mode : {trouble::slow, trouble::fast}) {
    CAPTURE(mode, trouble::of(result, mode).reason);
    CHECK(trouble::of(result, mode).status == CandidateStatus::measured);
  }
  CHECK(trouble::of(result, trouble::wrong).status == CandidateStatus::wrong_result);
  CHECK(result.winner().config == Values{trouble::fast});
  CHECK(about_processes(result).empty());
}

TEST_CASE("what the default defines is known to the next worker", "[host][isolation]") {
  KernelDefinition k = kernel();
  k.reference = {};
  check_statuses(tune(k));
}

TEST_CASE("a reference on the device runs in a worker", "[host][isolation]") {
  KernelDefinition k = kernel();
  std::vector<std::int64_t> problems;
  k.reference = [inner = k.reference, &problems](auto problem, std::span<void* const> args) {
    problems.push_back(problem[0]);
    inner(problem, args);
  };
  k.device_reference = DeviceReference{.config = "mode=0", .problem = {{"n", 100}}};
  check_statuses(tune(k));
  CHECK(problems == std::vector<std::int64_t>{100});
  // A device reference that ends its worker is not trusted; the host's reference stands in.
  problems.clear();
  k.device_reference->config = "mode=2";
  const TuneResult result = tune(k);
  CHECK(problems == std::vector<std::int64_t>{100, kProblem});
  CHECK(result.winner().config == Values{trouble::fast});
  CHECK(trouble::of(result, trouble::wrong).status == CandidateStatus::wrong_result);
  const std::string warning = about_processes(result);
  CAPTURE(warning);
  CHECK(warning.find("SIGSEGV") != std::string::npos);
}

TEST_CASE("a check is given what a reference on the device has defined", "[host][isolation]") {
  KernelDefinition k = kernel();
  std::vector<std::int64_t> problems;
  k.reference = [inner = k.reference, &problems](auto problem, std::span<void* const> args) {
    problems.push_back(problem[0]);
    inner(problem, args);
  };
  const bool usable = GENERATE(true, false);
  k.device_reference =
      DeviceReference{.config = usable ? "mode=0" : "mode=13", .problem = {{"n", 100}}};
  k.check = [](auto problem, std::span<void* const> got,
               std::span<void* const> expected) -> std::string {
    if (!doubled(expected[0], expected[1], problem[0])) return "what is expected is not right";
    return doubled(got[0], got[1], problem[0]) ? "" : "it does not double";
  };
  const TuneResult result = tune(k);
  for (const std::int64_t mode : {trouble::slow, trouble::fast}) {
    CAPTURE(trouble::of(result, mode).reason);
    CHECK(trouble::of(result, mode).status == CandidateStatus::measured);
  }
  CHECK(trouble::of(result, trouble::wrong).reason == "it does not double");
  CHECK(problems ==
        (usable ? std::vector<std::int64_t>{100} : std::vector<std::int64_t>{100, kProblem}));
}

TEST_CASE("all draws of a problem are judged in a worker", "[host][isolation]") {
  KernelDefinition k = kernel();
  k.draws = {1, 3};
  if (GENERATE(false, true)) k.reference = {};
  const TuneResult result = tune(k);
  check_statuses(result);
  CHECK(trouble::of(result, trouble::wrong).reason.find("draw 0 of 2: ") == 0);
}

TEST_CASE("variables are filled in a worker, for each config", "[host][isolation]") {
  KernelDefinition k = kernel();
  const std::string text = k.source.text;
  k.source.text = "__device__ float factor;\n" + text;
  const auto at = k.source.text.find("2 * sum");
  REQUIRE(at != std::string::npos);
  k.source.text.replace(at, 7, "factor * sum");
  k.workload = [](auto problem, Workload& w) {
    const auto n = std::size_t(problem[0]);
    w.output<float>(n).template input<float>(n).scalar(int(problem[0]));
    w.symbol("factor", [](std::span<const std::int64_t>) { return 2.0f; });
  };
  check_statuses(tune(k));
}

TEST_CASE("a worker measures what this process measures", "[host][isolation]") {
  const KernelDefinition k = trouble::kernel({trouble::slow, trouble::fast});
  const TuneResult here = tune(k, Isolation::off), there = tune(k, Isolation::always);
  CHECK(here.winner().config == there.winner().config);
  // A factor that a busy machine does not reach; figures that are compared are a benchmark's.
  for (const std::int64_t mode : {trouble::slow, trouble::fast}) {
    const double ratio = trouble::of(there, mode).seconds / trouble::of(here, mode).seconds;
    CHECK(ratio > 0.05);
    CHECK(ratio < 20);
  }
  CHECK(trouble::of(there, trouble::fast).max_error == trouble::of(here, trouble::fast).max_error);
}
