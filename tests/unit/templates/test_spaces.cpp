// Spaces against the limits of real devices: defaults are allowed, and so is enough around them;
// whatever constraints allow can be launched.
#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "kiln/detail/launch_plan.hpp"
#include "kiln/occupancy.hpp"
#include "kiln/registry.hpp"
#include "kiln/space_query.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/tune/best_guess.hpp"
#include "space_limits.hpp"
#include "template_test.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

struct Case {
  const char* name;
  std::vector<Values> problems;
};
const std::vector<Case> kCases{
    {"vector_add", {{1}, {1 << 20}}},
    {"residual_add", {{1, 4096}, {2048, 8192}}},
    {"silu_mul", {{1, 64}, {16, 14336}, {2048, 8192}, {3, 37}}},
    {"silu_mul_fp8_rows", {{1, 64}, {16, 14336}, {2048, 8192}, {3, 37}}},
    {"gelu_mul_fp8_blocks", {{1, 64}, {16, 14336}, {2048, 8192}, {3, 37}}},
    {"relu_mul_fp8_tensor", {{1, 64}, {16, 14336}, {2048, 8192}, {3, 37}}},
    {"rmsnorm", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"rmsnorm_residual", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"rmsnorm_fp8", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"rmsnorm_fp8_blocks", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"rmsnorm_residual_fp8", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"rmsnorm_residual_fp8_blocks", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"layernorm", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"softmax", {{1, 64}, {16, 4096}, {64, 262144}, {3, 37}}},
    {"cross_entropy", {{1, 64}, {16, 50257}, {2048, 131072}, {3, 37}}},
    {"quantize_rows", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"quantize_blocks", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"quantize_tensor", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"quantize_tensor_dynamic", {{1, 64}, {16, 4096}, {2048, 8192}, {3, 37}}},
    {"quantize_blocks_masked", {{1, 64, 1}, {64, 7168, 128}, {1024, 4096, 4}, {3, 37, 5}}},
    {"quantize_weights", {{1, 64, 1}, {2048, 7168, 128}, {4096, 14336, 1}, {3, 37, 5}}},
    {"rope",
     {{1, 32, 8, 128, 128, 4096, 1024, 6144, 6144},
      {16384, 8, 1, 256, 64, 2048, 256, 2560, 2560},
      {7, 3, 2, 37, 12, 111, 74, 112, 75}}},
    {"rope_norm_paged_interleaved",
     {{1, 32, 8, 128, 128, 16, 16384, 4096, 6144, 6145, 6146},
      {512, 8, 1, 1024, 1022, 64, 65536, 8192, 10240, 10240, 10240}}},
    {"sort_by_expert", {{1, 8, 128}, {256, 8, 384}, {16384, 2, 8}, {700, 1, 64}}},
    {"gemm", {{1, 1, 1}, {16, 14336, 4096}, {4096, 4096, 4096}}},
    {"gemm_fp8", {{1, 1, 1}, {16, 14336, 4096}, {4096, 4096, 4096}, {64, 1000, 1001}}},
    {"gemm_fp8_rows_fast", {{1, 1, 1}, {16, 14336, 4096}, {4096, 4096, 4096}}},
    {"gemm_fp8_block", {{1, 1, 128}, {16, 14336, 4096}, {4096, 4096, 4096}}},
    {"gemm_grouped", {{1, 1, 1, 1}, {8192, 2048, 2048, 128}, {32768, 4096, 7168, 4}}},
    {"gemm_padded", {{1, 1, 1, 1, 1}, {8192, 2048, 2048, 128, 16}, {32768, 4096, 7168, 4, 128}}},
    {"gemm_masked", {{1, 1, 1, 1, 0}, {64, 2048, 2048, 128, 32}, {1024, 4096, 7168, 4, 1000}}},
    {"gemm_grouped_fp8_block", {{1, 1, 128, 1}, {8192, 2048, 2048, 128}, {32768, 4096, 7168, 4}}},
    {"gemm_padded_fp8_block", {{1, 1, 128, 1, 1}, {32768, 4096, 7168, 4, 128}}},
    {"gemm_masked_fp8_block", {{1, 1, 128, 1, 0}, {64, 2048, 2048, 128, 32}}},
    {"gemm_gated_silu", {{1, 1, 1}, {16, 14336, 4096}, {4096, 14336, 4096}, {64, 1003, 1000}}},
    {"gemm_gated_gelu_interleaved", {{1, 1, 1}, {16, 14336, 4096}, {512, 1003, 1000}}},
    {"gemm_gated_silu_fp8_tensor", {{1, 1, 1}, {16, 14336, 4096}, {64, 1003, 1000}}},
    {"gemm_gated_silu_fp8_blocks", {{1, 1, 1}, {16, 14336, 4096}, {4096, 14336, 4096}}},
    {"gemm_gated_gelu_fp8_blocks_interleaved", {{1, 1, 1}, {512, 1003, 1000}}},
    {"gemm_fp8_rows_gated_silu",
     {{1, 1, 1}, {16, 14336, 4096}, {4096, 14336, 4096}, {64, 1003, 1001}}},
    {"gemm_fp8_fast_gated_gelu_interleaved", {{1, 1, 1}, {16, 14336, 4096}, {512, 1003, 1024}}},
    {"gemm_fp8_block_gated_silu", {{1, 1, 128}, {16, 14336, 4096}, {4096, 14336, 4096}}},
    {"gemm_fp8_block_gated_silu_fp8_blocks", {{1, 1, 128}, {16, 14336, 4096}, {4096, 14336, 4096}}},
    {"gemm_fp8_rows_gated_gelu_fp8_blocks_interleaved", {{1, 1, 1}, {512, 1003, 1000}}},
    {"gemm_fp8_rows_gated_silu_fp8_tensor", {{1, 1, 1}, {16, 14336, 4096}, {64, 1003, 1001}}},
    {"interleave_gate_up", {{1, 1}, {14336, 4096}, {1003, 1001}}},
    {"gemm_tt", {{1, 1, 1}, {16, 14336, 4096}, {4096, 4096, 4096}}},
    {"gemm_strided_nn",
     {{1, 1, 1, 1, 1, 1, 1, 0, 0, 0}, {64, 64, 128, 72, 128, 64, 512, 4608, 8192, 0}}}};

