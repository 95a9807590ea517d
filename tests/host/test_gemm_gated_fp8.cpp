// Gated GEMMs for Hopper whose results are 8-bit floats, on the host: one scale and those of
// blocks, both layouts of the weights, schedules, clusters, swap and shared k, with ragged edges.
// With ReLU all products are exact, and so are their roundings.
#include <algorithm>

#include "gemm_gated_test.hpp"

using namespace host_test;

namespace {

class GatedFp8Gemm {
 public:
  GatedFp8Gemm(const GemmTma& c, bool stacked, bool blocks)
      : c_(c),
        stacked_(stacked),
        blocks_(blocks),
        kernel_("#include <gemm/gated/gemm_gated_fp8_tma.cuh>\n",
                std::string("kiln::templates::gemm_gated_fp8_") + (blocks ? "blocks" : "tensor") +
                    "_tma<" + text_of(c) + ", __nv_bfloat16, kiln::templates::GatedWeights::" +
                    (stacked ? "stacked" : "interleaved") + ", kiln::epilogue::Relu>") {}

  /// q begins `offset` bytes past an address of 16.
  void check(int m, int n, int k, std::size_t offset = 0) const {
    CAPTURE(text_of(c_), stacked_, blocks_, m, n, k, offset);
    REQUIRE(c_.fits());
    const int product = gated_columns(n), rows = stacked_ ? 2 * n : product;
    const auto depth = std::size_t(k), width = std::size_t(n), height = std::size_t(m);
    const auto a = random_bf16(height * depth, 3);
    auto w = random_bf16(std::size_t(rows) * depth, 4);
    const std::vector<float> v = products(a, w, height, width, depth);

    const HostTensorMap map_a = operand_map(c_, HostElement::bf16, a.data(), false, k, m),
                        map_w = weights_map(c_, HostElement::bf16, w.data(), stacked_, n, k);
    GatedFp8Results results(m, n, offset);
    const float scale = results.kGiven;
    TileWorkspace shared(c_, std::size_t(c_.tiles_m(m, product)) * c_.tiles_n(m, product));
    const auto launch = [&](auto... more) {
      kernel_.in_clusters({unsigned(c_.cluster())}, {c_.grid(m, product, 3)},
                          {unsigned(c_.threads())}, c_.shared_bytes(), results.q(), map_a, map_w, m,
                          n, k, more...);
    };
    if (blocks_)
      launch(results.scales());
    else
      launch(&scale, shared.argument());
    results.check(v, blocks_);
    CHECK(shared.ready_again());
  }

 private:
  /// v; rows of `w` that are nobody's become NaNs, which must not get anywhere, or large: a largest
  /// magnitude leaves out NaNs.
  std::vector<float> products(const std::vector<std::uint16_t>& a, std::vector<std::uint16_t>& w,
                              std::size_t m, std::size_t n, std::size_t k) const {
    std::vector<float> v(m * n);
    std::vector<bool> used(w.size() / k, false);
    for (std::size_t j = 0; j < n; ++j) {
      const std::size_t gate = gated_row(stacked_, j, false, n),
                        up = gated_row(stacked_, j, true, n);
      used[gate] = used[up] = true;
      for (std::size_t i = 0; i < m; ++i) {
        float sums[2] = {};
        for (std::size_t l = 0; l < k; ++l) {
          sums[0] += from_bf16(a[i * k + l]) * from_bf16(w[gate * k + l]);
          sums[1] += from_bf16(a[i * k + l]) * from_bf16(w[up * k + l]);
        }
        v[i * n + j] = std::max(sums[0], 0.0f) * sums[1];
      }
    }
    for (std::size_t row = 0; row < used.size(); ++row)
      if (!used[row])
        std::fill_n(w.begin() + std::ptrdiff_t(row * k), k, blocks_ ? bf16(3e8f) : 0x7fff);
    return v;
  }

