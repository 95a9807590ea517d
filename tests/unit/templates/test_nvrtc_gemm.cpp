// The GEMM's kinds through NVRTC: what runs untuned compiles for each architecture without spills,
// for each transposition, with leading dimensions, batches and epilogues.
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "kiln/detail/launch_plan.hpp"
#include "kiln/occupancy.hpp"
#include "nvrtc_test.hpp"
#include "runtime/tune/best_guess.hpp"
#include "templates/kernels.hpp"
#include "templates/small/small_spaces.hpp"

using namespace kiln::templates;
using namespace nvrtc_test;
using kiln::epilogue::Bias, kiln::epilogue::Chain, kiln::epilogue::Gelu, kiln::epilogue::Residual,
    kiln::epilogue::Scale, kiln::epilogue::Silu;

namespace {

DeviceInfo device(const char* arch) {
  DeviceInfo info;
  const std::string name = arch;
  info.target = {Target::Kind::cuda, arch};
  info.limits = name == "sm_80"    ? limits_of(80, 108, 40 << 20)
                : name == "sm_90a" ? limits_of(90, 132, 50 << 20)
                                   : limits_of(100, 148, 126 << 20);
  return info;
}

/// The body that runs untuned, which compiles without warnings and spills.
GemmBody untuned(const KernelDefinition& k, const Values& problem, const char* arch) {
  const DeviceInfo info = device(arch);
  const Values config = runtime::untuned_config(k, problem, info);
  INFO(describe_instance(k, config) << " for " << k.describe_problem(problem) << " on " << arch);
  CHECK(k.space.violated(config, problem, info.limits) == nullptr);
  CHECK(kiln::detail::plan(k, config, problem, info.limits).obstacle(info.limits).empty());
  const Binary binary = must_compile(k, config, arch);
  CHECK(binary.log == "");
  CHECK(binary.resources.spill_stores == 0);
  CHECK(binary.resources.stack == 0);
  return from_values<Gemm>(config).body;
}

/// For few rows of op nt that is a stream.
bool fast(GemmBody body) {
  return body == GemmBody::tma || body == GemmBody::pingpong || body == GemmBody::stream;
}

/// The tile that holds the most of many rows, and of few: one of each problem.
void check_largest_tiles(const KernelDefinition& k, GemmOperands operands, int least_held,
                         std::initializer_list<Values> problems) {
  const DeviceInfo info = device("sm_90a");
  for (const Values& problem : problems) {
    Gemm largest{};
    Values of_largest;
    const auto held = [&](const Gemm& c) { return c.tma(operands).held_sums(); };
    for (const Values& config : k.configs(problem, info.limits)) {
      const Gemm c = from_values<Gemm>(config);
      const bool swapped = problem[0] < 256;
      if (!c.uses_tma() || c.swap != swapped ||
          k.space.violated(config, problem, info.limits) != nullptr)
        continue;
      if (of_largest.empty() || held(c) > held(largest)) {
        largest = c;
        of_largest = config;
      }
    }
    REQUIRE(!of_largest.empty());
    INFO(describe_instance(k, of_largest));
    CHECK(held(largest) >= least_held);
    CHECK(must_compile(k, of_largest, "sm_90a").resources.spill_stores == 0);
  }
}

/// One config of each tile with tensor maps compiles without spills; how many there are.
std::size_t check_each_tile(const KernelDefinition& k) {
  const DeviceInfo info = device("sm_90a");
  std::set<std::array<int, 5>> seen;
  for (const Values& problem : {Values{4096, 14336, 4096}, Values{96, 14336, 4096}})
    for (const Values& config : k.configs(problem, info.limits)) {
      const Gemm c = from_values<Gemm>(config);
      if (!c.uses_tma() || k.space.violated(config, problem, info.limits) != nullptr ||
          !seen.insert({int(c.body), c.block_m, c.block_n, c.block_k, c.swap}).second)
        continue;
      INFO(describe_instance(k, config));
      CHECK(must_compile(k, config, "sm_90a").resources.spill_stores == 0);
    }
  return seen.size();
}

template <GemmTranspose op>
void check_kinds() {
  using Fused = Chain<Bias<bfloat16>, Gelu, Residual<bfloat16>>;
  const auto tight = gemm_kernel<bfloat16, op>().definition();
  const auto fused = gemm_kernel<bfloat16, op, Fused>().definition();
  const auto strided = gemm_strided_kernel<float16, op, Chain<Scale, Silu>>().definition();
  for (const int m : {16, 4096}) {
    CHECK(fast(untuned(tight, {m, 4096, 4096}, "sm_90a")));
    CHECK(fast(untuned(fused, {m, 4096, 4096}, "sm_90a")));
    CHECK(fast(untuned(strided, {m, 1000, 1000, 4104, 4104, 4104, 8, 4104 * 4096, 4104 * 4096, 0},
                       "sm_90a")));
  }
  for (const char* arch : {"sm_80", "sm_100a"}) {
    CHECK(untuned(fused, {64, 4096, 4096}, arch) == GemmBody::mma);
    CHECK(untuned(strided, {64, 100, 72, 4096, 4097, 4096, 3, 1 << 20, 1 << 20, 0}, arch) ==
          GemmBody::mma);
  }
}

}  // namespace

