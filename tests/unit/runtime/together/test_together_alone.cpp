// A rank that asks the others for a choice by itself: what it and they use stays the same.
#include <barrier>
#include <functional>
#include <vector>

#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// Two ranks, for which 8 is best.
Job two_ranks() {
  Job job(2);
  for (const int r : {0, 1}) job[r].of(8).seconds = 0.1 * kMs;
  return job;
}

/// Measure anew, and do not wait long for the others.
TuneOptions anew(const Process& process) {
  TuneOptions options;
  options.ranks = process.options.tuning.ranks;
  options.together.first_seconds = 0.2;
  options.retune = true;
  return options;
}

/// What each rank uses for 64 and 65 once `work` is done, after both have agreed on 8 for both.
std::vector<std::vector<Values>> in_use_after(
    Job& job,
    const std::function<void(const Runtime&, const DynamicTuned&, Process&, int rank)>& work) {
  std::barrier agreed(2), done(2);
  return job.run<std::vector<Values>>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(doubling());
    for (const int n : {64, 65}) handle.tune({n});
    agreed.arrive_and_wait();
    work(runtime, handle, process, rank);
    done.arrive_and_wait();
    return std::vector{handle.config({64}), handle.config({65})};
  });
}

const std::vector<std::vector<Values>> kAgreed(2, {{8, 0}, {8, 0}});

}  // namespace

TEST_CASE("a rank that tunes alone goes on with what all have agreed on", "[runtime][ranks]") {
  Job job = two_ranks();
  Findings findings;
  const auto is_default = [&](const TuneResult& result) {
    findings.check(result.agreed && result.agreed->outcome == Outcome::defaults);
  };
  std::function<void(const Runtime&, const DynamicTuned&, Process&, int)> work;
  SECTION("by its handle") {
    work = [&](const Runtime&, const DynamicTuned& handle, Process& process, int rank) {
      if (rank == 0) is_default(handle.tune({64}, anew(process)));
    };
  }
  SECTION("many problems at once") {
    work = [&](const Runtime& runtime, const DynamicTuned& handle, Process& process, int rank) {
      const std::vector<TuneJob> jobs{{handle, {64}}, {handle, {65}}};
      if (rank == 0)
        for (const TuneResult& result : runtime.tune(jobs, anew(process))) is_default(result);
    };
  }
  SECTION("by a preparation") {
    work = [&](const Runtime& runtime, const DynamicTuned&, Process& process, int rank) {
      Manifest manifest;
      manifest.wanted.push_back(
          {"doubling", {}, process.device->info().target.arch, {{"n", 64}}, {}});
      if (rank == 1) process.options.tuning.ranks->abort({RankFailure::Kind::aborted, {1}, "over"});
      if (rank == 1) return;
      const PrepareReport report = runtime.prepare(manifest);
      findings.check(report.problems.front().state == PreparedState::on_default);
      findings.check(report.problems.front().config.at("a") == 8);
    };
  }
  SECTION("while the other tunes another problem") {
    work = [&](const Runtime&, const DynamicTuned& handle, Process& process, int rank) {
      is_default(handle.tune({64 + rank}, anew(process)));
    };
  }
  CHECK(in_use_after(job, work) == kAgreed);
  CHECK(findings.wrong() == "");
}

TEST_CASE("a rank that is the first to tune a problem alone uses the default, as others will",
          "[runtime][ranks]") {
  Job job = two_ranks();
  std::barrier failed(2);
  const auto in_use = job.run<Values>([&](Process& process, int rank) {
    const DynamicTuned handle = process.runtime().tuned(doubling());
    if (rank == 0) handle.tune({64}, anew(process));
    failed.arrive_and_wait();
    return handle.config({64});
  });
  CHECK(in_use == std::vector<Values>{{2, 0}, {2, 0}});
}

TEST_CASE("behind the launches a rank that tunes alone puts nothing in use", "[runtime][ranks]") {
  Job job = two_ranks();
  job[0].options.mode = job[1].options.mode = Mode::background;
  const auto in_use = job.run<bool>([&](Process& process, int rank) {
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(doubling());
    if (rank == 0) handle.tune({64}, anew(process));
    const auto served = detail::Access::engine(runtime)->serving().handles().front();
    return served->find(Values{64}) || served->problems().agreed(Values{64});
  });
  CHECK(in_use == std::vector<bool>{false, false});
}

TEST_CASE("a rank that keeps the others out of a call has asked for a choice of its own",
          "[runtime][ranks]") {
  Job job = two_ranks();
  job[0].of(4).seconds = 0.01 * kMs;
  const auto in_use =
      in_use_after(job, [](const Runtime&, const DynamicTuned& handle, Process& process, int rank) {
        TuneOptions options = anew(process);
        options.ranks = std::move(thread_communicators(1).front());
        if (rank == 0) handle.tune({64}, options);
      });
  CHECK(in_use[1] == kAgreed[1]);
  CHECK(in_use[0].back() == Values{8, 0});
}
