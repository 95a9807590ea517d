// What ranks save that divide a manifest among them: data that are made, references that are run,
// binaries that are compiled, and CPU time, in all and of the rank that has most to do.
//
//   perf_sharded [PROBLEMS] [ELEMENTS]      by default 12 problems of a million elements
//
// Ranks are threads of this process, on made-up devices whose launches take no time of their own:
// data and references are the host's work.
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "kiln/communicators.hpp"
#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "runtime/background/make_engine.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "unit/runtime/fake_kernel.hpp"

namespace {

using namespace kiln;

double cpu_seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

struct Rank {
  std::atomic<int> draws = 0, references = 0, compiled = 0;
  double cpu = 0;  ///< of the thread that measures
};

KernelDefinition kernel_of(Rank& rank) {
  std::vector<std::int64_t> values(24);
  std::iota(values.begin(), values.end(), 1);
  KernelDefinition k = test::doubling(values);
  k.workload = [&rank, make = k.workload](std::span<const std::int64_t> p, Workload& w) {
    ++rank.draws;
    make(p, w);
  };
  k.reference = [&rank, run = k.reference](std::span<const std::int64_t> p,
                                           std::span<void* const> args) {
    ++rank.references;
    run(p, args);
  };
  return k;
}

void prepare(int ranks, int problems, int elements) {
  const perf::ScratchFolder folder;
  auto ends = thread_communicators(ranks);
  std::vector<Rank> all(static_cast<std::size_t>(ranks));
  const double cpu = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
  const double wall = perf::seconds([&] {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        Rank& own = all[static_cast<std::size_t>(r)];
        const auto script = std::make_shared<test::Script>();
        auto device = std::make_shared<test::FakeDevice>(script);
        device->info().limits.max_grid.x = 1u << 30;
        device->compute = test::compute_doubling;
        const auto compiler = std::make_shared<test::FakeCompiler>(script);
        RuntimeOptions options;
        options.store.directory = folder.path();
        options.tuning.max_evaluations = 24;
        if (ranks > 1) {
          options.tuning.ranks = std::move(ends[static_cast<std::size_t>(r)]);
          options.tuning.together.strategy = RankStrategy::shard;
        }
        const Runtime runtime = detail::Access::runtime(
            runtime::make_engine(options, device, [&](Target::Kind) { return compiler; }));
        const DynamicTuned handle = runtime.tuned(kernel_of(own));
        Manifest manifest;
        for (int i = 0; i < problems; ++i)
          manifest.wanted.push_back(
              {"doubling", {}, runtime.device().target.arch, {{"n", elements + i}}, {}});
        if (!runtime.prepare(manifest).complete()) std::abort();
        own.compiled = compiler->compiles.load();
        own.cpu = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
      });
  });
  double most = 0;
  int draws = 0, references = 0, compiled = 0;
  for (const Rank& rank : all) {
    most = std::max(most, rank.cpu);
    draws += rank.draws;
    references += rank.references;
    compiled += rank.compiled;
  }
  std::printf("%d ranks, %d problems:\n", ranks, problems);
  perf::report("  took", wall, "s");
  perf::report("  CPU time, in all", cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu, "s");
  perf::report("  CPU time of the rank that has most to do", most, "s", "(goal: falls with ranks)");
  perf::report("  data made, per problem", double(draws) / problems, "", "(goal: 1)");
  perf::report("  references run, per problem", double(references) / problems, "", "(goal: 1)");
  perf::report("  compiled, in all", compiled, "");
}

}  // namespace

int main(int argc, char** argv) try {
  const int problems = argc > 1 ? std::atoi(argv[1]) : 12;
  const int elements = argc > 2 ? std::atoi(argv[2]) : 1'000'000;
  for (const int ranks : {1, 2, 4}) prepare(ranks, problems, elements);
} catch (const std::exception& error) {
  std::fprintf(stderr, "sharded: %s\n", error.what());
  return 1;
}