TEST_CASE("gemm: what runs untuned compiles for each kind and architecture", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  check_kinds<GemmTranspose::nt>();
  check_kinds<GemmTranspose::nn>();
  check_kinds<GemmTranspose::tn>();
  check_kinds<GemmTranspose::tt>();
}

TEST_CASE("gemm of unaligned rows: each tile that is shifted compiles without spills",
          "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const KernelDefinition k = gemm_kernel<bfloat16>().definition();
  for (const int m : {1, 16, 100, 4096})
    CHECK(untuned(k, {m, 4096, 4099}, "sm_90a") == GemmBody::shift);
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    std::set<std::array<int, 3>> seen;
    for (const Values& problem : {Values{4096, 4096, 4099}, Values{16, 4096, 4099}})
      for (const Values& config : k.configs(problem, device(arch).limits)) {
        const Gemm c = from_values<Gemm>(config);
        if (c.body != GemmBody::shift || k.space.violated(config, problem, device(arch).limits) ||
            !seen.insert({c.block_m, c.block_n, c.tile_m}).second)
          continue;
        if (std::string_view(arch) != "sm_90a" && seen.size() > 2) break;
        INFO(describe_instance(k, config));
        CHECK(must_compile(k, config, arch).resources.spill_stores == 0);
      }
    CHECK(seen.size() >= 2);
  }
}

TEST_CASE("gemm of 8-bit floats: what runs untuned compiles for each architecture", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  using kiln::epilogue::RowScales, kiln::epilogue::TensorScales;
  const auto check = [](const KernelDefinition& k) {
    for (const int m : {16, 300, 4096}) {
      CHECK(fast(untuned(k, {m, 7168, 2048}, "sm_90a")));
      CHECK(untuned(k, {m, 7168, 2040}, "sm_90a") == GemmBody::simt);  // rows that TMA cannot have
    }
    CHECK(fast(untuned(k, {64, 1003, 4096}, "sm_90a")));  // shared sums need no map of C
    for (const char* arch : {"sm_80", "sm_100a"})
      CHECK(untuned(k, {64, 4096, 4096}, arch) == GemmBody::simt);
  };
  check(gemm_fp8_kernel<TensorScales>().definition());
  check(
      gemm_fp8_kernel<Fp8Epilogue<RowScales, Bias<bfloat16>, Gelu>, Fp8Sums::fast>().definition());
}

