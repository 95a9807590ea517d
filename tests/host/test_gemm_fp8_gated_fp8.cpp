// Gated GEMMs of 8-bit floats for Hopper whose results are 8-bit floats, on the host: a given scale
// and those of blocks, with scales of rows and of blocks of operands, exact and fast sums, tiles
// whose halves are added one after the other, schedules, clusters, swap and shared k, with ragged
// edges. With ReLU all products are exact, and so are their roundings.
#include <array>
#include <cmath>
#include <optional>

#include "gemm_gated_test.hpp"

using namespace host_test;

namespace {

const char* const kFp8GatedFp8Text =
    "#include <gemm/fp8/gemm_fp8_gated_fp8.cuh>\n#include <gemm/gated/gemm_gated_fp8_tma.cuh>\n";

class Fp8GatedFp8Gemm {
 public:
  Fp8GatedFp8Gemm(const GemmTma& c, bool stacked, bool blocks)
      : c_(c), stacked_(stacked), blocks_(blocks), kernel_(kFp8GatedFp8Text, entry()) {}

  /// q begins `offset` bytes past an address of 16.
  void check(int m, int n, int k, std::size_t offset = 0) const {
    CAPTURE(text_of(c_), stacked_, blocks_, m, n, k, offset);
    REQUIRE(c_.fits());
    // A largest magnitude leaves out NaNs.
    const GatedFp8Operands x(c_.scaled(), stacked_, m, n, k, blocks_ ? 448 : NAN);
    const HostTensorMap map_a = operand_map(c_, HostElement::u8, x.a.data(), false, k, m),
                        map_w = weights_map(c_, HostElement::u8, x.w.data(), stacked_, n, k);
    GatedFp8Results results(m, n, offset);
    const int product = gated_columns(n);
    TileWorkspace shared(c_, std::size_t(c_.tiles_m(m, product)) * c_.tiles_n(m, product));
    const float *const of_a = x.scales_a.data(), *const of_w = x.scales_w.data();
    const auto launch = [&](auto... more) {
      kernel_.in_clusters({unsigned(c_.cluster())}, {c_.grid(m, product, 3)},
                          {unsigned(c_.threads())}, c_.shared_bytes(), results.q(), map_a, map_w, m,
                          n, k, of_a, of_w, more...);
    };
    const float scale = results.kGiven;
    if (blocks_)
      launch(results.scales());
    else
      launch(&scale, shared.argument());
    results.check(x.v, blocks_);
    CHECK(shared.ready_again());
  }

 private:
  std::string entry() const {
    return std::string("kiln::templates::gemm_gated_fp8_") + (blocks_ ? "blocks" : "tensor") +
           "_tma<" + text_of(c_) + ", " + gated_fp8_type(c_) +
           ", kiln::templates::GatedWeights::" + (stacked_ ? "stacked" : "interleaved") +
           ", kiln::epilogue::Relu, kiln::epilogue::" + (c_.scaled() ? "Block" : "Row") +
           "Scales, const float*, const float*>";
  }

  GemmTma c_;
  bool stacked_, blocks_;
  Kernel kernel_;
};

constexpr auto kToFp8Together = GemmSchedule::cooperative, kToFp8InTurns = GemmSchedule::pingpong;
constexpr auto kToFp8Fast = GemmOperands::fp8, kToFp8Exact = GemmOperands::fp8_exact,
               kToFp8Scaled = GemmOperands::fp8_scaled;

/// Two stages of the widest tiles take all shared memory there is.
constexpr GemmTma wide(GemmOperands operands, GemmSchedule schedule, int block_m, int consumers,
                       int cluster_m = 1, int cluster_n = 1) {
  GemmTma c = gated_of(operands, schedule, block_m, 256, consumers, cluster_m, cluster_n);
  c.stages = 2;
  return c;
}
static_assert(wide(kToFp8Scaled, kToFp8Together, 64, 1).halved() &&
              wide(kToFp8Exact, kToFp8InTurns, 64, 2).halved() &&
              !wide(kToFp8Fast, kToFp8Together, 64, 1).halved());

constexpr GemmTma kHalvedSwapped = [] {
  GemmTma c = gated_of(kToFp8Scaled, kToFp8Together, 256, 112, 2, 1, 1, true);
  c.stages = 2;
  return c;
}();
static_assert(kHalvedSwapped.halved() && kHalvedSwapped.fits());

}  // namespace

