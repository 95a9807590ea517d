// A budget over many problems where compilers take long: Kiln's own threads and clock, a simulated
// device, and compilers that sleep.
//
//   perf_slow_compilers [PROBLEMS [SECONDS...]]    by default 24 problems; 4 and 12 s
//
// The problems are of two kernels. Printed: how long it took; how many evaluations there were; the
// mean over all problems of the best config's time over that of the chosen one. A compilation takes
// .35 to 2.75 s, most of them less than .7 s, and 16 run at once; a launch 1 to 3.4 ms, by the
// simulated clock.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "unit/runtime/engine_fixture.hpp"

namespace {

using namespace kiln;

constexpr int kKernels = 2, kOrders = 32;
constexpr unsigned kCores = 16;

std::vector<std::int64_t> blocks() {
  std::vector<std::int64_t> all;
  for (std::int64_t block = 1; block <= 1024; block *= 2) all.push_back(block);
  return all;
}

/// Of a launch with this config.
double seconds(std::int64_t block, std::int64_t order) {
  const double from_best = std::abs(std::log2(static_cast<double>(block)) - 6);
  return 1e-3 * (1 + 0.3 * from_best + 0.02 * static_cast<double>(order * 7 % kOrders));
}

void compile_slowly(const codegen::Source& source) {
  const std::uint64_t hash = std::hash<std::string>{}(source.entry) * 0x9e3779b97f4a7c15;
  const double drawn = static_cast<double>(hash >> 11) * 0x1p-53;
  std::this_thread::sleep_for(std::chrono::duration<double>(0.35 + 2.4 * std::pow(drawn, 3)));
}

void run(std::size_t problems, double budget) {
  perf::ScratchFolder folder;
  test::Process process(folder.path());
  process.options.compile_threads = kCores;
  process.compiler->on_compile = compile_slowly;
  std::vector<std::int64_t> orders;
  for (std::int64_t order = 0; order < kOrders; ++order) orders.push_back(order);
  for (const std::int64_t block : blocks())
    for (const std::int64_t order : orders)
      process.of(static_cast<int>(block), static_cast<int>(order)).seconds = seconds(block, order);
  const Runtime runtime = process.runtime();
  std::vector<DynamicTuned> handles;
  for (int i = 0; i < kKernels; ++i) {
    KernelDefinition kernel = test::doubling(blocks(), 1, orders);
    kernel.name += std::to_string(i);
    kernel.source.text += "  // " + kernel.name;
    handles.push_back(runtime.tuned(kernel));
  }
  std::vector<TuneJob> jobs;
  for (std::size_t i = 0; i < problems; ++i)
    jobs.push_back({handles[i % kKernels], {static_cast<std::int64_t>(64 * (i + 1))}});
  TuneOptions options;
  options.max_seconds = budget;
  std::vector<TuneResult> results;
  const double took = perf::seconds([&] { results = runtime.tune(jobs, options); });
  std::size_t evaluations = 0;
  double sum = 0;
  for (const TuneResult& result : results) {
    evaluations += result.evaluated;
    const Values& config = result.winner().config;
    sum += seconds(64, 0) / seconds(config[0], config[1]);
  }
  std::printf("%zu problems within %g s: took %.1f s, %zu evaluations, mean of the best %.3f\n",
              problems, budget, took, evaluations, sum / static_cast<double>(problems));
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const long problems = count > 1 ? std::atol(arguments[1]) : 24;
  if (problems < 1) {
    std::fputs("perf_slow_compilers [PROBLEMS [SECONDS...]]\n", stderr);
    return 1;
  }
  std::vector<double> budgets;
  for (int i = 2; i < count; ++i) budgets.push_back(std::atof(arguments[i]));
  if (budgets.empty()) budgets = {4, 12};
  for (const double budget : budgets) run(static_cast<std::size_t>(problems), budget);
}
