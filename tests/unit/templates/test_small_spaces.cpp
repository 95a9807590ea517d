// The small spaces of rope_norm, gemm_gated_* and gemm_fp8: their sizes, defaults and filters, and
// that a kernel in its small space searches that and nothing else.
#include <algorithm>
#include <set>

#include "kiln/detail/launch_plan.hpp"
#include "kiln/occupancy.hpp"
#include "kiln/registry.hpp"
#include "kiln/space_query.hpp"
#include "kiln_test.hpp"
#include "runtime/tune/best_guess.hpp"
#include "runtime/tune/candidate_list.hpp"
#include "templates/kernels.hpp"
#include "templates/small/small_spaces.hpp"

using namespace kiln;
using namespace kiln::templates;

namespace {

struct NamedProblem {
  const char* name;
  Values problem;
};

DeviceInfo small_device(int capability, const char* arch) {
  DeviceInfo device;
  device.target = Target::parse(arch);
  device.limits = limits_of(capability, 132, 50 << 20);
  return device;
}

/// In the order in which they are visited.
std::vector<Values> points_of(const DynamicSpace& space, const Values& problem,
                              std::size_t& refused) {
  std::vector<Values> taken;
  refused = 0;
  for_each_config(space, problem, small_device(80, "sm_80").limits,
                  [&](auto config, const Constraint* violated) {
                    if (violated)
                      ++refused;
                    else
                      taken.emplace_back(config.begin(), config.end());
                    return true;
                  });
  return taken;
}

const Values kRopeOfLlama{512, 32, 8, 128, 128, 4096, 1024, 6144, 6144};
const Values kGatedOfLlama{512, 14336, 4096}, kFp8OfLlama{512, 4096, 14336};

}  // namespace

TEST_CASE("small spaces have 45, 108 and 216 configs, their defaults, and refuse what is too large",
          "[templates]") {
  struct Small {
    DynamicSpace space;
    Values problem, tiny;
    std::size_t size, of_tiny;
    Values standard;
  };
  for (const Small& small : {Small{rmsnorm_rope_space().dynamic(),
                                   kRopeOfLlama,
                                   {1, 1, 1, 64, 64, 64, 64, 64, 64},
                                   45,
                                   18,
                                   {128, 4, 2}},
                             Small{gated_mlp_space().dynamic(),
                                   kGatedOfLlama,
                                   {16, 32, 48},
                                   108,
                                   1 * 2 * 1 * 2 * 3,
                                   {64, 64, 32, 4, 3}},
                             Small{fp8_gemm_space().dynamic(),
                                   kFp8OfLlama,
                                   {32, 64, 32},
                                   216,
                                   1 * 2 * 1 * 2 * 2 * 3,
                                   {128, 128, 32, 8, 4, 4}}}) {
    CAPTURE(small.size);
    std::size_t refused = 0;
    const auto all = points_of(small.space, small.problem, refused);
    CHECK(all.size() == small.size);
    CHECK(refused == 0);
    CHECK(std::set<Values>(all.begin(), all.end()).size() == small.size);
    CHECK(count_configs(small.space, small.problem, small_device(80, "sm_80").limits).allowed ==
          static_cast<double>(small.size));
    CHECK(points_of(small.space, small.tiny, refused).size() == small.of_tiny);
    CHECK(refused == small.size - small.of_tiny);
    CHECK(small.space.default_config() == small.standard);
  }
}