TEST_CASE("gated GEMMs of 8-bit floats for Hopper leave as such with one scale",
          "[host][gemm_tma]") {
  const Fp8GatedFp8Gemm rows(gated_of(kToFp8Exact, kToFp8Together, 128, 64, 2, 1, 1), true, false);
  const Fp8GatedFp8Gemm blocks(gated_of(kToFp8Scaled, kToFp8Together, 128, 96, 2, 1, 1), false,
                               false);
  for (const auto& [m, n, k] : {std::array{150, 72, 256}, {1, 8, 128}, {70, 400, 384}})
    for (const std::size_t offset : {0, 1}) {
      rows.check(m, n, k, offset);
      blocks.check(m, n, k, offset);
    }
  const Fp8GatedFp8Gemm swapped(gated_of(kToFp8Fast, kToFp8Together, 64, 24, 1, 1, 1, true), false,
                                false);
  for (const auto& [m, n, k] : {std::array{20, 72, 272}, {1, 5, 16}, {60, 203, 128}})
    swapped.check(m, n, k);
}

TEST_CASE("gated GEMMs of 8-bit floats for Hopper leave as such with scales of blocks",
          "[host][gemm_tma]") {
  const Fp8GatedFp8Gemm blocks(wide(kToFp8Scaled, kToFp8Together, 64, 1), true, true);
  for (const auto& [m, n, k] : {std::array{70, 264, 256}, {1, 8, 128}}) blocks.check(m, n, k);
  blocks.check(5, 136, 384, 1);
  const Fp8GatedFp8Gemm exact(wide(kToFp8Exact, kToFp8Together, 64, 1), false, true);
  for (const auto& [m, n, k] : {std::array{70, 264, 272}, {9, 133, 16}}) exact.check(m, n, k);
  Fp8GatedFp8Gemm(wide(kToFp8Fast, kToFp8Together, 64, 1), false, true).check(9, 133, 144);
  const Fp8GatedFp8Gemm columns(gated_of(kToFp8Scaled, kToFp8Together, 256, 24, 2, 1, 1, true),
                                false, true);
  for (const auto& [m, n, k] : {std::array{50, 403, 256}, {3, 5, 128}}) columns.check(m, n, k);
}

TEST_CASE(
    "gated GEMMs of and to 8-bit floats for Hopper: each schedule, cluster and way to share k",
    "[host][gemm_tma][long]") {
  const Fp8GatedFp8Gemm gemms[] = {
      {wide(kToFp8Scaled, kToFp8InTurns, 64, 2), false, true},
      {wide(kToFp8Exact, kToFp8InTurns, 64, 2, 1, 2), true, true},
      {wide(kToFp8Scaled, kToFp8Together, 128, 2, 2, 1), true, true},
      {wide(kToFp8Exact, kToFp8Together, 64, 1, 1, 2), true, true},
      {wide(kToFp8Fast, kToFp8Together, 128, 2), true, true},
      {gated_of(kToFp8Scaled, kToFp8Together, 256, 96, 2, 1, 1, true), true, true},
      {kHalvedSwapped, false, true},
      {gated_of(kToFp8Exact, kToFp8Together, 256, 16, 2, 1, 1, true), true, true},
      {gated_of(kToFp8Scaled, kToFp8InTurns, 64, 96, 2, 1, 2), false, false}};
  for (const Fp8GatedFp8Gemm& gemm : gemms)
    for (const auto& [m, n, k] : {std::array{150, 272, 384}, {70, 200, 128}}) gemm.check(m, n, k);
  for (const bool stacked : {false, true}) {
    const Fp8GatedFp8Gemm split(gated_of(kToFp8Scaled, kToFp8Together, 64, 16, 1, 1, 1, true, 2),
                                stacked, false);
    const Fp8GatedFp8Gemm parts(gated_of(kToFp8Exact, kToFp8Together, 128, 8, 1, 1, 1, true, 1, 3),
                                stacked, false);
    for (const auto& [m, n, k] : {std::array{20, 72, 512}, {3, 136, 384}}) {
      split.check(m, n, k);
      parts.check(m, n, k);
    }
  }
}
