// Gated GEMMs of 8-bit floats for Hopper on the host: both layouts of the weights, exact and fast
// sums with a scale for each row, scales of blocks, schedules, clusters, swap and shared k, with
// ragged edges. With ReLU all results are exact.
#include <array>
#include <cmath>
#include <optional>

#include "gemm_gated_test.hpp"

using namespace host_test;

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
    const int product = gated_columns(n);
    // Rows that belong to no column must not get anywhere.
    const GatedFp8Operands x(c_.scaled(), stacked_, m, n, k, NAN);
    std::vector<float> expected;
    for (const float v : x.v) expected.push_back(from_bf16(bf16(v)));
    const HostTensorMap map_a = operand_map(c_, HostElement::u8, x.a.data(), false, k, m),
                        map_w = weights_map(c_, HostElement::u8, x.w.data(), stacked_, n, k);
    constexpr std::size_t kMargin = 4096;
    std::vector<std::uint16_t> out(expected.size() + 2 * kMargin, 0x1234);
    GemmTma results = c_;
    results.block_n /= 2;

    const std::size_t tiles = std::size_t(c_.tiles_m(m, product)) * c_.tiles_n(m, product);
    TileWorkspace shared(c_, tiles);
    const auto launch = [&](const auto& to) {
      const float *const of_a = x.scales_a.data(), *const of_w = x.scales_w.data();
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
    return "kiln::templates::" + name + "<" + text_of(c_) + ", " + gated_fp8_type(c_) +
           ", kiln::templates::GatedWeights::" + (stacked_ ? "stacked" : "interleaved") +
           ", kiln::epilogue::Relu, kiln::epilogue::" + (c_.scaled() ? "Block" : "Row") +
           "Scales, const float*, const float*>";
  }

  GemmTma c_;
  bool stacked_;
  Kernel kernel_;
  std::optional<Kernel> step_;
};

constexpr auto kFp8PairsTogether = GemmSchedule::cooperative,
               kFp8PairsInTurns = GemmSchedule::pingpong;
constexpr auto kSumsFast = GemmOperands::fp8, kSumsExact = GemmOperands::fp8_exact,
               kSumsScaled = GemmOperands::fp8_scaled;

}  // namespace

TEST_CASE("gated GEMMs of 8-bit floats for Hopper scale each sum of gate and up",
          "[host][gemm_tma]") {
  const Fp8GatedGemm stacked(gated_of(kSumsExact, kFp8PairsTogether, 128, 64, 2, 1, 1), true);
  for (const auto& [m, n, k] : {std::array{150, 72, 272}, {1, 8, 16}, {130, 200, 128}})
    stacked.check(m, n, k);
  const Fp8GatedGemm swapped(gated_of(kSumsFast, kFp8PairsTogether, 64, 24, 1, 1, 1, true), false);
  for (const auto& [m, n, k] : {std::array{20, 72, 272}, {1, 5, 16}, {60, 203, 128}})
    swapped.check(m, n, k);
}

TEST_CASE("gated GEMMs of 8-bit floats for Hopper: each schedule, cluster and way to share k",
          "[host][gemm_tma][long]") {
  const Fp8GatedGemm turns(gated_of(kSumsExact, kFp8PairsInTurns, 64, 96, 2, 1, 2), false);
  const Fp8GatedGemm pairs(gated_of(kSumsFast, kFp8PairsInTurns, 64, 64, 2, 2, 1), true);
  const Fp8GatedGemm tall(gated_of(kSumsExact, kFp8PairsTogether, 256, 96, 2, 2, 1), true);
  for (const auto& [m, n, k] : {std::array{150, 72, 272}, {70, 200, 128}}) {
    turns.check(m, n, k);
    pairs.check(m, n, k);
    tall.check(m, n, k);
  }
  for (const bool stacked : {false, true}) {
    const Fp8GatedGemm split(gated_of(kSumsExact, kFp8PairsTogether, 64, 16, 1, 1, 1, true, 2),
                             stacked);
    const Fp8GatedGemm parts(gated_of(kSumsFast, kFp8PairsTogether, 128, 8, 1, 1, 1, true, 1, 3),
                             stacked);
    const Fp8GatedGemm later(
        gated_of(kSumsExact, kFp8PairsTogether, 64, 16, 1, 1, 1, true, 1, 2, true), stacked);
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
  const Fp8GatedGemm narrow(gated_of(kSumsScaled, kFp8PairsTogether, 64, 64, 1, 1, 1), true);
  const Fp8GatedGemm odd(gated_of(kSumsScaled, kFp8PairsTogether, 128, 96, 2, 1, 1), false);
  const Fp8GatedGemm swapped(gated_of(kSumsScaled, kFp8PairsTogether, 64, 24, 1, 1, 1, true),
                             false);
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
      {gated_of(kSumsScaled, kFp8PairsInTurns, 64, 192, 2, 1, 2), false},
      {gated_of(kSumsScaled, kFp8PairsInTurns, 128, 64, 2, 2, 1), true},
      {gated_of(kSumsScaled, kFp8PairsTogether, 256, 96, 2, 2, 1), true},
      {gated_of(kSumsScaled, kFp8PairsTogether, 64, 160, 1, 1, 1), false},
      {gated_of(kSumsScaled, kFp8PairsTogether, 256, 32, 2, 1, 1, true), true},
      {gated_of(kSumsScaled, kFp8PairsTogether, 64, 16, 1, 1, 1, true, 2), true},
      {gated_of(kSumsScaled, kFp8PairsTogether, 128, 8, 1, 1, 1, true, 1, 3), false},
      {gated_of(kSumsScaled, kFp8PairsTogether, 64, 16, 1, 1, 1, true, 1, 2, true), false}};
  for (const Fp8GatedGemm& gemm : configs)
    for (const auto& [m, n, k] : {std::array{150, 392, 384}, {20, 136, 512}}) gemm.check(m, n, k);
}
