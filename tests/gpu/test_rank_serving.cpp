// Ranks on two GPUs that serve, a thread and a GPU for each: tuned behind their steps over NCCL,
// beside a rank whose compiler takes long, with candidates that hang; and how much faster two
// prepare than one. rank_serving_nccl.py starts this, and processes of which some are killed.
#include <cstdio>
#include <cstdlib>

#include "gpu/peer_configs.hpp"
#include "kiln_test.hpp"
#include "rank_steps.hpp"
#include "silent_candidates.hpp"
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

/// NCCL's ends of ranks that are threads. What they throw is in `thrown`.
RankEnds over_nccl(int ranks, std::string& thrown) {
  const RankEnds meet = threads(ranks);
  RankEnds ends(static_cast<std::size_t>(ranks));
  thrown = on_ranks(ranks, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    ends[r] = nccl_communicator(*meet[r], deadline_in(60), rank);
    float one = 1;  // it connects at its first call
    must(ends[r]->reduce(std::span(&one, 1), Reduction::sum, deadline_in(60)));
  });
  return ends;
}

double sleep_seconds() {
  const char* text = std::getenv("KILN_TEST_SLEEP");
  return text ? std::atof(text) : 3;
}

RuntimeOptions on_gpu(int rank, const std::filesystem::path& store = {}) {
  RuntimeOptions options;
  options.device = gpus().at(static_cast<std::size_t>(rank));
  if (store.empty())
    options.store.disk = false;
  else
    options.store.directory = store;
  return options;
}

/// Problems that take little to compile, since what is to be divided is the measuring.
Manifest norms_of(const Runtime& runtime, int problems) {
  Manifest manifest;
  for (int i = 1; i <= problems; ++i)
    manifest.wanted.push_back({"rmsnorm",
                               {"float"},
                               runtime.device().target.arch,
                               {{"rows", 4096}, {"hidden", 1024 * i}},
                               {}});
  return manifest;
}

}  // namespace

TEST_CASE("ranks on GPUs that serve with an all-reduce each step are equal at each step",
          "[gpu][ranks][clock]") {
  const int ranks = static_cast<int>(gpus().size());
  if (ranks < 2) KILN_SKIP("needs two GPUs");
  if (!nccl_version()) KILN_SKIP("needs NCCL");
  std::string thrown;
  RankEnds own = over_nccl(ranks, thrown);
  REQUIRE(thrown == "");
  RankEnds of_kiln = over_nccl(ranks, thrown);
  REQUIRE(thrown == "");
  StepPlan plan;
  plan.problems = {1 << 18, 3 << 17, 1 << 19};
  plan.step_seconds = 8e-3;
  plan.between_windows = 10;
  plan.idle_seconds = 0.1;
  plan.at_most = 1000;
  std::vector<StepReport> reports(static_cast<std::size_t>(ranks));
  CHECK(on_ranks(ranks, [&](int rank) {
          const auto r = static_cast<std::size_t>(rank);
          // The two ranks' ends wait for each other when they are let go.
          const auto steps = std::move(own[r]);
          RuntimeOptions options = on_gpu(rank);
          options.mode = Mode::background;
          options.background_compiles = true;
          options.tuning.ranks = std::move(of_kiln[r]);
          const Runtime runtime(options);
          reports[r] = serve_steps(runtime, *steps, plan);
        }) == "");
  for (const StepReport& report : reports) {
    std::printf("M2, %d GPUs, NCCL: %s\n", ranks, report.describe().c_str());
    CHECK(report.sums_right);
    CHECK(report.digests_equal);
    CHECK(report.settled);
    CHECK(report.changes == plan.problems.size());
    CHECK(report.slow() <= 1);  // the host that takes the time may be late itself, once
  }
}