TEST_CASE("a kernel in its small space searches that alone, and what it lists can be launched",
          "[templates]") {
  const Registry registry = shipped_kernels();
  for (const auto& [name, problem] : {NamedProblem{"rope_norm", kRopeOfLlama},
                                      {"gemm_gated_silu", kGatedOfLlama},
                                      {"gemm_gated_gelu_interleaved", kGatedOfLlama},
                                      {"gemm_gated_silu_fp8_tensor", kGatedOfLlama},
                                      {"gemm_fp8", kFp8OfLlama}})
    for (const DeviceInfo& device :
         {small_device(80, "sm_80"), small_device(90, "sm_90a"), small_device(100, "sm_100a")}) {
      const KernelDefinition k = in_small_space(registry.make(name, "bf16"));
      CAPTURE(name, device.target.arch);
      std::size_t taken = 0;
      const auto listed = k.configs(problem, device.limits);
      for (const Values& config : listed) {
        if (k.space.violated(config, problem, device.limits)) continue;
        INFO(k.space.describe(config));
        CHECK(detail::plan(k, config, problem, device.limits).obstacle(device.limits).empty());
        ++taken;
      }
      CHECK(taken >= 12);
      const Values standard = runtime::untuned_config(k, problem, device);
      CHECK(k.space.violated(standard, problem, device.limits) == nullptr);
      const bool small_default = std::ranges::find(listed, standard) != listed.end();
      CHECK((small_default ||
             (std::string(name) == "gemm_fp8" && device.limits.compute_capability != 90)));
    }
  CHECK_THROWS_AS(in_small_space(registry.make("gemm", "bf16")), UserError);
}

TEST_CASE("where a small space has nothing for a problem, its kernel has its default alone",
          "[templates]") {
  const Registry registry = shipped_kernels();
  for (const auto& [name, problem] :
       {NamedProblem{"gemm_gated_silu", {1, 14336, 4096}}, {"gemm_fp8", {16, 4096, 14336}}})
    for (const DeviceInfo& device : {small_device(80, "sm_80"), small_device(90, "sm_90a")}) {
      const KernelDefinition k = in_small_space(registry.make(name, "bf16"));
      CAPTURE(name, device.target.arch);
      const auto list = runtime::candidate_list(k, problem, device, 0, 1);
      CHECK(list.configs == std::vector<Values>{runtime::untuned_config(k, problem, device)});
      CHECK(list.whole);
    }
}

TEST_CASE("whole spaces of 8-bit products can be looked through", "[templates]") {
  const Registry registry = shipped_kernels();
  for (const char* name : {"gemm_fp8", "gemm_fp8_block", "gemm_fp8_gated_silu"})
    for (const DeviceInfo& device : {small_device(80, "sm_80"), small_device(90, "sm_90a")}) {
      KernelDefinition k = registry.make(name, "bf16");
      k.configs = nullptr;
      CAPTURE(name, device.target.arch);
      const Values problem{256, 4096, 4096};
      const auto list = runtime::candidate_list(k, problem, device, 8, 1);
      CHECK(list.configs.size() == 8);
      for (const Values& config : list.configs)
        CHECK(k.space.violated(config, problem, device.limits) == nullptr);
    }
}

TEST_CASE("points of small spaces stand for configs of the kernels", "[templates]") {
  const DeviceLimits ampere = limits_of(80, 108, 40 << 20), hopper = limits_of(90, 132, 50 << 20);
  const Gemm gated = as_config(GatedMlpTile{64, 64, 32, 4, 3}, ampere);
  CHECK(gated.body == GemmBody::mma);
  CHECK(gated.block_m == 64);
  CHECK(gated.block_n == 128);  // of the product
  CHECK(gated.threads() == 128);
  CHECK(gated.stages == 3);
  CHECK(as_config(GatedMlpTile{32, 32, 64, 8, 2}, ampere).threads() == 256);
  const Gemm fp8 = as_config(Fp8GemmTile{256, 128, 32, 4, 8, 5}, hopper);
  CHECK(fp8.body == GemmBody::tma);
  CHECK(fp8.tma(GemmOperands::fp8_exact).consumers == 2);
  CHECK(fp8.group_m == 4);
  const RopeConfig rope = as_config(RmsnormRopeTile{1024, 2, 3}, ampere);
  CHECK(rope.block == 64);
  CHECK(rope.vector == 8);
  CHECK(rope.pairs == 4);
  CHECK(rope.heads == 4);
}