  GemmTma c_;
  bool stacked_, blocks_;
  Kernel kernel_;
};

constexpr GemmTma to_fp8(GemmSchedule schedule, int block_m, int block_n, int consumers,
                         int cluster_m, int cluster_n, bool swap = false, int split_k = 1,
                         int parts = 1) {
  const bool shared = split_k > 1 || parts > 1;
  return {.schedule = schedule,
          .block_m = block_m,
          .block_n = block_n,
          .block_k = 64,
          .stages = 2,
          .consumers = consumers,
          .cluster_m = cluster_m,
          .cluster_n = cluster_n,
          .split_k = split_k,
          .parts = parts,
          .later = false,
          .group = 2,
          .along_n = false,
          .persistent = !shared,
          .swap = swap,
          .store_tma = !shared,
          .programmatic = false};
}

constexpr auto kFp8Together = GemmSchedule::cooperative, kFp8InTurns = GemmSchedule::pingpong;

}  // namespace

TEST_CASE("gated GEMMs for Hopper leave as 8-bit floats with one scale", "[host][gemm_tma]") {
  const GatedFp8Gemm stacked(to_fp8(kFp8Together, 128, 64, 2, 1, 1), true, false);
  for (const auto& [m, n, k] : {std::array{150, 72, 136}, {1, 8, 8}, {130, 208, 64}})
    for (const std::size_t offset : {0, 1}) stacked.check(m, n, k, offset);
  const GatedFp8Gemm wide(to_fp8(kFp8Together, 64, 128, 1, 1, 1), false, false);
  for (const auto& [m, n, k] : {std::array{70, 72, 136}, {64, 160, 64}}) wide.check(m, n, k);
  const GatedFp8Gemm swapped(to_fp8(kFp8Together, 64, 24, 1, 1, 1, true), false, false);
  for (const auto& [m, n, k] : {std::array{20, 72, 136}, {1, 5, 8}, {60, 203, 64}})
    swapped.check(m, n, k);
}

TEST_CASE("gated GEMMs for Hopper leave as 8-bit floats with scales of blocks",
          "[host][gemm_tma]") {
  const GatedFp8Gemm rows(to_fp8(kFp8Together, 64, 256, 1, 1, 1), true, true);
  for (const auto& [m, n, k] : {std::array{70, 264, 72}, {1, 8, 8}}) rows.check(m, n, k);
  rows.check(5, 136, 64, 1);
  GatedFp8Gemm(to_fp8(kFp8Together, 64, 256, 1, 1, 1), false, true).check(9, 133, 64);
  const GatedFp8Gemm columns(to_fp8(kFp8Together, 256, 24, 2, 1, 1, true), false, true);
  for (const auto& [m, n, k] : {std::array{50, 403, 72}, {3, 5, 8}}) columns.check(m, n, k);
}

TEST_CASE("gated GEMMs for Hopper to 8-bit floats: each schedule, cluster and way to share k",
          "[host][gemm_tma][long]") {
  const GatedFp8Gemm turns(to_fp8(kFp8InTurns, 64, 96, 2, 1, 2), false, false);
  const GatedFp8Gemm turns_of_blocks(to_fp8(kFp8InTurns, 64, 256, 2, 1, 1), false, true);
  const GatedFp8Gemm pairs_of_blocks(to_fp8(kFp8Together, 128, 256, 2, 2, 1), true, true);
  const GatedFp8Gemm beside(to_fp8(kFp8Together, 64, 256, 1, 1, 2), true, true);
  const GatedFp8Gemm swapped(to_fp8(kFp8Together, 256, 16, 2, 1, 1, true), true, true);
  for (const auto& [m, n, k] : {std::array{150, 272, 136}, {70, 200, 64}}) {
    turns.check(m, n, k);
    turns_of_blocks.check(m, n, k);
    pairs_of_blocks.check(m, n, k);
    beside.check(m, n, k);
    swapped.check(m, n, k);
  }
  for (const bool stacked : {false, true}) {
    const GatedFp8Gemm split(to_fp8(kFp8Together, 64, 16, 1, 1, 1, true, 2), stacked, false);
    const GatedFp8Gemm parts(to_fp8(kFp8Together, 128, 8, 1, 1, 1, true, 1, 3), stacked, false);
    for (const auto& [m, n, k] : {std::array{20, 72, 200}, {3, 136, 264}}) {
      split.check(m, n, k);
      parts.check(m, n, k);
    }
  }
}
