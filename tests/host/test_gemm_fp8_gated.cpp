// Gated GEMMs of 8-bit floats for Hopper on the host: both layouts of the weights, exact and fast
// sums with a scale for each row, scales of blocks, schedules, clusters, swap and shared k, with
// ragged edges. With ReLU all results are exact.
#include <algorithm>
#include <cmath>
#include <optional>

#include "gemm_tma_test.hpp"
#include "kiln/block_scales.hpp"

using namespace host_test;
using kiln::float8_e4m3;
using kiln::templates::GemmOperands;

namespace {

const char* const kFp8GatedText =
    "#include <gemm/fp8/gemm_fp8_gated.cuh>\n#include <gemm/gated/gemm_gated_tma.cuh>\n";

class Fp8GatedGemm {
 public:
  Fp8GatedGemm(const GemmTma& c, bool stacked)
      : c_(c), stacked_(stacked), kernel_(kFp8GatedText, entry("gemm_gated_tma")) {
    if (c.later) step_.emplace(kFp8GatedText, entry("gemm_gated_tma_step"));
  }

  void check(int m, int n, int k) const {
    CAPTURE(text_of(c_), stacked_, m, n, k);
    REQUIRE(c_.fits());
    const int product = (n + 7) / 8 * 16, rows = stacked_ ? 2 * n : product;
    const auto depth = std::size_t(k), width = std::size_t(n), height = std::size_t(m);
    const auto a = quarters(height * depth, 3);
    auto w = quarters(std::size_t(rows) * depth, 4);
    const std::vector<float> powers{0.25f, -0.5f, 1, 2, 4};
    const bool blocks = c_.scaled();
    const auto leading = std::size_t(kiln::scale_leading(m)),
               of_k = std::size_t(kiln::scale_blocks(k)), of_n = std::size_t(kiln::scale_blocks(n));
    std::vector<float> scales_a(blocks ? of_k * leading : height),
        scales_w(2 * (blocks ? of_n * of_k : width));
    for (std::size_t i = 0; i < scales_a.size(); ++i)
      scales_a[i] = blocks && i % leading >= height ? NAN : powers[i % 5];
    for (std::size_t j = 0; j < scales_w.size(); ++j) scales_w[j] = powers[(j * 3 + 1) % 5];
    std::vector<float> expected(height * width);
    std::vector<bool> used(std::size_t(rows), false);
    for (std::size_t i = 0; i < height; ++i)
      for (std::size_t j = 0; j < width; ++j) {
        float sums[2] = {};
        for (std::size_t up = 0; up < 2; ++up) {
          const std::size_t row = stacked_ ? j + up * width : j / 8 * 16 + j % 8 + up * 8;
          used[row] = true;
          for (std::size_t l = 0; l < depth; ++l)
            sums[up] += float(a[i * depth + l]) * float(w[row * depth + l]) *
                        (blocks ? scales_a[l / 128 * leading + i] *
                                      scales_w[(j / 128 + up * of_n) * of_k + l / 128]
                                : scales_a[i] * scales_w[j + up * width]);
        }
        expected[i * width + j] = from_bf16(bf16(std::max(sums[0], 0.0f) * sums[1]));
      }
    // Rows that are nobody's must not get anywhere.
    for (std::size_t row = 0; row < used.size(); ++row)
      for (std::size_t l = 0; l < depth && !used[row]; ++l) w[row * depth + l].bits = 0x7f;

    const HostTensorMap map_a = operand_map(c_, HostElement::u8, a.data(), false, k, m);
    HostTensorMap map_w = operand_map(c_, HostElement::u8, w.data(), true, k, product);
    if (stacked_) {  // [n / 8][gate, up][8][k]
      map_w = tensor_map(w.data(), HostElement::u8, {depth, 8, 2, std::uint64_t(n / 8)},
                         {128, 8, 2, unsigned(map_w.box[1]) / 16}, 128);
      map_w.stride[0] = depth;
      map_w.stride[1] = depth * width;
      map_w.stride[2] = depth * 8;
    }
    constexpr std::size_t kMargin = 4096;
    std::vector<std::uint16_t> out(expected.size() + 2 * kMargin, 0x1234);
    GemmTma results = c_;
    results.block_n /= 2;

    const std::size_t tiles = std::size_t(c_.tiles_m(m, product)) * c_.tiles_n(m, product);
    TileWorkspace shared(c_, tiles);
    const auto launch = [&](const auto& to) {
      const float *const of_a = scales_a.data(), *const of_w = scales_w.data();
      kernel_.in_clusters({unsigned(c_.cluster())}, {c_.grid(m, product, 3)},
                          {unsigned(c_.threads())}, c_.shared_bytes(), to, map_a, map_w, m, n, k,
                          of_a, of_w, shared.argument());
      if (step_)
        step_->in_clusters({1}, {c_.add_grid(tiles)}, {unsigned(c_.kAddThreads)}, 0, to, map_a,
                           map_w, m, n, k, of_a, of_w, shared.argument());
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
    CHECK(shared.ready_again());
  }

 private:
  std::string entry(const std::string& name) const {
    const std::string sums = c_.operands == GemmOperands::fp8 ? "fast"
                             : c_.scaled()                    ? "scaled"
                                                              : "exact";
    return "kiln::templates::" + name + "<" + text_of(c_) +
           ", kiln::templates::Fp8<__nv_bfloat16, kiln::templates::Fp8Sums::" + sums +
           ">, kiln::templates::GatedWeights::" + (stacked_ ? "stacked" : "interleaved") +
           ", kiln::epilogue::Relu, kiln::epilogue::" + (c_.scaled() ? "Block" : "Row") +
           "Scales, const float*, const float*>";
  }

  GemmTma c_;
  bool stacked_;
  Kernel kernel_;
  std::optional<Kernel> step_;
};

constexpr GemmTma of_fp8(GemmOperands operands, GemmSchedule schedule, int block_m, int block_n,
                         int consumers, int cluster_m, int cluster_n, bool swap = false,
                         int split_k = 1, int parts = 1, bool later = false) {
  const bool shared = split_k > 1 || parts > 1;
  return {.schedule = schedule,
          .block_m = block_m,
          .block_n = block_n,
          .block_k = 128,
          .stages = 3,
          .consumers = consumers,
          .cluster_m = cluster_m,
          .cluster_n = cluster_n,
          .split_k = split_k,
          .parts = parts,
          .later = later,
          .group = 2,
          .along_n = false,
          .persistent = !shared,
          .swap = swap,
          .store_tma = !shared,
          .programmatic = false,
          .operands = operands};
}

constexpr auto kFp8PairsTogether = GemmSchedule::cooperative,
               kFp8PairsInTurns = GemmSchedule::pingpong;
constexpr auto kSumsFast = GemmOperands::fp8, kSumsExact = GemmOperands::fp8_exact,
               kSumsScaled = GemmOperands::fp8_scaled;

}  // namespace

TEST_CASE("gated GEMMs of 8-bit floats for Hopper scale each sum of gate and up",
          "[host][gemm_tma]") {
  const Fp8GatedGemm stacked(of_fp8(kSumsExact, kFp8PairsTogether, 128, 64, 2, 1, 1), true);
  for (const auto& [m, n, k] : {std::array{150, 72, 272}, {1, 8, 16}, {130, 200, 128}})
    stacked.check(m, n, k);
  const Fp8GatedGemm swapped(of_fp8(kSumsFast, kFp8PairsTogether, 64, 24, 1, 1, 1, true), false);
  for (const auto& [m, n, k] : {std::array{20, 72, 272}, {1, 5, 16}, {60, 203, 128}})
    swapped.check(m, n, k);
}

TEST_CASE("gated GEMMs of 8-bit floats for Hopper: each schedule, cluster and way to share k",
          "[host][gemm_tma][long]") {
  const Fp8GatedGemm turns(of_fp8(kSumsExact, kFp8PairsInTurns, 64, 96, 2, 1, 2), false);
  const Fp8GatedGemm pairs(of_fp8(kSumsFast, kFp8PairsInTurns, 64, 64, 2, 2, 1), true);
  const Fp8GatedGemm tall(of_fp8(kSumsExact, kFp8PairsTogether, 256, 96, 2, 2, 1), true);
  for (const auto& [m, n, k] : {std::array{150, 72, 272}, {70, 200, 128}}) {
    turns.check(m, n, k);
    pairs.check(m, n, k);
    tall.check(m, n, k);
  }
  for (const bool stacked : {false, true}) {
    const Fp8GatedGemm split(of_fp8(kSumsExact, kFp8PairsTogether, 64, 16, 1, 1, 1, true, 2),
                             stacked);
    const Fp8GatedGemm parts(of_fp8(kSumsFast, kFp8PairsTogether, 128, 8, 1, 1, 1, true, 1, 3),
                             stacked);
    const Fp8GatedGemm later(
        of_fp8(kSumsExact, kFp8PairsTogether, 64, 16, 1, 1, 1, true, 1, 2, true), stacked);
    for (const auto& [m, n, k] : {std::array{20, 72, 400}, {3, 136, 528}}) {
      split.check(m, n, k);
      parts.check(m, n, k);
      later.check(m, n, k);
    }
  }
}

TEST_CASE("gated GEMMs of 8-bit floats for Hopper: gate and up have scales of blocks apart",
          "[host][gemm_tma]") {
  // Tiles that reach into one block of n, and into two, beginning anywhere.
  const Fp8GatedGemm narrow(of_fp8(kSumsScaled, kFp8PairsTogether, 64, 64, 1, 1, 1), true);
  const Fp8GatedGemm odd(of_fp8(kSumsScaled, kFp8PairsTogether, 128, 96, 2, 1, 1), false);
  const Fp8GatedGemm swapped(of_fp8(kSumsScaled, kFp8PairsTogether, 64, 24, 1, 1, 1, true), false);
  for (const auto& [m, n, k] : {std::array{150, 72, 256}, {1, 8, 128}, {70, 400, 384}}) {
    narrow.check(m, n, k);
    odd.check(m, n, k);
    swapped.check(m, n, k);
  }
  swapped.check(20, 203, 256);
}

TEST_CASE("gated GEMMs of 8-bit floats for Hopper with scales of blocks: each kind of tile",
          "[host][gemm_tma][long]") {
  const Fp8GatedGemm configs[] = {
      {of_fp8(kSumsScaled, kFp8PairsInTurns, 64, 192, 2, 1, 2), false},
      {of_fp8(kSumsScaled, kFp8PairsInTurns, 128, 64, 2, 2, 1), true},
      {of_fp8(kSumsScaled, kFp8PairsTogether, 256, 96, 2, 2, 1), true},
      {of_fp8(kSumsScaled, kFp8PairsTogether, 64, 160, 1, 1, 1), false},
      {of_fp8(kSumsScaled, kFp8PairsTogether, 256, 32, 2, 1, 1, true), true},
      {of_fp8(kSumsScaled, kFp8PairsTogether, 64, 16, 1, 1, 1, true, 2), true},
      {of_fp8(kSumsScaled, kFp8PairsTogether, 128, 8, 1, 1, 1, true, 1, 3), false},
      {of_fp8(kSumsScaled, kFp8PairsTogether, 64, 16, 1, 1, 1, true, 1, 2, true), false}};
  for (const Fp8GatedGemm& gemm : configs)
    for (const auto& [m, n, k] : {std::array{150, 392, 384}, {20, 136, 512}}) gemm.check(m, n, k);
}
