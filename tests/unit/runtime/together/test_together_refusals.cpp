// Ranks that refuse before an agreement: what they and the others do afterwards.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <functional>
#include <vector>

#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// One bucket up to 64.
KernelDefinition coarse() {
  KernelDefinition kernel = doubling();
  kernel.bucket = [](std::span<const std::int64_t> p) {
    return Values{std::max<std::int64_t>(p[0], 64)};
  };
  return kernel;
}

using Ask = std::function<void(const Runtime&, const DynamicTuned&, int rank)>;

}  // namespace

TEST_CASE("a rank that has refused a problem does not ask the others again", "[runtime][ranks]") {
  Job job(2);
  Watched& watch = job.watch(1);
  std::atomic<bool> throws = true;  // on rank 1, until it has refused
  KernelDefinition refusing = coarse();
  Ask ask;
  SECTION("a launch, whose rule throws") {
    ask = [](const Runtime&, const DynamicTuned& handle, int) { handle.config({64}); };
  }
  SECTION("a tuning, whose rule throws") {
    ask = [](const Runtime&, const DynamicTuned& handle, int) { handle.tune({64}); };
  }
  SECTION("a tuning of another problem, which is empty") {
    throws = false;
    ask = [](const Runtime&, const DynamicTuned& handle, int rank) {
      handle.tune({rank == 1 ? 0 : 64});
    };
  }
  SECTION("a job behind another runtime's") {
    throws = false;
    ask = [&](const Runtime& runtime, const DynamicTuned& handle, int rank) {
      const Runtime other = job[rank].runtime();
      const DynamicTuned first = rank == 1 ? other.tuned(doubling()) : runtime.tuned(doubling());
      runtime.tune(std::vector<TuneJob>{{first, {32}}, {handle, {64}}}, {});
    };
  }
  SECTION("a job behind one that is no problem") {
    throws = false;
    ask = [](const Runtime& runtime, const DynamicTuned& handle, int rank) {
      const Values first = rank == 1 ? Values{32, 32} : Values{128};
      runtime.tune(std::vector<TuneJob>{{handle, first}, {handle, {64}}}, {});
    };
  }
  refusing.launch = [&throws, launch = refusing.launch](auto config, auto problem,
                                                        const DeviceLimits& limits) {
    if (throws) throw UserError("no launch now");
    return launch(config, problem, limits);
  };
  Findings findings;
  std::barrier both(2);
  job.run<bool>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(rank == 1 ? refusing : coarse());
    if (rank == 0) {
      ask(runtime, handle, rank);
      both.arrive_and_wait();
      findings.check(handle.config({64}) == Values{2, 0});
      return true;
    }
    findings.check_throws<UserError>([&] { ask(runtime, handle, rank); });
    throws = false;
    both.arrive_and_wait();
    const int calls = watch.calls;
    for (int i = 0; i < 2; ++i) findings.check_throws<UserError>([&] { handle.config({64}); });
    findings.check(watch.calls == calls);
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("what every rank refuses is agreed on later", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.1 * kMs;
  Ask ask;
  SECTION("an empty problem of the bucket") {
    ask = [](const Runtime&, const DynamicTuned& handle, int) { handle.tune({0}); };
  }
  SECTION("a job without a right weight") {
    ask = [](const Runtime& runtime, const DynamicTuned& handle, int) {
      runtime.tune(std::vector<TuneJob>{{handle, {64}, -1}}, {});
    };
  }
  Findings findings;
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(coarse());
    findings.check_throws<UserError>([&] { ask(runtime, handle, rank); });
    return handle.config({64});
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>(2, {8, 0}));
}

TEST_CASE("a rank that cannot compare two handles keeps what was agreed on the first",
          "[runtime][ranks]") {
  Job job(2);
  Watched& watch = job.watch(1);
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.1 * kMs;
    job[r].options.tuning.together.first_seconds = 10;
  }
  std::atomic<bool> throws = false;
  job[1].device->on_launch = [&](const std::string&, void**) { throws = true; };
  KernelDefinition other = doubling();
  other.launch = [&throws, launch = other.launch](auto config, auto problem,
                                                  const DeviceLimits& limits) {
    if (throws && config[0] == 8) throw UserError("no launch now");
    return launch(config, problem, limits);
  };
  Findings findings;
  std::barrier both(2);
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned first = runtime.tuned(doubling());
    const DynamicTuned second = runtime.tuned(rank == 1 ? other : doubling());
    const auto tune = [&] {
      runtime.tune(std::vector<TuneJob>{{first, {64}}, {second, {64}}}, {});
    };
    if (rank == 1)
      findings.check_throws<UserError>(tune, "no launch now");
    else
      tune();
    both.arrive_and_wait();
    const int calls = watch.calls;
    if (rank == 1) findings.check_throws<UserError>([&] { second.config({64}); }, "no launch now");
    const Values config = first.config({64});
    if (rank == 1) findings.check(watch.calls == calls);
    return config;
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>(2, {8, 0}));
}

TEST_CASE("a bucket that is in another bucket is refused", "[runtime][tune]") {
  const Directory directory;
  KernelDefinition kernel = doubling();
  kernel.bucket = [](std::span<const std::int64_t> p) { return Values{p[0] + 1}; };
  Process process(directory.path());
  const DynamicTuned handle = process.runtime().tuned(kernel);
  CHECK_THROWS_WITH(handle.tune({64}),
                    Catch::Contains("the bucket of n=64 is n=65, whose own bucket is n=66"));
}