/// Those of `types` that a kernel has.
auto types_of(const Registry& registry, const std::string& name,
              std::vector<std::string> types = {"f32", "f16", "bf16", "i32", "e4m3"}) {
  const auto kernel = std::ranges::find(registry.kernels(), name, &RegisteredKernel::name);
  std::erase_if(types, [&](const std::string& type) {
    return std::ranges::find(kernel->types, type) == kernel->types.end();
  });
  return types;
}

}  // namespace

TEST_CASE("every default is allowed wherever its kernel runs", "[templates]") {
  const Registry registry = shipped_kernels();
  for (const Case& c : kCases)
    for (const std::string& type : types_of(registry, c.name))
      for (const DeviceLimits& d :
           {gpu(80, 164), gpu(86, 100), gpu(90, 228), gpu(100, 228), host()})
        for (const Values& problem : c.problems) {
          const KernelDefinition k = registry.make(c.name, type);
          INFO(c.name << " " << type << " cc " << d.compute_capability << " "
                      << k.describe_problem(problem));
          const Constraint* violated =
              k.space.violated(k.space.default_config(d.compute_capability ? Target::Kind::cuda
                                                                           : Target::Kind::host),
                               problem, d);
          INFO((violated ? violated->reason : ""));
          CHECK(violated == nullptr);
          const Values own = k.default_for ? k.default_for(problem, d) : Values{};
          const Constraint* forbids = own.empty() ? nullptr : k.space.violated(own, problem, d);
          INFO((forbids ? k.space.describe(own) + ": " + forbids->reason : ""));
          CHECK(forbids == nullptr);
        }
}

