// How much faster many instances compile on all cores than on one: by threads of this process, and
// by processes. Instances are those of the shipped kernels, spread over their spaces.
//
//   compile_throughput [INSTANCES [THREADS]]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>

#include "codegen/llvm_plugin.hpp"
#include "kiln/precompile.hpp"
#include "kiln/registry.hpp"
#include "kiln/space_query.hpp"
#include "perf.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/support/machine.hpp"
#include "runtime/support/parallel.hpp"

namespace {

using kiln::KernelDefinition;
using kiln::Target;
using kiln::Values;
using kiln::runtime::Builder;

struct Instance {
  KernelDefinition kernel;
  Values config;
};

/// Equally many instances of each kernel, in turns, spread evenly over what its space allows.
std::vector<Instance> some_instances(const Target& target, std::size_t count) {
  const std::pair<KernelDefinition, Values> problems[] = {
      {kiln::shipped_kernels().make("vector_add", "f32"), {1 << 20}},
      {kiln::shipped_kernels().make("residual_add", "bf16"), {}},
      {kiln::shipped_kernels().make("rmsnorm", "bf16"), {512, 4096}},
      {kiln::shipped_kernels().make("gemm", "bf16"), {1024, 1024, 1024}}};
  std::vector<std::vector<Instance>> of_kernels;
  for (const auto& [kernel, numbers] : problems) {
    Values problem = numbers;
    problem.resize(kernel.problem_fields.size(), 4096);
    std::vector<Values> allowed;
    kiln::for_each_config(kernel.space, problem, kiln::limits_of(target),
                          [&](std::span<const std::int64_t> config, const kiln::Constraint* no) {
                            if (!no) allowed.emplace_back(config.begin(), config.end());
                            return allowed.size() < 20000;
                          });
    const std::size_t wanted = std::min(allowed.size(), count / std::size(problems) + 1);
    auto& chosen = of_kernels.emplace_back();
    for (std::size_t i = 0; i < wanted; ++i)
      chosen.push_back({kernel, allowed[i * allowed.size() / wanted]});
  }
  std::vector<Instance> instances;
  for (std::size_t i = 0; instances.size() < count; ++i) {
    const std::size_t before = instances.size();
    for (const auto& chosen : of_kernels)
      if (i < chosen.size() && instances.size() < count) instances.push_back(chosen[i]);
    if (instances.size() == before) break;
  }
  return instances;
}

/// Wall seconds per instance, on an empty store in memory; libraries are loaded and processes have
/// started.
double seconds_each(const std::vector<Instance>& instances, const Target& target, unsigned threads,
                    unsigned processes) {
  const auto build_all = [&](Builder& builder, std::size_t count) {
    kiln::runtime::for_each_index(
        threads, count, {},
        [&](std::size_t i) { builder.build(instances[i].kernel, instances[i].config, target); },
        {});
  };
  const auto maker = kiln::runtime::compiler_maker(processes);
  std::shared_ptr<kiln::codegen::Compiler> compiler = maker(target.kind);
  const auto builder = [&] {
    return Builder(
        std::make_shared<kiln::cache::Store>(kiln::StoreOptions{.disk = false}),
        [&](Target::Kind) { return compiler; }, {}, threads);
  };
  Builder warm = builder(), measured = builder();
  build_all(warm, std::min<std::size_t>(instances.size(), threads));
  return perf::seconds([&] { build_all(measured, instances.size()); }) /
         static_cast<double>(instances.size());
}

void measure(const char* name, const Target& target, std::size_t count, unsigned threads) try {
  std::vector<Instance> instances = some_instances(target, count);
  // One thread takes long: every seventh stands for all. Kernels differ by more than their configs,
  // and take turns in the list, so all of them are in it in equal parts.
  std::vector<Instance> few;
  for (std::size_t i = 0; i < instances.size(); i += 7) few.push_back(instances[i]);
  std::shuffle(instances.begin(), instances.end(), std::mt19937(1));
  const unsigned processes = threads;
  const double one = seconds_each(few, target, 1, 0);
  const double by_threads = seconds_each(instances, target, threads, 0);
  const double by_processes = seconds_each(instances, target, threads, processes);
  std::printf("%s, %zu instances\n", name, instances.size());
  char what[80], goal[32];
  perf::report("  1 thread", one * 1e3, "ms", "an instance");
  std::snprintf(what, sizeof what, "  %u threads of one process", threads);
  perf::report(what, by_threads * 1e3, "ms", "an instance");
  perf::report("    against 1 thread", one / by_threads, "x");
  std::snprintf(what, sizeof what, "  %u processes", processes);
  perf::report(what, by_processes * 1e3, "ms", "an instance");
  std::snprintf(goal, sizeof goal, "goal >= %.2f", 0.75 * threads);
  perf::report("    against 1 thread", one / by_processes, "x", goal);
} catch (const std::exception& error) {
  std::printf("%s: skipped: %s\n", name, error.what());
}

}  // namespace

int main(int argument_count, char** arguments) {
  const unsigned cores = kiln::runtime::usable_cores();
  const auto number = [&](int i, unsigned otherwise) {
    return argument_count > i ? static_cast<unsigned>(std::atoi(arguments[i])) : otherwise;
  };
  const unsigned threads = std::max(1U, number(2, cores));
  const unsigned count = std::max(1U, number(1, 24 * threads));
  std::printf("%u cores\n", cores);
  if (kiln::runtime::compile_plan(1).processes == 0)
    std::printf("no processes: %s\n", kiln::runtime::compile_plan(1).why_here.c_str());
  measure("NVRTC, sm_90a", Target::parse("sm_90a"), count, threads);
  if (kiln::codegen::has_llvm()) measure("host", Target::this_host(), count, threads);
}
