// Every default, and a sample of each space, through NVRTC: compiles, spills nothing, and is
// bounded to the threads it is launched with.
#include <random>

#include "kiln/detail/launch_plan.hpp"
#include "kiln/occupancy.hpp"
#include "kiln/registry.hpp"
#include "kiln/space_query.hpp"
#include "nvrtc_test.hpp"
#include "runtime/tune/best_guess.hpp"
#include "template_test.hpp"

using namespace kiln;
using namespace kiln::codegen;
using namespace nvrtc_test;

namespace {

constexpr const char* kArchs[] = {"sm_80", "sm_90a", "sm_100a"};

/// The kernels of rope.hpp are many and alike: two of them go all ways.
bool among_tried(const std::string& kernel, const std::string& type) {
  if (kernel.starts_with("gemm_")) return false;  // test_nvrtc_gemm.cpp
  // Of the activations two go all ways.
  if (kernel.find("_mul_fp8_") != std::string::npos)
    return kernel.starts_with("silu") || (kernel.starts_with("gelu_mul") && type == "bf16");
  if (!kernel.starts_with("rope")) return true;
  return (kernel == "rope_interleaved" && type == "f32") ||
         (kernel == "rope_norm_paged" && type == "bf16");
}

}  // namespace

TEST_CASE("defaults compile for all GPUs and types, without spills or warnings", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const Registry registry = shipped_kernels();
  for (const RegisteredKernel& family : registry.kernels()) {
    for (const std::string& type : family.types)
      for (const char* arch : kArchs) {
        if (!among_tried(family.name, type)) continue;
        const KernelDefinition k = registry.make(family.name, type);
        const Values& config = k.space.default_config();
        INFO(describe_instance(k, config) << " " << arch);
        const Binary binary = must_compile(k, config, arch);
        const Values problem(k.problem_fields.size(), 64);
        CHECK(binary.log == "");
        CHECK(binary.resources.registers > 0);
        CHECK(binary.resources.spill_stores == 0);
        CHECK(binary.resources.spill_loads == 0);
        CHECK(binary.resources.stack == 0);
        CHECK(binary.resources.max_threads ==
              static_cast<int>(k.launch(config, problem, {}).block.x));
      }
  }
}

TEST_CASE("each way of sorting by expert compiles without spills or warnings", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const KernelDefinition k = shipped_kernels().make("sort_by_expert");
  DeviceInfo device;
  for (const auto& [arch, capability] :
       {std::pair{"sm_80", 80}, {"sm_90a", 90}, {"sm_100a", 100}}) {
    device.target = Target::parse(arch);
    device.limits = limits_of(capability, 132, 50 << 20);
    for (const Values& problem : {Values{64, 8, 384}, Values{65536, 8, 128}, Values{64, 8, 4096}}) {
      const Values untuned = runtime::untuned_config(k, problem, device);
      // The most that a thread may hold.
      Values most = untuned;
      most[0] = 1024, most[1] = 8;
      for (const Values& config : {untuned, most}) {
        INFO(describe_instance(k, config) << " " << arch);
        const Binary binary = must_compile(k, config, arch);
        CHECK(binary.log == "");
        CHECK(binary.resources.spill_stores == 0);
        CHECK(binary.resources.stack == 0);
        CHECK(binary.resources.max_threads == config[0]);
      }
    }
  }
}

TEST_CASE("untuned on Hopper, kernels with 8-bit results of rows keep them without spills",
          "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  DeviceInfo hopper;
  hopper.target = {Target::Kind::cuda, "sm_90a"};
  hopper.limits = limits_of(90, 132, 50 << 20);
  for (const char* name :
       {"rmsnorm_fp8_blocks", "rmsnorm_residual_fp8", "rmsnorm_residual_fp8_blocks"})
    for (const char* type : {"f32", "bf16"})
      for (const Values& problem : {Values{1024, 2048}, Values{16, 8192}, Values{512, 14336}}) {
        const KernelDefinition k = shipped_kernels().make(name, type);
        const Values config = runtime::untuned_config(k, problem, hopper);
        INFO(describe_instance(k, config) << " for " << k.describe_problem(problem));
        const Binary binary = must_compile(k, config, "sm_90a");
        CHECK(binary.log == "");
        CHECK(binary.resources.spill_stores == 0);
        CHECK(binary.resources.stack == 0);
      }
}

TEST_CASE("each config of quantize_weights keeps its block without spills", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const DeviceLimits hopper = limits_of(90, 132, 50 << 20);
  for (const char* type : {"f32", "bf16"}) {
    const KernelDefinition k = shipped_kernels().make("quantize_weights", type);
    int compiled = 0;
    for_each_config(k.space, Values{4096, 4096, 1}, hopper,
                    [&](std::span<const std::int64_t> values, const Constraint* violated) {
                      if (violated) return true;
                      const Values config(values.begin(), values.end());
                      INFO(describe_instance(k, config));
                      const Binary binary = must_compile(k, config, "sm_90a");
                      CHECK(binary.log == "");
                      CHECK(binary.resources.spill_stores == 0);
                      CHECK(binary.resources.stack == 0);
                      ++compiled;
                      return true;
                    });
    CHECK(compiled >= 5);
  }
}