TEST_CASE("no rank on GPUs begins what communicates while another rank's compiler sleeps",
          "[gpu][ranks][slow]") {
  const auto devices = gpus();
  if (devices.size() < 2) KILN_SKIP("needs two GPUs");
  const double seconds = sleep_seconds();
  std::string thrown;
  const auto check = [&](const char* over, RankEnds ends, SlowCompiler how,
                         const std::string& names) {
    CAPTURE(over, int(how));
    const auto reports = with_slow_compiler(devices, std::move(ends), seconds, how, thrown);
    CHECK(thrown == "");
    for (const SlowCompilerReport& report : reports) {
      CHECK(report.begun_before == 0);
      if (how == SlowCompiler::patient) {
        CHECK(report.plan);
        CHECK(report.begun > 0);
        CHECK(report.digest == reports[0].digest);
      } else if (how == SlowCompiler::impatient) {
        CHECK(report.begun == 0);
        CHECK_FALSE(report.plan);
      }
      if (how != SlowCompiler::impatient) CHECK(report.launched);
    }
    if (how != SlowCompiler::patient) {
      CHECK_THAT(reports[0].said, Catch::Contains(names));
      CHECK(reports[0].seconds < seconds);
    }
    std::printf("M3, %zu GPUs, %s, a compiler that sleeps %.1f s: rank 0 after %.2f s '%s'\n",
                devices.size(), over, seconds, reports[0].seconds,
                how == SlowCompiler::patient ? "goes on" : reports[0].said.c_str());
  };
  check("threads", threads(2), SlowCompiler::impatient, "rank 1 is late");
  check("threads", threads(2), SlowCompiler::patient, "");
  check("in a kernel", threads(2), SlowCompiler::launched, "waiting for rank 1");
  if (!nccl_version()) return;
  // NCCL itself cannot tell which rank is late: the call is named, and in a kernel the rank.
  for (const auto& [how, names] :
       {std::pair{SlowCompiler::impatient, "ncclAll"}, std::pair{SlowCompiler::patient, ""},
        std::pair{SlowCompiler::launched, "waiting for rank 1"}}) {
    RankEnds ends = over_nccl(2, thrown);
    REQUIRE(thrown == "");
    check(how == SlowCompiler::launched ? "NCCL, in a kernel" : "NCCL", std::move(ends), how,
          names);
  }
}

TEST_CASE("a candidate that makes two GPUs wait in vain costs neither the rest",
          "[gpu][ranks][slow]") {
  if (gpus().size() < 2) KILN_SKIP("needs two GPUs");
  const auto begin = std::chrono::steady_clock::now();
  CHECK(check_silent_candidates(gpus(), 1) == "");
  std::printf(
      "M4, 2 GPUs: two candidates that hang were ended on both, two were measured; %.1f s\n",
      seconds_after(begin));
}

TEST_CASE("two GPUs prepare a manifest that is divided among them", "[gpu][ranks][slow]") {
  if (gpus().size() < 2) KILN_SKIP("needs two GPUs");
  constexpr int kProblems = 8;
  const TemporaryDirectory store;
  const KernelDefinition kernel = shipped_kernels().make("rmsnorm", "f32");
  /// Seconds that measuring all takes, where everything is compiled.
  const auto prepare = [&](int ranks) {
    std::vector<std::filesystem::path> records;  // binaries stay
    for (const auto& entry : std::filesystem::recursive_directory_iterator(store.path()))
      if (entry.is_regular_file() && entry.path().string().find("/records") != std::string::npos)
        records.push_back(entry.path());
    for (const auto& path : records) std::filesystem::remove(path);
    const RankEnds ends = threads(ranks);
    std::vector<double> seconds(static_cast<std::size_t>(ranks));
    CHECK(on_ranks(ranks, [&](int rank) {
            RuntimeOptions options = on_gpu(rank, store.path() / "store");
            options.tuning.max_evaluations = 24;
            if (ranks > 1) {
              options.tuning.ranks = ends[static_cast<std::size_t>(rank)];
              options.tuning.together.strategy = RankStrategy::shard;
            }
            const Runtime runtime(options);
            const auto handle = runtime.tuned(kernel);
            const PrepareReport report = runtime.prepare(norms_of(runtime, kProblems));
            if (!report.complete()) throw EnvironmentError("not complete: " + to_json(report));
            seconds[static_cast<std::size_t>(rank)] = report.seconds;
          }) == "");
    return *std::max_element(seconds.begin(), seconds.end());
  };
  const double cold = prepare(2), warm = prepare(1);  // so that one has compiled all candidates
  const double alone = prepare(1), together = prepare(2);
  std::printf(
      "M5: %d problems, all compiled: %.2f s on one GPU, %.2f s divided among two: %.2f times as "
      "fast (wanted 1.8); with an empty store %.2f s on two, then %.2f s on one\n",
      kProblems, alone, together, alone / together, cold, warm);
}
