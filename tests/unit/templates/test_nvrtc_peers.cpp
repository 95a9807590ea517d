// The GEMMs of ranks through NVRTC: what runs untuned compiles without spills, and so do launches
// that communicate while they multiply, and the references.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "kiln/communicators.hpp"
#include "kiln/detail/launch_plan.hpp"
#include "kiln/kernels/gemm_all_gather.hpp"
#include "kiln/kernels/gemm_experts_combine.hpp"
#include "kiln/kernels/gemm_experts_gather.hpp"
#include "kiln/kernels/gemm_reduce_scatter.hpp"
#include "kiln/occupancy.hpp"
#include "nvrtc_test.hpp"
#include "runtime/tune/best_guess.hpp"

using namespace kiln::templates;
using namespace nvrtc_test;

namespace {

DeviceInfo device(const char* arch) {
  DeviceInfo info;
  info.target = {Target::Kind::cuda, arch};
  info.limits =
      std::string(arch) == "sm_80" ? limits_of(80, 108, 40 << 20) : limits_of(90, 132, 50 << 20);
  return info;
}

void compiles(const KernelDefinition& k, const Values& config, const Values& problem,
              const char* arch, int most_spilled = 0) {
  INFO(describe_instance(k, config) << " for " << k.describe_problem(problem) << " on " << arch);
  const DeviceLimits limits = device(arch).limits;
  CHECK(k.space.violated(config, problem, limits) == nullptr);
  CHECK(kiln::detail::plan(k, config, problem, limits).obstacle(limits).empty());
  const Binary binary = must_compile(k, config, arch);
  CHECK(binary.log == "");
  CHECK(binary.resources.spill_stores <= most_spilled);
  CHECK(binary.resources.stack <= most_spilled);
}

/// What runs untuned, and the references. On Hopper also the launches that are expected to be
/// fastest of those that overlap, without and with blocks that only communicate.
void check(const KernelDefinition& k, const Values& problem) {
  const KernelDefinition& reference = *k.device_reference->kernel;
  for (const char* arch : {"sm_80", "sm_90a"}) {
    compiles(k, runtime::untuned_config(k, problem, device(arch)), problem, arch);
    compiles(reference, reference.space.default_config(device(arch).target), problem, arch);
  }
  const DeviceLimits hopper = device("sm_90a").limits;
  int tried = 0;
  for (const bool sends : {false, true}) {
    Values best;
    for (const Values& config : k.configs(problem, hopper)) {
      const auto c = from_values<PeerGemm>(config);
      if (!c.overlap || (c.senders > 0) != sends || k.space.violated(config, problem, hopper))
        continue;
      if (best.empty() || k.cost(config, problem, hopper) < k.cost(best, problem, hopper))
        best = config;
    }
    if (best.empty()) continue;
    ++tried;
    compiles(k, best, problem, "sm_90a", 16);  // tuning finds out what that costs
  }
  CHECK(tried > 0);
}

/// The machine code of `k` whose threads are late by `delay`, as tests of ranks want them to be;
/// empty: as shipped.
auto code(KernelDefinition k, const Values& config, const std::string& delay) {
  if (!delay.empty())
    k.source.options.push_back("-DKILN_PEER_DELAY(rank,epoch,place)=(" + delay + ")");
  return must_compile(k, config, "sm_90a").code;
}

/// Launches that overlap, and those that do not, have no instruction of it where no delay is.
void costs_nothing(const KernelDefinition& k, const Values& problem) {
  const DeviceLimits hopper = device("sm_90a").limits;
  for (const bool overlap : {false, true}) {
    INFO(k.name << (overlap ? ", one launch" : ", several launches"));
    const std::vector<Values> configs = k.configs(problem, hopper);
    const auto found = std::ranges::find_if(configs, [&](const Values& config) {
      return from_values<PeerGemm>(config).overlap == overlap &&
             !k.space.violated(config, problem, hopper);
    });
    REQUIRE(found != configs.end());
    const auto shipped = code(k, *found, "");
    CHECK(code(k, *found, "0u") == shipped);
    CHECK(code(k, *found, "rank") != shipped);
  }
}

/// One that a rank has for itself: kernels depend on the ranks that a problem has.
struct Alone {
  Runtime runtime{[] {
    RuntimeOptions options;
    options.device = "host";
    options.store.disk = false;
    return options;
  }()};
  SymmetricMemory memory{
      runtime, std::move(thread_communicators(1).front()), {.bytes = 64, .flags = kExpertFlags}};
  ~Alone() { memory.close(); }
};

}  // namespace

TEST_CASE("all-gather + GEMM compiles for CUDA", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const Alone alone;
  check(all_gather_gemm_kernel<bfloat16>(alone.memory).definition(), {4096, 4096, 8192, 2});
}

TEST_CASE("GEMM + reduce-scatter compiles for CUDA", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const Alone alone;
  check(reduce_scatter_gemm_kernel<bfloat16>(alone.memory).definition(), {4096, 4096, 8192, 2});
}

TEST_CASE("GEMMs of experts of ranks compile for CUDA", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const Alone alone;
  check(experts_gather_kernel<bfloat16>(alone.memory).definition(), {4096, 1536, 2048, 32, 2, 2});
  check(experts_combine_kernel<bfloat16>(alone.memory).definition(), {4096, 2048, 768, 32, 2, 2});
}

TEST_CASE("delays within operations of ranks cost nothing where there are none", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const Alone alone;
  costs_nothing(all_gather_gemm_kernel<bfloat16>(alone.memory).definition(), {4096, 4096, 8192, 2});
  costs_nothing(reduce_scatter_gemm_kernel<bfloat16>(alone.memory).definition(),
                {4096, 4096, 8192, 2});
  costs_nothing(experts_gather_kernel<bfloat16>(alone.memory).definition(),
                {4096, 1536, 2048, 32, 2, 2});
  costs_nothing(experts_combine_kernel<bfloat16>(alone.memory).definition(),
                {4096, 2048, 768, 32, 2, 2});
}