TEST_CASE("grouped gemm: what runs untuned compiles for each architecture", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  using Fused = Chain<Bias<bfloat16>, Gelu>;
  const auto contiguous = gemm_grouped_kernel<bfloat16>().definition();
  const auto padded = gemm_padded_kernel<bfloat16, Fused>().definition();
  const auto masked = gemm_masked_kernel<float16, Fused>().definition();
  for (const Values& p :
       {Values{32768, 4096, 7168, 4}, {32768, 7168, 2048, 8}, {8192, 2048, 2048, 128}})
    CHECK(fast(untuned(contiguous, p, "sm_90a")));
  for (const Values& p : {Values{32768, 4096, 7168, 4, 128}, {8192, 2048, 2048, 128, 16}})
    CHECK(fast(untuned(padded, p, "sm_90a")));
  for (const int expected : {16, 500})
    CHECK(fast(untuned(masked, {1024, 4096, 2048, 32, expected}, "sm_90a")));
  CHECK_FALSE(fast(untuned(contiguous, {4096, 1000, 1004, 8}, "sm_90a")));  // no map has such rows
  CHECK_FALSE(fast(untuned(contiguous, {4096, 1004, 1000, 8}, "sm_90a")));  // nor such pieces
  for (const char* arch : {"sm_80", "sm_100a"}) {
    CHECK(untuned(contiguous, {8192, 2048, 2048, 128}, arch) == GemmBody::mma);
    CHECK(untuned(padded, {8192, 2048, 2048, 128, 64}, arch) == GemmBody::mma);
    CHECK(untuned(masked, {64, 2048, 2048, 128, 32}, arch) == GemmBody::mma);
  }
}

TEST_CASE("grouped gemm with scales of blocks: what runs untuned compiles without spills",
          "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const auto contiguous = gemm_grouped_fp8_block_kernel<>().definition();
  const auto padded = gemm_padded_fp8_block_kernel<>().definition();
  const auto masked = gemm_masked_fp8_block_kernel<Bias<bfloat16>, Gelu>().definition();
  for (const Values& p : {Values{32768, 4096, 7168, 4}, {8192, 2048, 2048, 128}})
    CHECK(fast(untuned(contiguous, p, "sm_90a")));
  for (const Values& p : {Values{32768, 4096, 7168, 4, 128}, {8192, 2048, 2048, 128, 16}})
    CHECK(fast(untuned(padded, p, "sm_90a")));
  for (const int expected : {16, 500})
    CHECK(fast(untuned(masked, {1024, 4096, 2048, 32, expected}, "sm_90a")));
  for (const char* arch : {"sm_80", "sm_100a"}) {
    CHECK(untuned(contiguous, {8192, 2048, 2048, 128}, arch) == GemmBody::simt);
    CHECK(untuned(padded, {8192, 2048, 2048, 128, 64}, arch) == GemmBody::simt);
  }
}

TEST_CASE("gated gemm: what runs untuned compiles for each architecture", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const auto silu = gemm_gated_kernel<bfloat16, Silu>().definition();
  const auto gelu = gemm_gated_kernel<float16, Gelu, GatedWeights::interleaved>().definition();
  for (const int m : {16, 64, 4096}) CHECK(fast(untuned(silu, {m, 14336, 4096}, "sm_90a")));
  CHECK(fast(untuned(gelu, {4096, 14336, 4096}, "sm_90a")));
  CHECK(fast(untuned(gelu, {64, 1003, 8192}, "sm_90a")));        // shared sums need no map of C
  CHECK_FALSE(fast(untuned(silu, {64, 1003, 8192}, "sm_90a")));  // groups of 8 rows are not whole
  for (const char* arch : {"sm_80", "sm_100a"})
    CHECK(untuned(silu, {64, 14336, 4096}, arch) == GemmBody::mma);
  CHECK(untuned(gemm_gated_kernel<float, kiln::epilogue::GeluTanh>().definition(), {64, 100, 72},
                "sm_80") == GemmBody::simt);
}

