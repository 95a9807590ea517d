// Grouped GEMMs for Hopper on the host: schedules, clusters and swap, with groups that are empty,
// ragged and lopsided, sizes that are nonsense, and rows that nobody may write.
#include <algorithm>
#include <cmath>

#include "gemm_tma_test.hpp"

using namespace host_test;

namespace {

const char* const kGroupedText = R"(
#include <gemm/grouped/gemm_grouped_tma.cuh>
struct TimesGroup {
  __device__ float operator()(float sum, const kiln::epilogue::Place& at,
                              kiln::epilogue::PerBatch<float> factor) const {
    return sum * factor[at] + (at.row % 4);
  }
};
)";

class GroupedGemm {
 public:
  GroupedGemm(const GemmTma& c, GroupLayout layout)
      : c_(c),
        layout_(layout),
        kernel_(kGroupedText, "kiln::templates::gemm_grouped_tma<" + text_of(c) +
                                  ", __nv_bfloat16, " + text_of(layout) +
                                  ", TimesGroup, const float*>") {}

  /// `sizes`: ends or counts; `m` as the kernels take it; C begins `offset` elements past a
  /// multiple of 16 bytes.
  void check(const std::vector<int>& sizes, int m, int n, int k, std::size_t offset = 0,
             int row_alignment = 1) const {
    CAPTURE(text_of(c_), text_of(layout_), sizes, m, n, k, row_alignment, offset);
    REQUIRE(c_.fits());
    const bool masked = layout_ == GroupLayout::masked;
    const std::size_t groups = sizes.size(), depth = std::size_t(k), width = std::size_t(n);
    const std::size_t rows = std::size_t(m) * (masked ? groups : 1);
    auto a = random_bf16(rows * depth, 3);
    const auto b = random_bf16(groups * width * depth, 4);
    const std::vector<int> owner = groups_of_rows(sizes, m, layout_, row_alignment);
    // Rows that belong to no group must not get anywhere.
    for (std::size_t i = 0; i < rows; ++i)
      if (owner[i] < 0) std::fill_n(a.begin() + std::ptrdiff_t(i * depth), depth, 0x7fff);
    std::vector<float> factors(groups);
    for (std::size_t g = 0; g < groups; ++g) factors[g] = g % 2 == 0 ? 0.5f : -2.0f;

    constexpr std::size_t kMargin = 4096;
    std::vector<std::uint16_t> out(rows * width + 2 * kMargin, 0x1234), expected = out;
    const HostTensorMap map_a =
        operand_map(c_, HostElement::bf16, a.data(), false, k, m, masked ? groups : 1);
    const HostTensorMap map_b = operand_map(c_, HostElement::bf16, b.data(), true, k, n, groups);
    const unsigned cluster = unsigned(c_.cluster());
    kernel_.in_clusters({cluster}, {3 * cluster}, {unsigned(c_.threads())}, c_.shared_bytes(),
                        out.data() + kMargin + offset, map_a, map_b, sizes.data(), m, n, k,
                        int(groups), row_alignment, factors.data());

    for (std::size_t i = 0; i < rows; ++i) {
      if (owner[i] < 0) continue;
      const auto g = std::size_t(owner[i]);
      const std::size_t row = masked ? i % std::size_t(m) : i;
      for (std::size_t j = 0; j < width; ++j) {
        float sum = 0;
        for (std::size_t l = 0; l < depth; ++l)
          sum += from_bf16(a[i * depth + l]) * from_bf16(b[(g * width + j) * depth + l]);
        expected[kMargin + offset + i * width + j] =
            bf16(sum * factors[g] + static_cast<float>(row % 4));
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

constexpr auto kGroupsTogether = GemmSchedule::cooperative, kTurns = GemmSchedule::pingpong;
constexpr GemmTma grouped(GemmSchedule schedule, int block_m, int block_n, int stages,
                          int consumers, int cluster_m, int cluster_n, bool along_n = false,
                          bool swap = false) {
  return {.schedule = schedule,
          .block_m = block_m,
          .block_n = block_n,
          .block_k = 64,
          .stages = stages,
          .consumers = consumers,
          .cluster_m = cluster_m,
          .cluster_n = cluster_n,
          .split_k = 1,
          .parts = 1,
          .later = false,
          .group = 2,
          .along_n = along_n,
          .persistent = true,
          .swap = swap,
          .store_tma = true,
          .programmatic = false};
}

/// As many groups as a warp looks at in three goes, most of them small or empty.
std::vector<int> many(bool ends, int row_alignment = 1) {
  std::vector<int> sizes;
  int end = 0;
  for (int g = 0; g < 70; ++g) {
    const int rows = g == 40 ? 70 : g % 3 == 0 ? 0 : g % 5;
    while (rows > 0 && end % row_alignment != 0) ++end;
    end += rows;
    sizes.push_back(ends ? end : rows);
  }
  return sizes;
}

void check_all(const GemmTma& c) {
  const GroupedGemm contiguous(c, GroupLayout::contiguous);
  contiguous.check({70, 70, 71, 200, 290}, 300, 72, 136);  // an empty one; rows that are nobody's
  contiguous.check({-5, 120, 60, 1000, 999}, 200, 40, 64);
  contiguous.check(many(true), 250, 40, 64);
  contiguous.check({0, 0, 0}, 100, 40, 64);
  contiguous.check({0, 0, 130}, 130, 24, 72, 1);
  contiguous.check({3}, 3, 8, 8);
  const GroupedGemm padded(c, GroupLayout::padded);
  padded.check({70, 70, 140, 192, 192, 300}, 330, 72, 136, 0, 64);  // three are empty
  padded.check({-5, 120, 60, 1000, 999}, 200, 40, 64, 0, 50);
  padded.check({100, 110}, 110, 24, 72, 1, 64);  // no row is left for the second
  padded.check({3, 128}, 140, 24, 72, 3, 127);
  padded.check({3, 3, 305}, 310, 24, 72, 0, 300);  // an end that lies tiles before its group
  padded.check(many(true, 8), 450, 40, 64, 0, 8);
  padded.check(many(true), 250, 40, 64);
  padded.check({3, 9}, 9, 8, 8, 0, 2147483647);
  const GroupedGemm masked(c, GroupLayout::masked);
  masked.check({0, 72, 1, 65, 200, -3}, 72, 72, 136);
  masked.check(many(false), 16, 40, 64);
  masked.check({0, 0}, 130, 40, 64);
  masked.check({129}, 130, 24, 72, 3);
}

}  // namespace

TEST_CASE("grouped GEMMs for Hopper write the rows of each group and no others",
          "[host][gemm_tma]") {
  check_all(grouped(kGroupsTogether, 128, 64, 3, 2, 1, 1));
  check_all(grouped(kTurns, 64, 32, 2, 2, 2, 1));
}

TEST_CASE("grouped GEMMs for Hopper: each schedule and cluster", "[host][gemm_tma][long]") {
  for (const GemmTma& c :
       {grouped(kGroupsTogether, 256, 48, 2, 2, 1, 2, true),
        grouped(kTurns, 128, 64, 3, 2, 1, 1, true), grouped(kTurns, 128, 32, 2, 2, 1, 2),
        grouped(kGroupsTogether, 64, 24, 3, 1, 1, 1, false, true),
        grouped(kGroupsTogether, 256, 16, 2, 2, 1, 1, true, true)})
    check_all(c);
}