TEST_CASE("what rows run with untuned is allowed, and keeps what it can", "[templates]") {
  const Registry registry = shipped_kernels();
  DeviceLimits hopper = gpu(90, 228);
  hopper.max_cluster_blocks = 8;
  DeviceLimits few_threads = gpu(86, 100);
  few_threads.max_threads_per_multiprocessor = 1536;
  for (const DeviceLimits& d : {gpu(80, 164), few_threads, hopper})
    for (const char* type : {"f32", "bf16"})
      for (const char* name :
           {"rmsnorm", "rmsnorm_residual", "rmsnorm_fp8", "rmsnorm_fp8_blocks",
            "rmsnorm_residual_fp8", "layernorm", "softmax", "cross_entropy", "quantize_rows"}) {
        const KernelDefinition k = registry.make(name, type);
        for (const std::int64_t width :
             {1,     7,     256,   1000,  1536,  2048,  2049,   4096,   5120,   8192,   14336,
              16384, 16392, 28672, 32000, 50257, 65536, 128256, 131072, 131080, 262144, 2147483647})
          for (const std::int64_t rows : {1, 132, 133, 512, 1000, 1057, 8192, 1000000}) {
            const Values problem{rows, width};
            const Values config = k.default_for(problem, d);
            if (config.empty()) continue;
            INFO(k.describe_problem(problem) << " " << k.space.describe(config));
            const Constraint* forbids = k.space.violated(config, problem, d);
            INFO(name << " " << type << " " << (forbids ? forbids->reason : ""));
            CHECK(forbids == nullptr);
          }
      }
  const auto untuned = [&](const char* name, const Values& problem) {
    const KernelDefinition k = registry.make(name, "bf16");
    return k.space.describe(k.default_for(problem, hopper));
  };
  CHECK(untuned("softmax", {512, 128256}).find("kept=8") != std::string::npos);
  CHECK(untuned("softmax", {512, 128256}).find("cluster=8") != std::string::npos);
  CHECK(untuned("softmax", {512, 32000}).find("block=512") != std::string::npos);
  CHECK(untuned("quantize_rows", {512, 14336}).find("block=512") != std::string::npos);
  hopper.multiprocessors = 132;
  CHECK(untuned("rmsnorm", {8192, 4096}).starts_with("block=128,rows_per_block=1,vector=8,kept=4"));
  CHECK(untuned("rmsnorm", {64, 4096}).starts_with("block=256,rows_per_block=1,vector=8,kept=2"));
  CHECK(untuned("cross_entropy", {16384, 2048}).starts_with("block=128,rows_per_block=4"));
  CHECK(untuned("cross_entropy", {32, 32768}).find("cluster=8") != std::string::npos);
}

TEST_CASE("few columns of gate and up have a list, too, where tiles with scales are too wide",
          "[templates]") {
  DeviceLimits hopper = gpu(90, 228);
  hopper.tensor_maps = true;
  for (const auto& [name, type] : {std::pair{"gemm_gated_silu_fp8_blocks", "bf16"},
                                   {"gemm_fp8_block_gated_silu_fp8_blocks", "e4m3"}}) {
    const KernelDefinition k = shipped_kernels().make(name, type);
    for (const Values& problem : {Values{16, 8, 4096}, {16, 56, 4096}, {16, 264, 4096}}) {
      CAPTURE(name, problem[1]);
      CHECK(std::ranges::any_of(k.configs(problem, hopper), [&](const Values& config) {
        return !k.space.violated(config, problem, hopper);
      }));
    }
  }
}

TEST_CASE("allowed configs launch within the device's limits", "[templates][long]") {
  const Registry registry = shipped_kernels();
  std::mt19937 random(3);
  for (const Case& c : kCases)
    for (const std::string& type : types_of(registry, c.name, {"f32", "bf16", "i32", "e4m3"}))
      for (const DeviceLimits& d : {gpu(80, 164), host()}) {
        const KernelDefinition k = registry.make(c.name, type);
        std::set<Values> allowed;
        int wrong = 0;
        std::vector<std::vector<Values>> listed;  // by problem
        for (const Values& problem : c.problems)
          listed.push_back(k.configs ? k.configs(problem, d) : std::vector<Values>{});
        for (int i = 0; i < 40000; ++i) {
          const std::size_t at = random() % c.problems.size();
          const Values& problem = c.problems[at];
          Values config;
          if (!listed[at].empty())
            config = listed[at][random() % listed[at].size()];
          else
            for (const Parameter& p : k.space.parameters())
              config.push_back(p.values[random() % p.values.size()]);
          if (k.space.violated(config, problem, d)) continue;
          allowed.insert(config);
          const Launch g = k.launch(config, problem, {});
          if (g.block.x < 1 || g.block.x > 1024u || g.grid.x < 1 || g.block.y * g.block.z != 1 ||
              g.shared_bytes > static_cast<unsigned>(d.shared_per_block_optin))
            ++wrong;
        }
        INFO(c.name << " " << type << " cc " << d.compute_capability);
        CHECK(wrong == 0);
        CHECK(allowed.size() >= (c.name == std::string("quantize_weights") ? 3U : 12U));
      }
}