TEST_CASE("gated gemm of 8-bit floats: what runs untuned, and each tile, compiles without spills",
          "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  using kiln::epilogue::GeluTanh, kiln::epilogue::RowScales, kiln::epilogue::TensorScales;
  using enum GatedWeights;
  const auto silu = gemm_fp8_gated_kernel<Silu, RowScales>().definition();
  const auto gelu = gemm_fp8_gated_kernel<Gelu, RowScales, interleaved>().definition();
  const auto sums_fast =
      gemm_fp8_gated_kernel<GeluTanh, TensorScales, stacked, Fp8Sums::fast>().definition();
  for (const KernelDefinition* k : {&silu, &gelu, &sums_fast}) {
    for (const int m : {16, 300, 4096}) CHECK(fast(untuned(*k, {m, 14336, 4096}, "sm_90a")));
    CHECK(untuned(*k, {300, 14336, 4088}, "sm_90a") ==
          GemmBody::simt);  // rows that TMA cannot have
    for (const char* arch : {"sm_80", "sm_100a"})
      CHECK(untuned(*k, {64, 14336, 4096}, arch) == GemmBody::simt);
  }
  CHECK(fast(untuned(gelu, {64, 1003, 8192}, "sm_90a")));        // shared sums need no map of C
  CHECK_FALSE(fast(untuned(silu, {64, 1003, 8192}, "sm_90a")));  // groups of 8 rows are not whole
  const auto blocks = gemm_fp8_block_gated_kernel<Silu>().definition();
  const auto rows = gemm_fp8_block_gated_kernel<Gelu, interleaved>().definition();
  for (const KernelDefinition* k : {&blocks, &rows}) {
    for (const int m : {16, 300, 4096}) CHECK(fast(untuned(*k, {m, 14336, 4096}, "sm_90a")));
    for (const char* arch : {"sm_80", "sm_100a"})
      CHECK(untuned(*k, {64, 14336, 4096}, arch) == GemmBody::simt);
    check_largest_tiles(*k, GemmOperands::fp8_scaled, 192,
                        {Values{4096, 14336, 4096}, {96, 14336, 4096}});
  }

  for (const KernelDefinition* k : {&silu, &gelu})
    check_largest_tiles(*k, GemmOperands::fp8_exact, 144,
                        {Values{4096, 14336, 4096}, {96, 14336, 4096}});
  check_largest_tiles(sums_fast, GemmOperands::fp8, 96,
                      {Values{4096, 14336, 4096}, {96, 14336, 4096}});
}

TEST_CASE(
    "gated gemm to 8-bit floats: what runs untuned, and each tile with scales of blocks, compiles",
    "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const auto tensor = gemm_gated_fp8_tensor_kernel<bfloat16, Silu>().definition();
  const auto blocks = gemm_gated_fp8_blocks_kernel<bfloat16, Silu>().definition();
  const auto gelu =
      gemm_gated_fp8_blocks_kernel<float16, Gelu, GatedWeights::interleaved>().definition();
  for (const int m : {16, 64, 4096}) {
    CHECK(fast(untuned(tensor, {m, 14336, 4096}, "sm_90a")));
    CHECK(fast(untuned(blocks, {m, 14336, 4096}, "sm_90a")));
  }
  CHECK(fast(untuned(gelu, {4096, 14336, 4096}, "sm_90a")));
  CHECK_FALSE(fast(untuned(blocks, {64, 1003, 8192}, "sm_90a")));  // groups of 8 rows are not whole
  for (const char* arch : {"sm_80", "sm_100a"})
    for (const KernelDefinition* k : {&tensor, &blocks, &gelu})
      CHECK(untuned(*k, {64, 14336, 4096}, arch) == GemmBody::mma);
  CHECK(untuned(gemm_gated_fp8_blocks_kernel<float, kiln::epilogue::GeluTanh>().definition(),
                {64, 100, 72}, "sm_80") == GemmBody::simt);

  CHECK(check_each_tile(gelu) >= 4);
}

TEST_CASE(
    "gated gemm of and to 8-bit floats: what runs untuned, and each tile with scales of blocks, "
    "compiles",
    "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  using kiln::epilogue::GeluTanh, kiln::epilogue::RowScales, kiln::epilogue::TensorScales;
  using enum GatedWeights;
  const auto rows = gemm_fp8_gated_fp8_tensor_kernel<Silu, RowScales>().definition();
  const auto blocks = gemm_fp8_block_gated_fp8_blocks_kernel<Silu>().definition();
  const auto gelu = gemm_fp8_block_gated_fp8_blocks_kernel<Gelu, interleaved>().definition();
  const auto exact = gemm_fp8_gated_fp8_blocks_kernel<Gelu, RowScales>().definition();
  const auto sums_fast =
      gemm_fp8_gated_fp8_blocks_kernel<Gelu, RowScales, stacked, Fp8Sums::fast>().definition();
  const auto scaled = gemm_fp8_block_gated_fp8_tensor_kernel<Silu>().definition();
  const auto tensor = gemm_fp8_gated_fp8_blocks_kernel<GeluTanh, TensorScales>().definition();
  for (const KernelDefinition* k : {&rows, &blocks, &gelu, &exact, &sums_fast, &scaled, &tensor}) {
    for (const int m : {16, 300, 4096}) CHECK(fast(untuned(*k, {m, 14336, 4096}, "sm_90a")));
    CHECK(untuned(*k, {300, 1003, 4096}, "sm_90a") == GemmBody::simt);
    for (const char* arch : {"sm_80", "sm_100a"})
      CHECK(untuned(*k, {64, 14336, 4096}, arch) == GemmBody::simt);
  }
  for (const KernelDefinition* k : {&gelu, &exact, &sums_fast}) CHECK(check_each_tile(*k) >= 4);
}

