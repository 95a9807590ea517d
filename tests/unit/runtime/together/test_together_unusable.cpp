// Ranks that find nothing that may be used, or whose call is refused on one of them.
#include <barrier>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// Two ranks on which every candidate computes something wrong.
Job all_wrong() {
  Job job(2);
  for (const int r : {0, 1})
    for (const int a : {1, 2, 4, 8}) job[r].of(a).run = [](void**) {};
  return job;
}

void mend(Job& job) {
  for (const int r : {0, 1})
    for (const int a : {1, 2, 4, 8}) job[r].of(a).run = {};
}

bool in_use(const Runtime& runtime) {
  const auto served = detail::Access::engine(runtime)->serving().handles().front();
  return served->find(Values{64}) != nullptr;
}

const std::string kNone = "doubling for n=64: none of 4 candidates can be used";

}  // namespace

TEST_CASE("what no rank could verify is not used, however it is asked for", "[runtime][ranks]") {
  Job job = all_wrong();
  Watched* const ends[] = {&job.watch(0), &job.watch(1)};
  std::function<void(const Runtime&, const DynamicTuned&)> ask;
  SECTION("by a launch") {
    ask = [](const Runtime&, const DynamicTuned& handle) { handle.config({64}); };
  }
  SECTION("by a handle's tune") {
    ask = [](const Runtime&, const DynamicTuned& handle) { handle.tune({64}); };
  }
  SECTION("by a runtime's tune") {
    ask = [](const Runtime& runtime, const DynamicTuned& handle) {
      runtime.tune(std::vector<TuneJob>{{handle, {64}}}, {});
    };
  }
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(doubling());
    findings.check_throws<TuningFailedError>([&] { ask(runtime, handle); }, kNone);
    findings.check(!in_use(runtime));
    // The launches that follow fail in the same way, and measure nothing again.
    const int calls = ends[static_cast<std::size_t>(rank)]->calls,
              launches = process.device->launches;
    for (int i = 0; i < 2; ++i)
      findings.check_throws<TuningFailedError>([&] { handle.config({64}); }, "wrong_result");
    findings.check(!in_use(runtime));
    findings.check(ends[static_cast<std::size_t>(rank)]->calls == calls);
    findings.check(process.device->launches == launches);
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("ranks that found nothing use what a later tuning finds", "[runtime][ranks]") {
  Job job = all_wrong();
  std::barrier failed(2), mended(2);
  Findings findings;
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const DynamicTuned handle = process.runtime().tuned(doubling());
    findings.check_throws<TuningFailedError>([&] { handle.config({64}); }, kNone);
    failed.arrive_and_wait();
    if (rank == 0) mend(job);
    mended.arrive_and_wait();
    findings.check_throws<TuningFailedError>([&] { handle.config({64}); }, kNone);
    handle.tune({64});
    return handle.config({64});
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>(2, {2, 0}));
}

TEST_CASE("what ranks use stays when a later tuning finds nothing", "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.1 * kMs;
  std::barrier tuned(2), broken(2);
  Findings findings;
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const DynamicTuned handle = process.runtime().tuned(doubling());
    handle.tune({64});
    tuned.arrive_and_wait();
    if (rank == 0)
      for (const int r : {0, 1})
        for (const int a : {1, 2, 4, 8}) job[r].of(a).run = [](void**) {};
    broken.arrive_and_wait();
    TuneOptions again = process.options.tuning;
    again.retune = true;
    findings.check_throws<TuningFailedError>([&] { handle.tune({64}, again); }, kNone);
    return handle.config({64});
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>(2, {8, 0}));
}

TEST_CASE("what the ranks of a call use stays when they come to nothing later",
          "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.1 * kMs;
  Findings findings;
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    TuneOptions ours = std::exchange(process.options.tuning, {});  // the runtime has no ranks
    const DynamicTuned handle = process.runtime().tuned(doubling());
    handle.tune({64}, ours);
    ours.retune = true;
    if (rank == 0) {
      findings.check(handle.tune({64}, ours).agreed->outcome == RankReport::Outcome::defaults);
    } else {
      ours.max_seconds = -1;
      findings.check_throws<UserError>([&] { handle.tune({64}, ours); }, "limit");
    }
    return handle.config({64});
  });
  CHECK(findings.wrong() == "");
  CHECK(configs == std::vector<Values>(2, {8, 0}));
}

TEST_CASE("a rank whose default fails in an agreement that came to nothing does not launch it",
          "[runtime][ranks]") {
  Job job = all_wrong();
  // Rank 1 leaves while the candidates are measured.
  job[1].device->on_launch = [&](const std::string&, void**) {
    job[1].options.tuning.ranks->abort({RankFailure::Kind::aborted, {1}, "it leaves"});
  };
  Findings findings;
  job.run<bool>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(doubling());
    if (rank == 1) {
      try {
        handle.config({64});
      } catch (const TuningFailedError&) {
      }
      return true;
    }
    for (int i = 0; i < 2; ++i)
      findings.check_throws<TuningFailedError>([&] { handle.config({64}); }, "wrong_result");
    findings.check(!in_use(runtime));
    return true;
  });
  CHECK(findings.wrong() == "");
}