TEST_CASE("tensor cores are left out where there are none", "[templates]") {
  const KernelDefinition k = shipped_kernels().make("gemm", "f16");
  const Values problem{64, 64, 64};
  const Constraint* violated = k.space.violated(k.space.default_config(), problem, gpu(75, 164));
  REQUIRE(violated);
  CHECK(violated->reason.find("sm_80") != std::string::npos);
}

TEST_CASE("buckets hold their problems, and are their own bucket", "[templates]") {
  const Registry registry = shipped_kernels();
  for (const Case& c : kCases) {
    const KernelDefinition k = registry.make(c.name);
    if (k.problem_fields.size() > 3) continue;  // distances grow with counts
    for (std::int64_t count : {1, 2, 3, 5, 1000, 1024, 1025, (1 << 30) + 1}) {
      Values problem = c.problems.back();
      problem[0] = count;
      const Values bucket = k.bucketed(problem);
      INFO(c.name << " " << count);
      CHECK(bucket[0] >= count);
      CHECK((bucket[0] < 2 * count || count == 1));
      CHECK(k.bucketed(bucket) == bucket);
      for (std::size_t i = 1; i < problem.size(); ++i) CHECK(bucket[i] == problem[i]);
    }
  }
}

TEST_CASE("a product's rows are tuned for counts that pad them by less than a quarter",
          "[templates]") {
  const KernelDefinition k = shipped_kernels().make("gemm", "bf16");
  const auto bucket = [&](std::int64_t m) { return k.bucketed(Values{m, 64, 64})[0]; };
  CHECK(bucket(16) == 16);
  CHECK(bucket(17) == 32);
  CHECK(bucket(33) == 48);
  CHECK(bucket(300) == 320);
  CHECK(bucket(777) == 896);
  CHECK(bucket(1000) == 1024);
  for (std::int64_t m = 65; m < 5000; ++m) {
    INFO(m);
    CHECK(4 * bucket(m) < 5 * m + 60);
  }
}

TEST_CASE("shipped kernels hold their counts to the problem", "[templates]") {
  const Registry registry = shipped_kernels();
  for (const Case& c : kCases)
    for (const std::string& type : types_of(registry, c.name)) {
      const KernelDefinition k = registry.make(c.name, type);
      INFO(c.name << " " << type);
      // A label that is ignored; how far positions and slots reach.
      const std::string name = c.name;
      const int others = name.starts_with("rope") ? 1 + (name.find("paged") != name.npos)
                                                  : name == "cross_entropy";
      CHECK(static_cast<std::ptrdiff_t>(k.relations.size()) ==
            std::count(k.arguments.begin(), k.arguments.end(), "int") +
                std::count(k.arguments.begin(), k.arguments.end(), "long") - others);
      for (const std::string& field : k.problem_fields)
        CHECK(std::count_if(k.relations.begin(), k.relations.end(),
                            [&](const ArgumentIsField& r) { return r.field == field; }) == 1);
      Workload workload;
      Values problem(k.problem_fields.size());
      std::iota(problem.begin(), problem.end(), 24);
      if (name.starts_with("rope")) problem = c.problems.back();  // strides hold their rows
      k.workload(problem, workload);
      for (const ArgumentIsField& r : k.relations) {
        const Workload::Argument& argument = workload.arguments()[r.argument];
        const bool wide = argument.type == DataType::i64;
        REQUIRE((wide || argument.type == DataType::i32));
        const auto field = std::find(k.problem_fields.begin(), k.problem_fields.end(), r.field);
        REQUIRE(field != k.problem_fields.end());
        const auto* const value = argument.bytes.data();
        CHECK((wide ? *reinterpret_cast<const std::int64_t*>(value)
                    : *reinterpret_cast<const int*>(value)) ==
              problem[static_cast<std::size_t>(field - k.problem_fields.begin())]);
      }
    }
}

