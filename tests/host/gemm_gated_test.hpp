// What tests of gated GEMMs for Hopper on the host share: operands of 8-bit floats with their
// scales, maps of weights, and results in 8 bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "gemm_tma_test.hpp"
#include "kiln/block_scales.hpp"

namespace host_test {

using kiln::float8_e4m3;
using kiln::templates::GemmOperands;

/// A config of such operands.
constexpr GemmTma gated_of(GemmOperands operands, GemmSchedule schedule, int block_m, int block_n,
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

/// Of the product of gate and up.
inline int gated_columns(int n) { return (n + 7) / 8 * 16; }
/// The row of the weights for a column of the result.
inline std::size_t gated_row(bool stacked, std::size_t column, bool up, std::size_t n) {
  return stacked ? column + (up ? n : 0) : column / 8 * 16 + column % 8 + (up ? 8 : 0);
}

/// The map of weights w, n of gate and n of up.
inline HostTensorMap weights_map(const GemmTma& c, HostElement type, const void* w, bool stacked,
                                 int n, int k) {
  const HostTensorMap interleaved = operand_map(c, type, w, true, k, gated_columns(n));
  if (!stacked) return interleaved;
  const auto depth = std::size_t(k), bytes = std::size_t(c.element());
  HostTensorMap map =  // [n / 8][gate, up][8][k]
      tensor_map(w, type, {depth, 8, 2, std::uint64_t(n / 8)},
                 {unsigned(c.box_k()), 8, 2, unsigned(interleaved.box[1]) / 16}, 128);
  map.stride[0] = depth * bytes;
  map.stride[1] = depth * std::size_t(n) * bytes;
  map.stride[2] = depth * 8 * bytes;
  return map;
}

/// Quarters with scales of powers of two: those of rows, or of blocks. All products with ReLU are
/// exact. Weights that belong to no column are `others`.
struct GatedFp8Operands {
  GatedFp8Operands(bool blocks, bool stacked, int m, int n, int k, float others)
      : a(quarters(std::size_t(m) * std::size_t(k), 3)),
        w(quarters(std::size_t(stacked ? 2 * n : gated_columns(n)) * std::size_t(k), 4)),
        v(std::size_t(m) * std::size_t(n)) {
    constexpr float kPowers[] = {0.25f, -0.5f, 1, 2, 4};
    const auto depth = std::size_t(k), width = std::size_t(n), height = std::size_t(m);
    const auto leading = std::size_t(kiln::scale_leading(m)),
               of_k = std::size_t(kiln::scale_blocks(k)), of_n = std::size_t(kiln::scale_blocks(n));
    scales_a.resize(blocks ? of_k * leading : height);
    scales_w.resize(2 * (blocks ? of_n * of_k : width));
    for (std::size_t i = 0; i < scales_a.size(); ++i)
      scales_a[i] = blocks && i % leading >= height ? NAN : kPowers[i % 5];
    for (std::size_t j = 0; j < scales_w.size(); ++j) scales_w[j] = kPowers[(j * 3 + 1) % 5];
    std::vector<bool> used(w.size() / depth, false);
    for (std::size_t i = 0; i < height; ++i)
      for (std::size_t j = 0; j < width; ++j) {
        float sums[2] = {};
        for (const std::size_t up : {0, 1}) {
          const std::size_t row = gated_row(stacked, j, up == 1, width);
          used[row] = true;
          for (std::size_t l = 0; l < depth; ++l)
            sums[up] += float(a[i * depth + l]) * float(w[row * depth + l]) *
                        (blocks ? scales_a[l / 128 * leading + i] *
                                      scales_w[(j / 128 + up * of_n) * of_k + l / 128]
                                : scales_a[i] * scales_w[j + up * width]);
        }
        v[i * width + j] = std::max(sums[0], 0.0f) * sums[1];
      }
    for (std::size_t row = 0; row < used.size(); ++row)
      for (std::size_t l = 0; l < depth && !used[row]; ++l)
        w[row * depth + l] = float8_e4m3(others);
  }

  std::vector<float8_e4m3> a, w;
  std::vector<float> scales_a, scales_w;
  std::vector<float> v;
};
/// The type of a GEMM of such operands.
inline std::string gated_fp8_type(const GemmTma& c) {
  return std::string("kiln::templates::Fp8<__nv_bfloat16, kiln::templates::Fp8Sums::") +
         (c.operands == GemmOperands::fp8 ? "fast"
          : c.scaled()                    ? "scaled"
                                          : "exact") +
         ">";
}

/// q [m][n], `offset` bytes past an address of 16, and scales of its blocks, with margins.
class GatedFp8Results {
 public:
  static constexpr float kGiven = 1.0f / 16;

  GatedFp8Results(int m, int n, std::size_t offset)
      : m_(std::size_t(m)),
        n_(std::size_t(n)),
        leading_(std::size_t(kiln::scale_leading(m))),
        memory_(m_ * n_ + 2 * kMargin + 32, kUntouched),
        scales_(std::size_t(kiln::scale_blocks(n)) * leading_ + 2 * kMargin, kPoison) {
    q_ = memory_.data() + kMargin +
         (16 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 16) % 16 + offset;
  }
  std::uint8_t* q() { return q_; }
  float* scales() { return scales_.data() + kMargin; }

  /// Whether the results are those of v, by scales of blocks or kGiven, with nothing else written.
  void check(const std::vector<float>& v, bool blocks) {
    std::vector<float> want_scales(scales_.size(), kPoison);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < m_; ++i)
      for (std::size_t j = 0; j < n_; ++j) {
        float of = kGiven;
        if (blocks) {
          const std::size_t first = j / 128 * 128, end = std::min(first + 128, n_);
          float most = 0;
          for (std::size_t h = first; h < end; ++h) most = std::max(most, std::abs(v[i * n_ + h]));
          of = std::max(most / 448, std::numeric_limits<float>::min());
          want_scales[kMargin + j / 128 * leading_ + i] = of;
        }
        const std::uint8_t want = float8_e4m3(v[i * n_ + j] * (1 / of)).bits, got = q_[i * n_ + j];
        wrong += want != got && ((want | got) & 0x7f) != 0;  // zeros may have either sign
        q_[i * n_ + j] = kUntouched;
      }
    CHECK(wrong == 0);
    CHECK(std::count(memory_.begin(), memory_.end(), kUntouched) == std::ptrdiff_t(memory_.size()));
    CHECK(scales_ == want_scales);
  }

 private:
  static constexpr std::size_t kMargin = 4096;
  static constexpr std::uint8_t kUntouched = 0xa5;
  static constexpr float kPoison = -7;

  std::size_t m_, n_, leading_;
  std::vector<std::uint8_t> memory_;
  std::vector<float> scales_;
  std::uint8_t* q_;
};

}  // namespace host_test
