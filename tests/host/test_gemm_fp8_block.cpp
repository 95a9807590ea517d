// The shipped GEMM for Hopper on the host with scales of blocks: tiles that reach into one, two and
// three blocks of n, swapped ones, schedules, clusters, parts of k, and ragged edges.
#include <algorithm>
#include <cmath>

#include "gemm_tma_test.hpp"
#include "kiln/block_scales.hpp"
#include "kiln/types.hpp"

using namespace host_test;

namespace {

using kiln::float8_e4m3;
using kiln::templates::GemmOperands;

/// Operands of quarters from -2 to 2 and scales of powers of two, so that all sums are exact. What
/// lies behind the rows of A's scales is NaN.
struct BlockScaled {
  BlockScaled(int rows, int columns, int depth)
      : m(rows),
        n(columns),
        k(depth),
        leading(static_cast<std::size_t>(kiln::scale_leading(m))),
        a(quarters(std::size_t(m) * std::size_t(k), 3)),
        b(quarters(std::size_t(n) * std::size_t(k), 4)),
        scales_a(std::size_t(k / 128) * leading, NAN),
        scales_b(std::size_t(kiln::scale_blocks(n)) * std::size_t(k / 128)) {
    const auto power = [](std::size_t i) { return std::ldexp(1.0f, static_cast<int>(i % 5) - 2); };
    for (std::size_t l = 0; l < std::size_t(k / 128); ++l) {
      for (std::size_t i = 0; i < std::size_t(m); ++i) scales_a[l * leading + i] = power(i + 3 * l);
      for (std::size_t j = 0; j < std::size_t(kiln::scale_blocks(n)); ++j)
        scales_b[j * std::size_t(k / 128) + l] = power(2 * j + l);
    }
  }
  float element(int i, int j) const {
    float sum = 0;
    for (int block = 0; block < k / 128; ++block) {
      float products = 0;
      for (int l = block * 128; l < (block + 1) * 128; ++l)
        products += float(a[std::size_t(i) * std::size_t(k) + std::size_t(l)]) *
                    float(b[std::size_t(j) * std::size_t(k) + std::size_t(l)]);
      sum += products * scales_a[std::size_t(block) * leading + std::size_t(i)] *
             scales_b[std::size_t(j / 128 * (k / 128) + block)];
    }
    return sum;
  }

  int m, n, k;
  std::size_t leading;
  std::vector<float8_e4m3> a, b;
  std::vector<float> scales_a, scales_b;
};

void check_blocks(const GemmTma& c, int m, int n, int k) {
  const auto entry = [&](const char* name) {
    return entry_of(c, GemmTranspose::nt, false, "BlockScales, const float*, const float*", name,
                    "kiln::templates::Fp8<__nv_bfloat16, kiln::templates::Fp8Sums::scaled>");
  };
  CAPTURE(entry("gemm_tma"), m, n, k);
  REQUIRE(c.fits());
  const BlockScaled x(m, n, k);
  std::vector<std::uint16_t> out(std::size_t(m) * std::size_t(n), 0xffff);
  const HostTensorMap map_a = operand_map(c, HostElement::u8, x.a.data(), false, k, m);
  const HostTensorMap map_b = operand_map(c, HostElement::u8, x.b.data(), true, k, n);
  const auto p =
      kiln::templates::gemm_shape<GemmTranspose::nt>(kiln::templates::GemmProblem{m, n, k});
  const std::size_t tiles = std::size_t(c.tiles_m(m, n)) * c.tiles_n(m, n);
  TileWorkspace shared(c, tiles);
  const kiln::Workspace workspace = shared.argument();
  const char* const text = "#include <gemm/fp8/gemm_fp8.cuh>\n#include <gemm/tma/gemm_tma.cuh>\n";
  const auto launch = [&](const auto& where) {
    Kernel(text, entry("gemm_tma"))
        .in_clusters({unsigned(c.cluster())}, {c.grid(m, n, 3)}, {unsigned(c.threads())},
                     c.shared_bytes(), where, map_a, map_b, p, x.scales_a.data(), x.scales_b.data(),
                     workspace);
    if (c.later)
      Kernel(text, entry("gemm_tma_step"))
          .in_clusters({1}, {c.add_grid(tiles)}, {unsigned(c.kAddThreads)}, 0, where, map_a, map_b,
                       p, x.scales_a.data(), x.scales_b.data(), workspace);
  };
  if (c.store_tma)
    launch(store_map(c, out.data(), m, n));
  else
    launch(out.data());

  std::size_t wrong = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j)
      wrong += out[std::size_t(i) * std::size_t(n) + std::size_t(j)] != bf16(x.element(i, j));
  CHECK(wrong == 0);
}

constexpr auto kTogether = GemmSchedule::cooperative, kInTurns = GemmSchedule::pingpong;
constexpr auto kScaled = GemmOperands::fp8_scaled;
constexpr GemmTma kBlockConfigs[] = {
    {kTogether, 128, 64, 128, 3, 2, 1, 1, 1, 1, false, 4, false, true, false, true, false, kScaled},
    {kTogether, 256, 48, 128, 2, 2, 1, 2, 1, 1, false, 2, true, true, false, true, false, kScaled},
    {kTogether, 64, 208, 128, 2, 1, 1, 1, 1, 1, false, 2, true, true, false, true, true, kScaled},
    {kInTurns, 128, 96, 128, 4, 2, 2, 1, 1, 1, false, 1, false, true, false, true, false, kScaled},
    {kTogether, 64, 40, 128, 2, 1, 1, 1, 2, 1, false, 1, false, false, false, false, false,
     kScaled},
    {kTogether, 64, 24, 128, 4, 1, 1, 1, 1, 1, false, 3, false, true, true, true, false, kScaled},
    {kTogether, 128, 144, 128, 2, 2, 1, 1, 1, 1, false, 2, false, true, false, true, false,
     kScaled},
    {kTogether, 128, 24, 128, 3, 2, 1, 1, 1, 2, false, 1, false, false, true, false, false,
     kScaled},
};

/// With scales for half of the stages.
constexpr GemmTma with_few_scales(GemmTma c) {
  c.few_scales = true;
  return c;
}
constexpr GemmTma kFewScales[] = {
    with_few_scales({kTogether, 256, 48, 128, 4, 2, 1, 2, 1, 1, false, 2, true, true, false, true,
                     false, kScaled}),
    with_few_scales({kTogether, 192, 64, 128, 4, 3, 1, 1, 1, 1, false, 2, true, true, false, true,
                     false, kScaled}),
    with_few_scales(kBlockConfigs[3]),
    with_few_scales(kBlockConfigs[5]),
};

}  // namespace

TEST_CASE("the GEMM for Hopper multiplies each 128 k with the scales of their blocks",
          "[host][gemm_tma][long]") {
  for (const GemmTma& c : kBlockConfigs) {
    check_blocks(c, 40, 152, 384);
    check_blocks(c, 24, 8, 128);
    if (!c.store_tma) check_blocks(c, 70, 139, 256);  // rows of C begin anywhere
  }
  check_blocks(kBlockConfigs[2], 40, 424, 256);  // the second tile lies in three blocks
  for (const GemmTma& c : kFewScales) check_blocks(c, 280, 408, 1152);
}

TEST_CASE("the GEMM for Hopper scales blocks: one config of each kind", "[host][gemm_tma]") {
  check_blocks(kBlockConfigs[1], 22, 152, 256);
  check_blocks(kBlockConfigs[5], 22, 152, 256);
}