TEST_CASE("a rank without which the others went on does not ask them again", "[runtime][ranks]") {
  Job job(2);
  Watched& watch = job.watch(1);
  KernelDefinition failing = doubling();
  failing.cost = [](auto, auto, const DeviceLimits&) -> double {
    throw UserError("not like this");
  };
  // A launch, or a call for many problems.
  const bool jobs = GENERATE(false, true);
  CAPTURE(jobs);
  const auto ask = [&](const Runtime& runtime, const DynamicTuned& handle) {
    if (!jobs) return handle.config({64});
    const auto results = runtime.tune(std::vector<TuneJob>{{handle, {64}}}, {});
    return results.front().winner().config;
  };
  Findings findings;
  std::barrier both(2);
  const auto configs = job.run<Values>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(rank == 1 ? failing : doubling());
    if (rank == 0) {
      const Values config = ask(runtime, handle);
      both.arrive_and_wait();
      return config;
    }
    findings.check_throws<UserError>([&] { ask(runtime, handle); }, "not like this");
    both.arrive_and_wait();
    const int calls = watch.calls;
    for (int i = 0; i < 2; ++i)
      findings.check_throws<UserError>([&] { handle.config({64}); }, "not like this");
    findings.check(watch.calls == calls);
    return Values{};
  });
  CHECK(findings.wrong() == "");
  CHECK(configs[0] == Values{2, 0});
}

TEST_CASE("ranks need not wait for one whose launch rule throws", "[runtime][ranks]") {
  Job job(2);
  KernelDefinition throws = doubling();
  throws.launch = [](auto, auto) -> Launch { throw UserError("no launch today"); };
  Findings findings;
  const auto seconds = job.run<double>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(rank == 1 ? throws : doubling());
    const auto start = std::chrono::steady_clock::now();
    if (rank == 0)
      findings.check(handle.config({64}) == Values{2, 0});
    else
      findings.check_throws<UserError>([&] { handle.config({64}); }, "no launch today");
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
  CHECK(findings.wrong() == "");
  CHECK(seconds[0] < 10);  // first_seconds are 30
}

TEST_CASE("candidates that fail on a rank keep what they came to", "[runtime][ranks]") {
  Job job = all_wrong();
  for (const int r : {0, 1}) job[r].of(4).launch_error = "refused";
  const auto reasons = job.run<std::vector<TuningFailedError::Reason>>(
      [](Process& process, int) -> std::vector<TuningFailedError::Reason> {
        try {
          process.runtime().tuned(doubling()).tune({64});
        } catch (const TuningFailedError& error) {
          return error.reasons();
        }
        return {};
      });
  for (const auto& mine : reasons) {
    REQUIRE(mine.size() == 4);
    for (const auto& [config, reason, status] : mine) {
      const bool refused = config == "a=4,b=0";
      CHECK(status == (refused ? CandidateStatus::launch_failed : CandidateStatus::wrong_result));
      CHECK_THAT(reason, Catch::StartsWith(refused ? "launch_failed: refused" : "wrong_result: "));
    }
  }
}

TEST_CASE("ranks need not wait for one whose call was refused", "[runtime][ranks]") {
  Job job(2);
  KernelDefinition kernel = doubling();
  SECTION("an empty problem") {}
  SECTION("a bucket that throws") {
    kernel.bucket = [](std::span<const std::int64_t> p) {
      if (p[0] == 0) throw UserError("no bucket");
      return Values(p.begin(), p.end());
    };
  }
  SECTION("a rule that throws what is no exception") {
    kernel.bucket = [](std::span<const std::int64_t> p) {
      if (p[0] == 0) throw 7;
      return Values(p.begin(), p.end());
    };
  }
  Findings findings;
  const auto results = job.run<TuneResult>([&](Process& process, int rank) -> TuneResult {
    const DynamicTuned handle = process.runtime().tuned(kernel);
    if (rank == 0) return handle.tune({64});
    try {
      handle.tune({0});
      findings.check(false);
    } catch (...) {
    }
    return {};
  });
  CHECK(findings.wrong() == "");
  check_defaults({results[0]}, "rank 1 gave up: ");
  CHECK_FALSE(results[0].agreed->broken);
  CHECK(results[0].wall_seconds < 10);
}

TEST_CASE("what holds for a handle on one rank alone is agreed on anew by all",
          "[runtime][ranks]") {
  Job job(2);
  for (const int r : {0, 1}) {
    job[r].of(8).seconds = 0.1 * kMs;
    job[r].options.tuning.together.first_seconds = 10;
  }
  job[1].device->info().limits.multiprocessors = 7;
  KernelDefinition other = doubling();
  other.launch = [](std::span<const std::int64_t> c, std::span<const std::int64_t> p,
                    const DeviceLimits& limits) {
    const auto block = static_cast<unsigned>(c[0]);
    return Launch{{(static_cast<unsigned>(p[0]) + block - 1) / block},
                  {block},
                  limits.multiprocessors == 7 && c[0] == 8 ? 16u : 0u};
  };
  const auto all = job.run<std::vector<TuneResult>>([&](Process& process, int) {
    const Runtime runtime = process.runtime();
    return runtime.tune(
        std::vector<TuneJob>{{runtime.tuned(doubling()), {64}}, {runtime.tuned(other), {64}}}, {});
  });
  for (const std::vector<TuneResult>& results : all) {
    REQUIRE(results.size() == 2);
    CHECK(results[0].winner().config == Values{8, 0});
    CHECK(results[1].agreed->why == "");
    CHECK(results[1].agreed->outcome == all[0][1].agreed->outcome);
    CHECK(results[1].winner().config == all[0][1].winner().config);
  }
}
