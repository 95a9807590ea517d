// The shipped GEMM for Hopper on the host with 8-bit operands: schedules, clusters, parts of k,
// sums that are added in float, ragged edges and scales.
#include <algorithm>
#include <cmath>

#include "gemm_tma_test.hpp"
#include "kiln/types.hpp"

using namespace host_test;

namespace {

using kiln::float8_e4m3;
using kiln::templates::GemmOperands;
using kiln::templates::GemmShape;

/// Quarters from -2 to 2: sums of products are exact.
std::vector<float8_e4m3> random_e4m3(std::size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float8_e4m3> values(n);
  for (float8_e4m3& value : values)
    value = float8_e4m3(static_cast<float>(static_cast<int>(random() % 17) - 8) / 4.0f);
  return values;
}

const char* const kText = "#include <gemm/fp8/gemm_fp8.cuh>\n#include <gemm/tma/gemm_tma.cuh>\n";

std::string entry_of_fp8(const GemmTma& c, const std::string& name) {
  const std::string sums = c.operands == GemmOperands::fp8 ? "fast" : "exact";
  return entry_of(c, GemmTranspose::nt, false, "RowScales, const float*, const float*", name,
                  "kiln::templates::Fp8<__nv_bfloat16, kiln::templates::Fp8Sums::" + sums + ">");
}

void check_product(const GemmTma& c, int m, int n, int k) {
  CAPTURE(entry_of_fp8(c, "gemm_tma"), m, n, k);
  REQUIRE(c.fits());
  const auto a = random_e4m3(std::size_t(m) * k, 3), b = random_e4m3(std::size_t(n) * k, 4);
  const std::vector<float> powers{0.25f, -0.5f, 1, 2, 4};
  std::vector<float> scales_a(std::size_t(m), 1), scales_b(std::size_t(n), 1);
  for (std::size_t i = 0; i < scales_a.size(); ++i) scales_a[i] = powers[i % powers.size()];
  for (std::size_t j = 0; j < scales_b.size(); ++j) scales_b[j] = powers[j * 3 % powers.size()];
  std::vector<std::uint16_t> out(std::size_t(m) * n, 0xffff);

  const HostTensorMap map_a = operand_map(c, HostElement::u8, a.data(), false, k, m);
  const HostTensorMap map_b = operand_map(c, HostElement::u8, b.data(), true, k, n);
  const GemmShape<false> p =
      kiln::templates::gemm_shape<GemmTranspose::nt>(kiln::templates::GemmProblem{m, n, k});
  const std::size_t tiles = std::size_t(c.tiles_m(m, n)) * c.tiles_n(m, n);
  TileWorkspace shared(c, tiles);
  const kiln::Workspace workspace = shared.argument();
  const auto launch = [&](const auto& where) {
    Kernel(kText, entry_of_fp8(c, "gemm_tma"))
        .in_clusters({unsigned(c.cluster())}, {c.grid(m, n, 3)}, {unsigned(c.threads())},
                     c.shared_bytes(), where, map_a, map_b, p, scales_a.data(), scales_b.data(),
                     workspace);
    if (c.later)
      Kernel(kText, entry_of_fp8(c, "gemm_tma_step"))
          .in_clusters({1}, {c.add_grid(tiles)}, {unsigned(c.kAddThreads)}, 0, where, map_a, map_b,
                       p, scales_a.data(), scales_b.data(), workspace);
  };
  if (c.store_tma)
    launch(store_map(c, out.data(), m, n));
  else
    launch(out.data());

  std::size_t wrong = 0;
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = 0;
      for (int l = 0; l < k; ++l)
        sum += float(a[std::size_t(i) * k + l]) * float(b[std::size_t(j) * k + l]);
      const float scaled = sum * (scales_a[std::size_t(i)] * scales_b[std::size_t(j)]);
      wrong += out[std::size_t(i) * n + j] != bf16(scaled);
    }
  CHECK(wrong == 0);
  CHECK(shared.ready_again());
}

constexpr auto kCooperative = GemmSchedule::cooperative, kPingpong = GemmSchedule::pingpong;
constexpr auto kFast = GemmOperands::fp8, kExact = GemmOperands::fp8_exact;
// With exact sums, those of a slice are added while the next is multiplied, or before it, by one
// tile of 64 rows or by two.
constexpr GemmTma kConfigs[] = {
    {kCooperative, 128, 64, 128, 3, 2, 1, 1, 1, 1, false, 4, false, true, false, true, false,
     kExact},
    {kCooperative, 256, 48, 128, 2, 2, 1, 2, 1, 1, false, 2, true, true, false, true, false,
     kExact},
    {kCooperative, 64, 208, 128, 2, 1, 1, 1, 1, 1, false, 2, true, true, false, true, true, kExact},
    // Consumers with turns: blocks that share k, of which one may have none; and three consumers.
    {kCooperative, 256, 24, 128, 2, 2, 1, 1, 2, 1, false, 1, false, false, false, false, false,
     kExact},
    {kCooperative, 128, 144, 128, 2, 2, 1, 1, 1, 2, false, 1, false, false, false, false, false,
     kExact},
    {kCooperative, 192, 72, 128, 2, 3, 1, 1, 1, 1, false, 2, false, true, false, false, false,
     kExact},
    {kPingpong, 128, 32, 128, 4, 2, 2, 1, 1, 1, false, 1, false, true, false, true, false, kExact},
    {kPingpong, 64, 64, 128, 3, 2, 1, 1, 1, 1, false, 1, false, true, false, true, false, kExact},
    {kCooperative, 64, 40, 128, 2, 1, 1, 1, 2, 1, false, 1, false, false, false, false, false,
     kExact},
    {kCooperative, 64, 24, 128, 4, 1, 1, 1, 1, 1, false, 3, false, true, true, true, false, kExact},
    {kCooperative, 64, 40, 128, 2, 1, 1, 1, 1, 2, true, 1, false, false, false, false, false,
     kExact},
    {kCooperative, 128, 48, 256, 2, 2, 2, 1, 1, 1, false, 2, true, true, false, true, true, kFast},
    {kPingpong, 64, 64, 128, 4, 2, 1, 2, 1, 1, false, 1, false, true, false, true, false, kFast},
    {kCooperative, 64, 24, 128, 3, 1, 1, 1, 1, 2, false, 1, false, false, true, false, false,
     kFast},
};

}  // namespace

TEST_CASE("the GEMM for Hopper multiplies 8-bit operands with scales", "[host][gemm_tma][long]") {
  for (const GemmTma& c : kConfigs) {
    check_product(c, 128, 64, 128);
    check_product(c, 70, 72, 400);  // an even and an odd number of slices, and part of one
    check_product(c, 24, 8, 16);
    if (!c.store_tma) check_product(c, 70, 35, 272);  // rows of C begin anywhere
  }
}