TEST_CASE("a GEMM of any shape has a config on Hopper, whatever its operands' order",
          "[templates]") {
  const Registry registry = shipped_kernels();
  const DeviceLimits hopper = limits_of(90, 132, 50 << 20);
  for (const char* name : {"gemm", "gemm_nn", "gemm_tn", "gemm_tt"}) {
    const KernelDefinition k = registry.make(name, "bf16");
    for (const std::int64_t rows : {1, 8, 16, 40, 64, 256, 264, 4096})
      for (const std::int64_t columns : {1, 8, 16, 24, 64, 4096})
        for (const std::int64_t depth : {8, 64, 4096}) {
          const Values problem{rows, columns, depth};
          INFO(name << " " << k.describe_problem(problem));
          const auto configs = k.configs(problem, hopper);
          CHECK(std::any_of(configs.begin(), configs.end(), [&](const Values& config) {
            return k.space.violated(config, problem, hopper) == nullptr;
          }));
        }
  }
}

TEST_CASE("batches of a GEMM count, and an operand that they share counts once", "[templates]") {
  const KernelDefinition k = shipped_kernels().make("gemm_strided", "bf16");
  const DeviceLimits hopper = limits_of(90, 132, 50 << 20);
  constexpr std::int64_t n = 256, size = 4096;
  const auto problem = [](std::int64_t m, std::int64_t batch, bool shared) {
    return Values{m, n, size, n, size, size, batch, m * n, m * size, shared ? 0 : n * size};
  };
  CHECK(k.bytes(problem(8, 64, false)) == 2.0 * 64 * (8 * size + n * size + 8 * n));
  CHECK(k.bytes(problem(8, 64, true)) == 2.0 * (64 * (8 * size + 8 * n) + n * size));
  for (const std::int64_t m : {8, 64}) {
    std::set<std::int64_t> bodies;
    for (const Values& config : k.configs(problem(m, 64, false), hopper)) {
      if (k.space.violated(config, problem(m, 64, false), hopper)) continue;
      bodies.insert(config[0]);
      INFO(k.space.describe(config));
      const auto cost = [&](bool shared) { return k.cost(config, problem(m, 64, shared), hopper); };
      // 64 times 2 MiB take an H200's memory 33 us.
      CHECK(cost(false) > 33e-6);
      CHECK(cost(true) <= cost(false));
    }
    CHECK(bodies.size() >= (m == 8 ? 2 : 1));
  }
}

TEST_CASE("an unknown element type is the caller's mistake", "[templates]") {
  CHECK_THROWS_AS(shipped_kernels().make("gemm", "f8"), UserError);
}

