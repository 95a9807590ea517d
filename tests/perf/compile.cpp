// How much faster many candidates compile on all cores than on one, and how much faster an instance
// comes from the store than from its compiler.
#include <exception>
#include <thread>

#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "runtime/builder.hpp"
#include "runtime/devices.hpp"

namespace {

using kiln::Target;
using kiln::runtime::Builder;

std::vector<kiln::Values> some_configs(const kiln::KernelDefinition& kernel, std::size_t count) {
  std::vector<kiln::Values> configs{kernel.space.default_config()};
  const kiln::Values problem = kernel.problem({{"rows", 512}, {"hidden", 4096}});
  const kiln::DeviceLimits limits;
  for (std::size_t field = 0; field < kernel.space.parameters().size(); ++field)
    for (const std::int64_t value : kernel.space.parameters()[field].values) {
      kiln::Values config = kernel.space.default_config();
      config[field] = value;
      if (configs.size() < count && config != configs[0] &&
          !kernel.space.violated(config, problem, limits))
        configs.push_back(config);
    }
  return configs;
}

/// Wall seconds for all configs on an empty store in memory.
double build_seconds(const kiln::KernelDefinition& kernel, const std::vector<kiln::Values>& configs,
                     const Target& target, unsigned threads) {
  auto store = std::make_shared<kiln::cache::Store>(kiln::StoreOptions{.disk = false});
  Builder builder(store, kiln::runtime::make_compiler, {}, threads);
  return perf::seconds([&] { builder.build_all(kernel, configs, target, {}); });
}

void measure(const char* name, const Target& target) try {
  const kiln::KernelDefinition kernel = kiln::shipped_kernels().make("rmsnorm", "bf16");
  const auto configs = some_configs(kernel, 8);
  build_seconds(kernel, {configs[0]}, target, 1);  // libraries loaded, files in the page cache
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  std::vector<double> ratios;
  for (int i = 0; i < 3; ++i)
    ratios.push_back(build_seconds(kernel, configs, target, 1) /
                     build_seconds(kernel, configs, target, threads));
  char what[96], goal[64];
  std::snprintf(what, sizeof what, "%s: %zu compiles, %u threads against 1", name, configs.size(),
                threads);
  std::snprintf(goal, sizeof goal, "goal >= %.2f", 0.75 * threads);
  perf::report(what, perf::median(ratios), "x", goal);

  perf::ScratchFolder folder;
  const kiln::StoreOptions on_disk{.directory = folder.path() / "store"};
  std::vector<double> cold, warm;
  for (const auto& config : configs) {
    auto fresh = [&] {
      return Builder(std::make_shared<kiln::cache::Store>(on_disk), kiln::runtime::make_compiler,
                     {}, 1);
    };
    Builder compiling = fresh(), reading = fresh();
    compiling.compiler(target.kind);
    reading.compiler(target.kind);
    cold.push_back(perf::seconds([&] { compiling.build(kernel, config, target); }));
    warm.push_back(perf::seconds([&] { reading.build(kernel, config, target); }));
  }
  std::snprintf(what, sizeof what, "%s: cold compile", name);
  perf::report(what, perf::median(cold) * 1e3, "ms");
  std::snprintf(what, sizeof what, "%s: the same instance from the store", name);
  perf::report(what, perf::median(warm) * 1e3, "ms");
  std::snprintf(what, sizeof what, "%s: store against cold compile", name);
  perf::report(what, perf::median(cold) / perf::median(warm), "x");
} catch (const std::exception& error) {
  std::printf("%s: skipped: %s\n", name, error.what());
}

}  // namespace

int main() {
  measure("host", Target::this_host());
  measure("nvrtc sm_90a", Target::parse("sm_90a"));
}
