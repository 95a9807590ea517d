// Gated GEMMs for Hopper on the host: both layouts of the weights, schedules, clusters, swap and
// shared k, with ragged edges. With ReLU all results are exact.
#include <algorithm>
#include <cmath>

#include "gemm_gated_test.hpp"

using namespace host_test;

namespace {

class GatedGemm {
 public:
  GatedGemm(const GemmTma& c, bool stacked)
      : c_(c),
        stacked_(stacked),
        kernel_("#include <gemm/gated/gemm_gated_tma.cuh>\n",
                "kiln::templates::gemm_gated_tma<" + text_of(c) +
                    ", __nv_bfloat16, kiln::templates::GatedWeights::" +
                    (stacked ? "stacked" : "interleaved") + ", kiln::epilogue::Relu>") {}

  void check(int m, int n, int k) const {
    CAPTURE(text_of(c_), stacked_, m, n, k);
    REQUIRE(c_.fits());
    const int product = gated_columns(n), rows = stacked_ ? 2 * n : product;
    const auto depth = std::size_t(k), width = std::size_t(n);
    const auto a = random_bf16(std::size_t(m) * depth, 3);
    auto w = random_bf16(std::size_t(rows) * depth, 4);
    std::vector<float> expected(std::size_t(m) * width);
    std::vector<bool> used(std::size_t(rows), false);
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        float sums[2] = {};
        for (int up = 0; up < 2; ++up) {
          const std::size_t row = gated_row(stacked_, std::size_t(j), up != 0, width);
          used[row] = true;
          for (std::size_t l = 0; l < depth; ++l)
            sums[up] += from_bf16(a[std::size_t(i) * depth + l]) * from_bf16(w[row * depth + l]);
        }
        expected[std::size_t(i) * width + std::size_t(j)] =
            from_bf16(bf16(std::max(sums[0], 0.0f) * sums[1]));
      }
    // Rows that belong to no column must not get anywhere.
    for (std::size_t row = 0; row < used.size(); ++row)
      if (!used[row]) std::fill_n(w.begin() + std::ptrdiff_t(row * depth), depth, 0x7fff);

    const HostTensorMap map_a = operand_map(c_, HostElement::bf16, a.data(), false, k, m);
    HostTensorMap map_w = operand_map(c_, HostElement::bf16, w.data(), true, k, product);
    if (stacked_) {  // [n / 8][gate, up][8][k]
      map_w = tensor_map(w.data(), HostElement::bf16, {depth, 8, 2, std::uint64_t(n / 8)},
                         {64, 8, 2, unsigned(map_w.box[1]) / 16}, 128);
      map_w.stride[0] = depth * 2;
      map_w.stride[1] = depth * 2 * width;
      map_w.stride[2] = depth * 2 * 8;
    }
    constexpr std::size_t kMargin = 4096;
    std::vector<std::uint16_t> out(std::size_t(m) * width + 2 * kMargin, 0x1234);
    GemmTma results = c_;
    results.block_n /= 2;

    const std::size_t tiles = std::size_t(c_.tiles_m(m, product)) * c_.tiles_n(m, product);
    TileWorkspace shared(c_, tiles);
    const auto launch = [&](const auto& to) {
      kernel_.in_clusters({unsigned(c_.cluster())}, {c_.grid(m, product, 3)},
                          {unsigned(c_.threads())}, c_.shared_bytes(), to, map_a, map_w, m, n, k,
                          shared.argument());
    };
    if (c_.store_tma && !c_.swap)
      launch(store_map(results, out.data() + kMargin, m, n));
    else
      launch(out.data() + kMargin);

    std::size_t wrong = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const bool inside = i >= kMargin && i < kMargin + expected.size();
      wrong += inside ? !(from_bf16(out[i]) == expected[i - kMargin]) : out[i] != 0x1234;
    }
    CHECK(wrong == 0);
  }

 private:
  GemmTma c_;
  bool stacked_;
  Kernel kernel_;
};

constexpr GemmTma gated(GemmSchedule schedule, int block_m, int block_n, int consumers,
                        int cluster_m, int cluster_n, bool swap = false, int split_k = 1,
                        int parts = 1) {
  GemmTma tile = gated_of(GemmOperands::two_bytes, schedule, block_m, block_n, consumers, cluster_m,
                          cluster_n, swap, split_k, parts);
  tile.block_k = 64;
  return tile;
}

constexpr auto kPairsTogether = GemmSchedule::cooperative, kPairsInTurns = GemmSchedule::pingpong;

}  // namespace

TEST_CASE("gated GEMMs for Hopper multiply what gate and up make of each element",
          "[host][gemm_tma]") {
  const GatedGemm stacked(gated(kPairsTogether, 128, 64, 2, 1, 1), true);
  for (const auto& [m, n, k] : {std::array{150, 72, 136}, {1, 8, 8}, {130, 200, 64}})
    stacked.check(m, n, k);
  const GatedGemm swapped(gated(kPairsTogether, 64, 24, 1, 1, 1, true), false);
  for (const auto& [m, n, k] : {std::array{20, 72, 136}, {1, 5, 8}, {60, 203, 64}})
    swapped.check(m, n, k);
}

TEST_CASE("gated GEMMs for Hopper: each schedule, cluster and way to share k",
          "[host][gemm_tma][long]") {
  const GatedGemm turns(gated(kPairsInTurns, 64, 96, 2, 1, 2), false);
  const GatedGemm pairs(gated(kPairsInTurns, 64, 64, 2, 2, 1), true);
  for (const auto& [m, n, k] : {std::array{150, 72, 136}, {70, 200, 64}}) {
    turns.check(m, n, k);
    pairs.check(m, n, k);
  }
  for (const bool stacked : {false, true}) {
    const GatedGemm split(gated(kPairsTogether, 64, 16, 1, 1, 1, true, 2), stacked);
    const GatedGemm parts(gated(kPairsTogether, 128, 8, 1, 1, 1, true, 1, 3), stacked);
    for (const auto& [m, n, k] : {std::array{20, 72, 200}, {3, 136, 264}}) {
      split.check(m, n, k);
      parts.check(m, n, k);
    }
  }
}
