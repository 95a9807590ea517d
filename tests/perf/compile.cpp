// How much faster many candidates compile on all cores than on one, and how much faster an instance
// comes from the store than from its compiler; and what a kernel for Hopper takes.
#include <exception>
#include <span>
#include <stdexcept>
#include <thread>
#include <variant>

#include "build_all.hpp"
#include "kiln/registry.hpp"
#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/build/compilers.hpp"

namespace {

using kiln::Target;
using kiln::runtime::Builder;

/// `count` of the configs allowed for a problem, spread over the space, or all of them.
std::vector<kiln::Values> some_configs(const kiln::KernelDefinition& kernel, std::size_t count) {
  const auto& parameters = kernel.space.parameters();
  const kiln::Values problem = kernel.problem({{"rows", 512}, {"hidden", 4096}});
  const kiln::DeviceLimits limits;
  std::vector<kiln::Values> allowed;
  std::vector<std::size_t> place(parameters.size());
  for (std::size_t field = 0; field < parameters.size();) {
    kiln::Values config;
    for (std::size_t i = 0; i < parameters.size(); ++i)
      config.push_back(parameters[i].values[place[i]]);
    if (!kernel.space.violated(config, problem, limits)) allowed.push_back(config);
    for (field = 0; field < parameters.size() && ++place[field] == parameters[field].values.size();
         ++field)
      place[field] = 0;
  }
  std::vector<kiln::Values> configs;
  for (std::size_t i = 0; i < allowed.size(); ++i)
    if (i * count / allowed.size() != (i + 1) * count / allowed.size() || allowed.size() <= count)
      configs.push_back(allowed[i]);
  return configs;
}

/// Wall seconds for all configs on an empty store in memory.
double build_seconds(const kiln::KernelDefinition& kernel, const std::vector<kiln::Values>& configs,
                     const Target& target, unsigned threads) {
  auto store = std::make_shared<kiln::cache::Store>(kiln::StoreOptions{.disk = false});
  Builder builder(store, kiln::runtime::make_compiler, {}, threads);
  return perf::seconds([&] { kiln::test::build_all(builder, kernel, configs, target); });
}

void measure(const char* name, const Target& target) try {
  const kiln::KernelDefinition kernel = kiln::shipped_kernels().make("rmsnorm", "bf16");
  const unsigned threads = std::max(1u, std::thread::hardware_concurrency());
  const auto configs = some_configs(kernel, 2 * threads);
  build_seconds(kernel, {configs[0]}, target, 1);  // libraries loaded, files in the page cache
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
  for (const auto& config : std::span(configs).first(std::min<std::size_t>(8, configs.size()))) {
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

/// A kernel that copies a tile of 64 x 64 by TMA and multiplies it, or the same without a body.
kiln::KernelDefinition small_tile(bool for_hopper) {
  kiln::KernelDefinition kernel;
  kernel.name = for_hopper ? "tile" : "nothing";
  kernel.entry = "k";
  kernel.source.text = !for_hopper ? "template <int n> __global__ void k(float* out) { *out = n; }"
                                   : R"(#include <kiln/hopper.cuh>
template <int n>
__global__ void __launch_bounds__(128) k(float* out,
                                         const __grid_constant__ kiln::hopper::TensorMap a) {
  using namespace kiln::hopper;
  __shared__ __align__(1024) unsigned char tile[2][8192];
  __shared__ Barrier full;
  if (threadIdx.x == 0) {
    full.init(1);
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    full.arrive_expect(16384);
    load_tile(tile[0], a, full, 0, 0);
    load_tile(tile[1], a, full, 0, 64);
  }
  full.wait(0);
  float sums[n / 8][4];
  multiply_fence();
  for (int l = 0; l < 64; l += 16)
    multiply<__nv_bfloat16>(sums, advance(operand<128>(tile[0]), l * 2),
                            advance(operand<128>(tile[1]), l * 2), l > 0);
  multiply_commit();
  multiply_wait<0>();
  for (int j = 0; j < n / 8; ++j)
    for (int e = 0; e < 4; ++e) {
      multiplied(sums[j][e]);
      out[(j * 4 + e) * 128 + threadIdx.x] = sums[j][e];
    }
}
)";
  kernel.arguments = {"float*"};
  if (for_hopper) kernel.arguments.push_back("kiln::hopper::TensorMap");
  kernel.space.parameter("n", {64}, 64);
  kernel.passing = kiln::Passing::template_arguments;
  return kernel;
}

/// What a small tile for Hopper takes to compile, beyond a kernel that does nothing.
/// False: it does not compile.
bool measure_hopper(const Target& target) try {
  std::vector<double> nothing, tile;
  const auto compile = [&](bool for_hopper) {
    Builder builder(std::make_shared<kiln::cache::Store>(kiln::StoreOptions{.disk = false}),
                    kiln::runtime::make_compiler, {}, 1);
    builder.compiler(target.kind);
    const kiln::KernelDefinition kernel = small_tile(for_hopper);
    return perf::seconds([&] {
      const auto build = builder.build(kernel, kiln::Values{64}, target);
      if (const auto* failure = std::get_if<kiln::CompileFailure>(&build.outcome))
        throw std::runtime_error(failure->log);
    });
  };
  for (int i = 0; i < 5; ++i) {
    nothing.push_back(compile(false));
    tile.push_back(compile(true));
  }
  const double seconds = perf::median(tile);
  perf::report("nvrtc sm_90a: a small tile with kiln/hopper.cuh", seconds * 1e3, "ms",
               "goal <= 500");
  perf::report("nvrtc sm_90a: of it beyond an empty kernel",
               (seconds - perf::median(nothing)) * 1e3, "ms");
  return true;
} catch (const kiln::EnvironmentError& error) {
  std::printf("kiln/hopper.cuh: skipped: %s\n", error.what());
  return true;
} catch (const std::exception& error) {
  std::printf("kiln/hopper.cuh: FAILED: %s\n", error.what());
  return false;
}

}  // namespace

int main() {
  measure("host", Target::this_host());
  measure("nvrtc sm_90a", Target::parse("sm_90a"));
  return measure_hopper(Target::parse("sm_90a")) ? 0 : 1;
}
