// Grouped GEMMs of 8-bit floats for Hopper on the host, with scales of blocks: each schedule, swap,
// a cluster and groups that are empty or ragged. All sums are exact. Scales of rows that no group
// has are NaN.
#include <algorithm>
#include <cmath>

#include "gemm_tma_test.hpp"
#include "kiln/block_scales.hpp"
#include "kiln/types.hpp"

using namespace host_test;

namespace {

using kiln::float8_e4m3, kiln::kScaleBlock, kiln::scale_blocks, kiln::scale_leading;
using kiln::templates::GemmOperands;

class ScaledGroups {
 public:
  ScaledGroups(const GemmTma& c, GroupLayout layout)
      : c_(c),
        layout_(layout),
        kernel_(
            "#include <gemm/fp8/gemm_grouped_fp8.cuh>\n#include "
            "<gemm/grouped/gemm_grouped_tma.cuh>\n",
            "kiln::templates::gemm_grouped_tma<" + text_of(c) +
                ", kiln::templates::Fp8<__nv_bfloat16, kiln::templates::Fp8Sums::scaled>, " +
                text_of(layout) + ", kiln::epilogue::BlockScales, const float*, const float*>") {}

  /// `sizes`: ends or counts; `m` as the kernels take it.
  void check(const std::vector<int>& sizes, int m, int n, int k, int row_alignment = 1) const {
    CAPTURE(text_of(c_), text_of(layout_), sizes, m, n, k, row_alignment);
    REQUIRE(c_.fits());
    const bool masked = layout_ == GroupLayout::masked;
    const std::size_t groups = sizes.size(), depth = std::size_t(k), width = std::size_t(n);
    const std::size_t rows = std::size_t(m) * (masked ? groups : 1);
    const std::size_t blocks = depth / kScaleBlock, leading = std::size_t(scale_leading(m));
    const auto a = quarters(rows * depth, 3), b = quarters(groups * width * depth, 4);
    const std::vector<int> owner = groups_of_rows(sizes, m, layout_, row_alignment);
    const auto power = [](std::size_t i) { return std::ldexp(1.0f, int(i % 5) - 2); };
    // The place of a row's scale of block 0.
    const auto of_row = [&](std::size_t i) {
      return masked ? i / std::size_t(m) * blocks * leading + i % std::size_t(m) : i;
    };
    std::vector<float> scales_a((masked ? groups : 1) * blocks * leading, NAN);
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t l = 0; owner[i] >= 0 && l < blocks; ++l)
        scales_a[of_row(i) + l * leading] = power(i + 3 * l);
    const std::size_t of_group = std::size_t(scale_blocks(n)) * blocks;
    std::vector<float> scales_b(groups * of_group);
    for (std::size_t i = 0; i < scales_b.size(); ++i) scales_b[i] = power(2 * i + i / of_group);

    constexpr std::size_t kMargin = 4096;
    std::vector<std::uint16_t> out(rows * width + 2 * kMargin, 0x1234), expected = out;
    const HostTensorMap map_a =
        operand_map(c_, HostElement::u8, a.data(), false, k, m, masked ? groups : 1);
    const HostTensorMap map_b = operand_map(c_, HostElement::u8, b.data(), true, k, n, groups);
    const unsigned cluster = unsigned(c_.cluster());
    kernel_.in_clusters({cluster}, {3 * cluster}, {unsigned(c_.threads())}, c_.shared_bytes(),
                        out.data() + kMargin, map_a, map_b, sizes.data(), m, n, k, int(groups),
                        row_alignment, scales_a.data(), scales_b.data());

    for (std::size_t i = 0; i < rows; ++i) {
      if (owner[i] < 0) continue;
      const auto g = std::size_t(owner[i]);
      for (std::size_t j = 0; j < width; ++j) {
        float sum = 0;
        for (std::size_t block = 0; block < blocks; ++block) {
          float products = 0;
          for (std::size_t l = block * kScaleBlock; l < (block + 1) * kScaleBlock; ++l)
            products += float(a[i * depth + l]) * float(b[(g * width + j) * depth + l]);
          sum += products * scales_a[of_row(i) + block * leading] *
                 scales_b[g * of_group + j / kScaleBlock * blocks + block];
        }
        expected[kMargin + i * width + j] = bf16(sum);
      }
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < out.size(); ++i) wrong += out[i] != expected[i];
    CHECK(wrong == 0);
  }

 private:
  GemmTma c_;
  GroupLayout layout_;
  Kernel kernel_;
};

constexpr GemmTma scaled_groups(GemmSchedule schedule, int block_m, int block_n, int stages,
                                int consumers, int cluster_m, int cluster_n, bool swap) {
  return {.schedule = schedule,
          .block_m = block_m,
          .block_n = block_n,
          .block_k = 128,
          .stages = stages,
          .consumers = consumers,
          .cluster_m = cluster_m,
          .cluster_n = cluster_n,
          .split_k = 1,
          .parts = 1,
          .later = false,
          .group = 2,
          .along_n = false,
          .persistent = true,
          .swap = swap,
          .store_tma = true,
          .programmatic = false,
          .operands = GemmOperands::fp8_scaled};
}

void check_groups(const GemmTma& c) {
  const ScaledGroups contiguous(c, GroupLayout::contiguous);
  contiguous.check({40, 40, 41, 90, 131}, 135, 152, 256);  // an empty one; rows that are nobody's
  contiguous.check({-5, 70, 30, 1000}, 101, 40, 128);
  const ScaledGroups padded(c, GroupLayout::padded);
  padded.check({40, 40, 65, 100, 131}, 135, 152, 256, 32);
  padded.check({-5, 70, 30, 1000}, 101, 40, 128, 75);
  padded.check({3, 3, 305}, 310, 24, 128, 300);
  const ScaledGroups masked(c, GroupLayout::masked);
  masked.check({0, 37, 1, 50, -3}, 37, 152, 256);
  masked.check({66}, 70, 24, 128);
}

constexpr auto kAtOnce = GemmSchedule::cooperative, kByTurns = GemmSchedule::pingpong;

}  // namespace

TEST_CASE("grouped GEMMs for Hopper scale the blocks of each group", "[host][gemm_tma]") {
  check_groups(scaled_groups(kAtOnce, 128, 64, 3, 2, 1, 1, false));
}

TEST_CASE("grouped GEMMs for Hopper with scales: each schedule, swapped, in clusters",
          "[host][gemm_tma][long]") {
  check_groups(scaled_groups(kByTurns, 64, 96, 4, 2, 1, 2, false));
  check_groups(scaled_groups(kByTurns, 128, 32, 2, 2, 2, 1, false));
  check_groups(scaled_groups(kAtOnce, 64, 24, 4, 1, 1, 1, true));
  check_groups(scaled_groups(kAtOnce, 256, 16, 2, 2, 1, 1, true));
}