TEST_CASE("the defaults of small spaces compile", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const auto gated = in_small_space(gemm_gated_kernel<bfloat16, Silu>().definition());
  CHECK(untuned(gated, {512, 14336, 4096}, "sm_80") == GemmBody::mma);
  const auto fp8 = in_small_space(gemm_fp8_kernel().definition());
  CHECK(untuned(fp8, {512, 4096, 14336}, "sm_90a") == GemmBody::tma);
  const auto rope = in_small_space(rope_norm_kernel<bfloat16>().definition());
  const Values problem{512, 32, 8, 128, 128, 4096, 1024, 6144, 6144};
  const Binary binary =
      must_compile(rope, runtime::untuned_config(rope, problem, device("sm_80")), "sm_80");
  CHECK(binary.resources.spill_stores == 0);
}

TEST_CASE("gemm with scales of blocks: what runs untuned, and each tile, compiles without spills",
          "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const auto plain = gemm_fp8_block_kernel<>().definition();
  for (const int m : {16, 300, 4096}) CHECK(fast(untuned(plain, {m, 7168, 2048}, "sm_90a")));
  const auto fused = gemm_fp8_block_kernel<Bias<bfloat16>, Gelu>().definition();
  CHECK(fast(untuned(fused, {4096, 4096, 4096}, "sm_90a")));
  for (const char* arch : {"sm_80", "sm_100a"})
    CHECK(untuned(fused, {64, 4096, 4096}, arch) == GemmBody::simt);

  check_largest_tiles(plain, GemmOperands::fp8_scaled, 192,
                      {Values{4096, 7168, 2048}, {96, 7168, 2048}});
}

TEST_CASE("gemm: blocks that share k through the workspace compile without spills", "[templates]") {
  KILN_NEEDS_NVRTC(probe());
  const auto check = [](const KernelDefinition& k, const Values& problem) {
    const DeviceInfo info = device("sm_90a");
    std::array<std::optional<Gemm>, 2> seen;  // the last block adds, a step adds
    for (const Values& config : k.configs(problem, info.limits)) {
      const Gemm c = from_values<Gemm>(config);
      if (c.parts == 1 || std::exchange(seen[c.later], c)) continue;
      INFO(describe_instance(k, config));
      CHECK(k.space.violated(config, problem, info.limits) == nullptr);
      const auto plan = kiln::detail::plan(k, config, problem, info.limits);
      CHECK(plan.obstacle(info.limits).empty());
      CHECK(plan.workspace->bytes > 0);
      CHECK((plan.workspace->semaphores == 0) == c.later);
      const Binary binary = must_compile(k, config, "sm_90a");
      CHECK(binary.log == "");
      CHECK(binary.resources.spill_stores == 0);
      REQUIRE(binary.steps.size() == std::size_t(c.later));
      for (const BinaryEntry& step : binary.steps) CHECK(step.resources.spill_stores == 0);
    }
    CHECK((seen[false] && seen[true]));
  };
  using Fused = Chain<Bias<bfloat16>, Gelu, Residual<bfloat16>>;
  check(gemm_kernel<bfloat16>().definition(), {64, 512, 8192});
  check(gemm_kernel<float16, GemmTranspose::nn, Fused>().definition(), {100, 256, 16384});
  check(gemm_strided_kernel<bfloat16, GemmTranspose::nt, Fused>().definition(),
        {8, 512, 8192, 512, 8192, 8192, 3, 8 * 512, 8 * 8192, 512 * 8192});
}
