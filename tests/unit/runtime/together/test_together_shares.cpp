// Ranks that divide problems among them: what is made on which rank, and how often.
#include <map>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "unit/runtime/ranks_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

/// How often data were made, and results computed, of each problem on each rank.
struct Made {
  std::map<std::pair<int, std::int64_t>, int> draws, references;
};

Made made_by(Job& job, int problems) {
  Made made;
  std::mutex mutex;
  job.run<int>([&](Process& process, int rank) {
    const auto count = [&, rank](auto& of, std::int64_t n) {
      const std::lock_guard lock(mutex);
      ++of[{rank, n}];
    };
    KernelDefinition kernel = doubling({1, 2, 3, 4, 5, 6, 7, 8});
    kernel.workload = [count, &made, make = kernel.workload](std::span<const std::int64_t> p,
                                                             Workload& w) {
      count(made.draws, p[0]);
      make(p, w);
    };
    kernel.reference = [count, &made, compute = kernel.reference](std::span<const std::int64_t> p,
                                                                  std::span<void* const> args) {
      count(made.references, p[0]);
      compute(p, args);
    };
    const Runtime runtime = process.runtime();
    const DynamicTuned handle = runtime.tuned(kernel);
    std::vector<TuneJob> jobs;
    for (int p = 0; p < problems; ++p) jobs.push_back({handle, {64 + p}});
    for (const TuneResult& result : runtime.tune(jobs, {}))
      if (result.agreed->outcome != RankReport::Outcome::plan ||
          result.winner().config != Values{7, 0})
        throw std::runtime_error(result.agreed->why);
    return 0;
  });
  return made;
}

Job sharded(int size) {
  Job job(size);
  RankOptions options = job.settings();
  options.strategy = RankStrategy::shard;
  job.set(options);
  for (int r = 0; r < size; ++r) job[r].of(7).seconds = 0.2 * kMs;
  return job;
}

}  // namespace

TEST_CASE("ranks that have enough problems each make the data of their own", "[runtime][ranks]") {
  for (const int size : {2, 4}) {
    Job job = sharded(size);
    const Made made = made_by(job, 8);
    CHECK(made.draws.size() == 8);
    for (const auto& [where, times] : made.draws) CHECK(times == 1);
    CHECK(made.references == made.draws);
    int compiled = 0;
    for (int r = 0; r < size; ++r) compiled += job[r].compiler->compiles;
    CHECK(compiled == size * 8);  // each rank has a store of its own
  }
}

TEST_CASE("data of problems whose candidates are shared out are made once on a rank",
          "[runtime][ranks]") {
  Job job = sharded(3);
  const Made made = made_by(job, 2);
  CHECK(made.draws.size() == 6);
  for (const auto& [where, times] : made.draws) CHECK(times == 1);
  CHECK(made.references == made.draws);
}

TEST_CASE("a problem that is as large as all others is a rank's alone", "[runtime][ranks]") {
  for (const bool says_bytes : {true, false}) {
    Job job = sharded(2);
    Made made;
    std::mutex mutex;
    job.run<int>([&](Process& process, int rank) {
      KernelDefinition kernel = doubling({1, 2, 3, 4, 5, 6, 7, 8});
      if (says_bytes)
        kernel.bytes = [](std::span<const std::int64_t> p) { return p[0] == 64 ? 3e12 : 1e12; };
      kernel.workload = [&, rank, make = kernel.workload](std::span<const std::int64_t> p,
                                                          Workload& w) {
        {
          const std::lock_guard lock(mutex);
          ++made.draws[{rank, p[0]}];
        }
        make(p, w);
      };
      const Runtime runtime = process.runtime();
      const DynamicTuned handle = runtime.tuned(kernel);
      std::vector<TuneJob> jobs;
      for (int p = 0; p < 4; ++p) jobs.push_back({handle, {64 + p}});
      runtime.tune(jobs, {});
      return 0;
    });
    const int of_the_first = made.draws.contains({0, 64}) ? 0 : 1;
    int beside = 0;
    for (const auto& [where, times] : made.draws)
      beside += where.first == of_the_first && where.second != 64;
    CHECK(beside == (says_bytes ? 0 : 1));
  }
}