TEST_CASE("problems without elements, or without k, have a config that runs", "[templates]") {
  const Registry registry = shipped_kernels();
  const std::vector<Case> cases{
      {"vector_add", {{0}}},
      {"residual_add", {{0, 8}, {8, 0}}},
      {"silu_mul", {{0, 64}, {8, 0}}},
      {"silu_mul_fp8_rows", {{0, 64}, {8, 0}}},
      {"silu_mul_fp8_blocks", {{0, 64}, {8, 0}}},
      {"silu_mul_fp8_tensor", {{0, 64}, {8, 0}}},
      {"rmsnorm", {{0, 64}, {8, 0}}},
      {"rmsnorm_residual", {{0, 64}, {8, 0}}},
      {"rmsnorm_fp8", {{0, 64}, {8, 0}}},
      {"rmsnorm_fp8_blocks", {{0, 64}, {8, 0}}},
      {"rmsnorm_residual_fp8", {{0, 64}, {8, 0}}},
      {"rmsnorm_residual_fp8_blocks", {{0, 64}, {8, 0}}},
      {"layernorm", {{0, 64}, {8, 0}}},
      {"softmax", {{0, 64}, {8, 0}}},
      {"cross_entropy", {{0, 64}, {8, 0}}},
      {"quantize_rows", {{0, 64}, {8, 0}}},
      {"quantize_blocks", {{0, 64}, {8, 0}}},
      {"quantize_tensor", {{0, 64}, {8, 0}}},
      {"quantize_tensor_dynamic", {{0, 64}, {8, 0}}},
      {"quantize_blocks_masked", {{0, 64, 2}, {8, 0, 2}, {8, 64, 0}}},
      {"quantize_weights", {{0, 64, 2}, {8, 0, 2}, {8, 64, 0}}},
      {"rope", {{0, 8, 2, 64, 64, 512, 128, 512, 128}, {1, 0, 0, 64, 64, 0, 0, 0, 0}}},
      {"interleave_gate_up", {{0, 64}, {8, 0}}},
      {"sort_by_expert", {{0, 8, 128}, {8, 0, 128}, {8, 2, 0}, {0, 0, 0}}},
      {"gemm", {{0, 8, 8}, {8, 0, 8}, {8, 8, 0}, {0, 0, 0}}},
      {"gemm_gated_silu", {{0, 8, 8}, {8, 0, 8}, {8, 8, 0}, {0, 0, 0}}},
      {"gemm_gated_silu_fp8_tensor", {{0, 8, 8}, {8, 0, 8}, {8, 8, 0}, {0, 0, 0}}},
      {"gemm_fp8_rows_gated_silu", {{0, 8, 16}, {8, 0, 16}, {8, 8, 0}, {0, 0, 0}}},
      {"gemm_gated_silu_fp8_blocks", {{0, 8, 8}, {8, 0, 8}, {8, 8, 0}, {0, 0, 0}}},
      {"gemm_fp8_block_gated_silu_fp8_blocks", {{0, 8, 128}, {8, 0, 128}, {8, 8, 0}, {0, 0, 0}}}};
  for (const Case& c : cases)
    for (const std::string& type : types_of(registry, c.name))
      for (const auto& [capability, arch] :
           {std::pair{80, "sm_80"}, {90, "sm_90a"}, {100, "sm_100a"}})
        for (const Values& problem : c.problems) {
          const KernelDefinition k = registry.make(c.name, type);
          DeviceInfo device;
          device.target = Target::parse(arch);
          device.limits = limits_of(capability, 132, 50 << 20);
          const Values config = runtime::untuned_config(k, problem, device);
          INFO(k.space.describe(config)
               << " for " << k.describe_problem(problem) << " on " << arch);
          CHECK(k.space.violated(config, problem, device.limits) == nullptr);
          const detail::LaunchPlan plan = detail::plan(k, config, problem, device.limits);
          CHECK(plan.obstacle(device.limits).empty());
          const bool without_k_alone = c.problems.size() == 4 && problem[0] > 0 && problem[1] > 0;
          if (without_k_alone) CHECK(plan.launch.grid.x > 0);
          // No other config that the device could not run is allowed either.
          if (!k.configs) continue;
          for (const Values& other : k.configs(Values{64, 64, 64}, device.limits)) {
            if (k.space.violated(other, problem, device.limits)) continue;
            INFO(k.space.describe(other));
            CHECK(detail::plan(k, other, problem, device.limits).obstacle(device.limits).empty());
          }
        }
}

TEST_CASE("problems of more than 2^31 elements are planned as they are", "[templates]") {
  const Registry registry = shipped_kernels();
  DeviceInfo hopper;
  hopper.target = Target::parse("sm_90a");
  hopper.limits = limits_of(90, 132, 50 << 20);
  for (const char* type : {"f32", "bf16"}) {
    const double bytes = type == std::string("f32") ? 4 : 2;
    const KernelDefinition gemm = registry.make("gemm", type);
    const Values problem{131072, 65536, 32768};
    CHECK(gemm.flops(problem) == 2 * 131072.0 * 65536 * 32768);
    CHECK(gemm.bytes(problem) == bytes * (131072.0 * 32768 + 65536.0 * 32768 + 131072.0 * 65536));
    int planned = 0;
    for (const Values& config : gemm.configs(problem, hopper.limits)) {
      if (gemm.space.violated(config, problem, hopper.limits)) continue;
      INFO(gemm.space.describe(config));
      const detail::LaunchPlan plan = detail::plan(gemm, config, problem, hopper.limits);
      CHECK(plan.obstacle(hopper.limits).empty());
      CHECK(gemm.cost(config, problem, hopper.limits) > 0);
      for (const detail::PlannedMap& planned_map : plan.maps) {
        const TensorMap& map = planned_map.map;
        CHECK(map.stride[1] >= map.size[0] * static_cast<std::uint64_t>(bytes));
      }
      ++planned;
    }
    CHECK(planned > 0);
    const KernelDefinition add = registry.make("residual_add", type);
    const Values rows{70000, 65536};
    CHECK(add.bytes(rows) == 3 * bytes * 70000 * 65536);
    const Launch launch = add.launch(Values{256, 8}, rows, hopper.limits);
    CHECK(launch.grid.x == (70000ull * 65536 + 2047) / 2048);
    const KernelDefinition norm = registry.make("rmsnorm", type);
    CHECK(norm.bytes(Values{100000, 65536}) == bytes * (2 * 100000.0 + 1) * 65536);
  }
}