TEST_CASE("a sample of each space compiles", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const Registry registry = shipped_kernels();
  std::mt19937 random(11);
  for (const RegisteredKernel& family : registry.kernels()) {
    for (const std::string& type : family.types) {
      if (!among_tried(family.name, type)) continue;
      const KernelDefinition k = registry.make(family.name, type);
      const Values problem(k.problem_fields.size(), 4096);
      for (int compiled = 0; compiled < 4;) {
        const int capability = compiled < 2 ? 80 : 90;
        Values config;
        const auto listed =
            k.configs ? k.configs(problem, limits(capability)) : std::vector<Values>{};
        if (!listed.empty())
          config = listed[random() % listed.size()];
        else
          for (const Parameter& p : k.space.parameters())
            config.push_back(p.values[random() % p.values.size()]);
        if (k.space.violated(config, problem, limits(capability))) continue;
        ++compiled;
        INFO(describe_instance(k, config));
        const Binary binary = must_compile(k, config, capability == 80 ? "sm_80" : "sm_90a");
        CHECK(binary.resources.max_threads ==
              static_cast<int>(k.launch(config, problem, {}).block.x));
      }
    }
  }
}

TEST_CASE("what runs untuned on Hopper compiles without spills or warnings", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  DeviceInfo hopper;
  hopper.target = {Target::Kind::cuda, "sm_90a"};
  hopper.limits = limits_of(90, 132, 50 << 20);
  const KernelDefinition k = shipped_kernels().make("gemm", "bf16");
  for (const Values& problem :
       {Values{1, 4096, 4096}, Values{16, 8192, 8192}, Values{64, 4096, 4096},
        Values{128, 2112, 7168}, Values{512, 3584, 3584}, Values{4096, 4096, 4096},
        Values{8192, 8192, 8192}, Values{1024, 1003, 1000}}) {
    const Values config = runtime::untuned_config(k, problem, hopper);
    INFO(describe_instance(k, config) << " for " << k.describe_problem(problem));
    CHECK(config != k.space.default_config());
    CHECK(k.space.violated(config, problem, hopper.limits) == nullptr);
    CHECK(detail::plan(k, config, problem, hopper.limits).obstacle(hopper.limits).empty());
    const Binary binary = must_compile(k, config, "sm_90a");
    CHECK(binary.log == "");
    CHECK(binary.resources.spill_stores == 0);
    CHECK(binary.resources.stack == 0);
  }
  // Where the model has not been shown to beat it, the default runs.
  DeviceInfo ampere = hopper;
  ampere.target.arch = "sm_80";
  ampere.limits = limits_of(80, 108, 40 << 20);
  CHECK(runtime::untuned_config(k, Values{4096, 4096, 4096}, ampere) == k.space.default_config());
}

TEST_CASE("wgmma runs beside what follows it", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  for (const char* type : {"f16", "bf16"})
    for (const Values& config : {Values{2, 128, 256, 64, 4, 64, 256, 8, 8, 0, 1, 0, 0, 1, 0, 0},
                                 Values{2, 128, 128, 64, 4, 128, 128, 8, 8, 0, 1, 0, 0, 1, 0, 0},
                                 Values{2, 64, 64, 64, 3, 64, 64, 8, 8, 0, 1, 0, 0, 1, 0, 0}}) {
      const KernelDefinition k = shipped_kernels().make("gemm", type);
      INFO(describe_instance(k, config));
      REQUIRE_FALSE(
          k.space.violated(config, k.problem({{"m", 256}, {"n", 256}, {"k", 64}}), limits(90)));
      const Binary binary = must_compile(k, config, "sm_90a");
      CHECK(binary.log == "");  // the assembler says when it has to wait for each
      CHECK(binary.resources.spill_stores == 0);
      CHECK(binary.resources.stack == 0);
    }
}

TEST_CASE("a config outside the template's rules is refused in its words", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const KernelDefinition k = shipped_kernels().make("gemm", "f32");
  // body mma on 4-byte elements
  static IncludeCache cache;
  const Target target = Target::parse("sm_80");
  const Values config{1, 64, 64, 32, 2, 32, 32, 8, 8, 0, 1, 0, 0, 1, 0, 0};
  const CompileResult result =
      nvrtc()->compile(make_source(k, config, target, *nvrtc(), cache), target);
  REQUIRE(std::holds_alternative<CompileFailure>(result));
  CHECK(std::get<CompileFailure>(result).log.find("T has 2 bytes") != std::string::npos);
}
