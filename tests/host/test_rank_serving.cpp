// Ranks on the host target that serve: tuned behind their steps, and beside a rank whose compiler
// takes long. What becomes of ranks that are killed is tried with processes (tests/mpi).
#include <cstdio>
#include <cstdlib>

#include "findings.hpp"
#include "kiln_test.hpp"
#include "rank_steps.hpp"
#include "slow_compiler.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

RankEnds threads(int ranks) {
  RankEnds ends;
  for (auto& end : thread_communicators(ranks)) ends.push_back(std::move(end));
  return ends;
}

/// That the compiler sleeps.
double sleep_seconds() {
  const char* text = std::getenv("KILN_TEST_SLEEP");
  return text ? std::atof(text) : 3;
}

}  // namespace

TEST_CASE("ranks that serve with an all-reduce each step are tuned behind, and equal at each step",
          "[host][ranks]") {
  const int ranks = 2;
  StepPlan plan;  // candidates take long where ranks share the processors: few windows, but longer
  plan.problems = {3000, 5000};
  plan.between_windows = 50;
  plan.idle_seconds = 1;
  const RankEnds own = threads(ranks), of_kiln = threads(ranks);
  const std::vector<TemporaryDirectory> stores(ranks);
  std::vector<StepReport> reports(ranks);
  CHECK(on_ranks(ranks, [&](int rank) {
          RuntimeOptions options;
          options.device = "host";
          options.store.directory = stores[static_cast<std::size_t>(rank)].path() / "store";
          options.mode = Mode::background;
          options.tuning.ranks = of_kiln[static_cast<std::size_t>(rank)];
          options.compile_threads = 1;
          const Runtime runtime(options);
          reports[static_cast<std::size_t>(rank)] =
              serve_steps(runtime, *own[static_cast<std::size_t>(rank)], plan);
        }) == "");
  for (const StepReport& report : reports) {
    CHECK(report.sums_right);
    CHECK(report.digests_equal);
    CHECK(report.settled);
    CHECK(report.changes == plan.problems.size());
  }
  std::printf("M2, %d ranks on the host: %s\n", ranks, reports.front().describe().c_str());
}

TEST_CASE("no rank begins what communicates while another rank's compiler sleeps",
          "[host][ranks]") {
  const std::vector<std::string> devices(3, "host");
  const double seconds = sleep_seconds();
  std::string thrown;
  const auto run = [&](SlowCompiler how) {
    const auto reports = with_slow_compiler(devices, threads(3), seconds, how, thrown);
    CHECK(thrown == "");
    for (const SlowCompilerReport& report : reports) CHECK(report.begun_before == 0);
    return reports;
  };
  const auto impatient = run(SlowCompiler::impatient);
  for (const SlowCompilerReport& report : {impatient[0], impatient[1]}) {
    CHECK_THAT(report.said, Catch::Contains("rank 2 is late"));
    CHECK(report.begun == 0);
    CHECK_FALSE(report.plan);
  }
  CHECK_FALSE(impatient[2].plan);
  const auto patient = run(SlowCompiler::patient);
  for (const SlowCompilerReport& report : patient) {
    CHECK(report.said == "");
    CHECK(report.plan);
    CHECK(report.launched);
    CHECK(report.digest == patient[0].digest);
    CHECK(report.begun > 0);
  }
  const auto launched = run(SlowCompiler::launched);
  // The first kernel to give up names the one it waits for; that one may wait for the last rank.
  CHECK_THAT(launched[0].said, Catch::Contains("waiting for rank 2"));
  for (const SlowCompilerReport& report : launched) CHECK(report.launched);
  std::printf("M3, 3 ranks on the host, a compiler that sleeps %.1f s: after %.2f s '%s'\n",
              seconds, impatient[0].seconds, impatient[0].said.c_str());
}