TEST_CASE("spaces of kernels over rows are small, and one that walks has rows to walk over",
          "[templates]") {
  const Registry registry = shipped_kernels();
  const DeviceLimits hopper = limits_of(90, 132, 50 << 20);
  for (const char* name :
       {"rmsnorm_residual", "rmsnorm_fp8", "rmsnorm_fp8_blocks", "rmsnorm_residual_fp8",
        "rmsnorm_residual_fp8_blocks", "quantize_tensor_dynamic", "layernorm", "softmax", "rmsnorm",
        "cross_entropy", "quantize_rows", "quantize_blocks", "quantize_tensor", "silu_mul_fp8_rows",
        "silu_mul_fp8_blocks", "silu_mul_fp8_tensor"})
    for (const char* type : {"f32", "bf16"})
      for (const Values& problem :
           {Values{1, 4096}, Values{512, 4096}, Values{32768, 4096}, Values{4096, 262144}}) {
        const KernelDefinition k = registry.make(name, type);
        INFO(name << " " << type << " " << k.describe_problem(problem));
        int allowed = 0, walking = 0;
        for_each_config(k.space, problem, hopper,
                        [&](std::span<const std::int64_t> config, const Constraint* violated) {
                          if (violated) return true;
                          ++allowed;
                          walking += config[5] != 0;
                          const Launch g = k.launch(config, problem, hopper);
                          const auto resident =
                              static_cast<unsigned>(config.size() > 6 ? config[6] : 0);
                          CHECK((config[5] == 0 || g.grid.x == 132u * (resident / g.block.x)));
                          return true;
                        });
        CHECK((allowed >= (problem[1] > 100'000 ? 1 : 10) && allowed < 140));
        if (problem[0] == 1) CHECK(walking == 0);
      }
}

TEST_CASE("grids of absurd problems are too large, not empty", "[templates]") {
  const Registry registry = shipped_kernels();
  constexpr std::int64_t kMost = 2147483647;
  const auto too_large = [](const KernelDefinition& kernel, const Values& problem) {
    const Launch g = kernel.launch(kernel.space.default_config(), problem, {});
    CHECK(g.grid.x == 4294967295u);
    return kiln::runtime::launch_obstacle(g, {}).find("a grid of 4294967295x1x1, but the device") ==
           0;
  };
  // 2^25 by 2^25 blocks: 2^32 divides their product.
  CHECK(too_large(registry.make("gemm", "f32"), {kMost, kMost, 1}));
  CHECK(too_large(registry.make("gemm", "bf16"), {kMost, kMost, 1}));
  CHECK(too_large(registry.make("residual_add", "f32"), {kMost, kMost}));
  CHECK(too_large(registry.make("silu_mul", "f32"), {kMost, kMost}));
  const KernelDefinition rmsnorm = registry.make("rmsnorm", "f32");
  Values config = rmsnorm.space.default_config();
  config[1] = 8;  // rows per block
  CHECK(rmsnorm.launch(config, Values{kMost, 1}, {}).grid.x == 268435456u);
  // A product just above 2^32 is not a small one.
  const KernelDefinition gemm = registry.make("gemm", "f32");
  CHECK(gemm.launch(gemm.space.default_config(), Values{4194368, 4194304, 1}, {}).grid.x ==
        4294967295u);
  CHECK(gemm.launch(gemm.space.default_config(), Values{1, 1, 1}, {}).grid.x == 1);
}
