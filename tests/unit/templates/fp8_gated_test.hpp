// What tests of gated GEMMs of 8-bit floats on the host target share: operands and their scales.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kiln/block_scales.hpp"
#include "template_test.hpp"

namespace template_test {

using kiln::float8_e4m3;
using kiln::templates::GatedProblem, kiln::templates::GatedScales, kiln::templates::gated_rows;

/// Integers with scales of powers of two. Weights that nobody has are `others`, and scales of A
/// that lie behind its rows NaNs.
struct Fp8GatedOperands {
  Fp8GatedOperands(const GatedProblem& problem, GatedScales of, bool stacked,
                   std::size_t offset = 0, float others = NAN)
      : p(problem),
        kind(of),
        is_stacked(stacked),
        a(size(p.m) * size(p.k), offset),
        w((stacked ? 2 * size(p.n) : size(gated_rows(p.n))) * size(p.k), offset),
        scales_a(of == GatedScales::rows     ? size(p.m)
                 : of == GatedScales::blocks ? of_k() * leading()
                                             : 1,
                 offset),
        scales_w(of == GatedScales::rows     ? 2 * size(p.n)
                 : of == GatedScales::blocks ? 2 * of_n() * of_k()
                                             : 1,
                 offset) {
    a.integers(2, 1);
    w.integers(2, 2);
    constexpr float kPowers[] = {0.25f, -0.5f, 1, 2, 4};
    for (std::size_t i = 0; i < scales_a.size(); ++i)
      scales_a[i] = of == GatedScales::blocks && i % leading() >= size(p.m) ? NAN : kPowers[i % 5];
    for (std::size_t j = 0; j < scales_w.size(); ++j) scales_w[j] = kPowers[(j * 3 + 1) % 5];
    std::vector<bool> used(p.k == 0 ? 0 : w.size() / size(p.k));
    for (std::size_t j = 0; j < size(p.n) && p.k > 0; ++j) used[at(j)] = used[at(j, true)] = true;
    for (std::size_t row = 0; row < used.size(); ++row)
      for (std::size_t l = 0; l < size(p.k) && !used[row]; ++l)
        w[row * size(p.k) + l] = float8_e4m3(others);
  }
  static std::size_t size(long long count) { return static_cast<std::size_t>(count); }
  std::size_t at(std::size_t column, bool up = false) const {
    if (is_stacked) return column + (up ? size(p.n) : 0);
    return column / 8 * 16 + column % 8 + (up ? 8 : 0);
  }
  std::size_t of_k() const { return size(kiln::scale_blocks(p.k)); }
  std::size_t of_n() const { return size(kiln::scale_blocks(p.n)); }
  std::size_t leading() const { return size(kiln::scale_leading(p.m)); }
  float scale(std::size_t i, std::size_t j, bool up, std::size_t l) {
    switch (kind) {
      case GatedScales::rows:
        return scales_a[i] * scales_w[j + (up ? size(p.n) : 0)];
      case GatedScales::blocks:
        return scales_a[l / 128 * leading() + i] *
               scales_w[(j / 128 + (up ? of_n() : 0)) * of_k() + l / 128];
      default:
        return scales_a[0] * scales_w[0];
    }
  }
  /// Scaled.
  float sum(std::size_t i, std::size_t j, bool up) {
    float sum = 0;
    for (std::size_t l = 0; l < size(p.k); ++l)
      sum += static_cast<float>(a[i * size(p.k) + l]) *
             static_cast<float>(w[at(j, up) * size(p.k) + l]) * scale(i, j, up, l);
    return sum;
  }
  /// With ReLU.
  float product(std::size_t i, std::size_t j) {
    return std::max(sum(i, j, false), 0.0f) * sum(i, j, true);
  }
  const float8_e4m3* const_a() { return a.data(); }
  const float8_e4m3* const_w() { return w.data(); }
  const float* of_a() { return scales_a.data(); }
  const float* of_w() { return scales_w.data(); }

  GatedProblem p;
  GatedScales kind;
  bool is_stacked;
  Array<float8_e4m3> a, w;
  Array<float> scales_a, scales_w;
};

/// Elements that are not the same, or all if memory beside them was touched. Zeros may have either
/// sign.
inline std::size_t different(Array<float8_e4m3>& got, const std::vector<float8_e4m3>& want) {
  std::size_t wrong = got.margins_intact() ? 0 : want.size() + 1;
  for (std::size_t i = 0; i < want.size(); ++i)
    wrong +=
        (got[i].bits & 0x7f) != 0 || (want[i].bits & 0x7f) != 0 ? got[i].bits != want[i].bits : 0;
  return wrong;
}

/// Scales of blocks of m x n values, and the values by these, that are not what they should be;
/// what lies behind the rows of scales is as it was, a NaN.
inline std::size_t different_blocks(Array<float8_e4m3>& q, Array<float>& scales,
                                    const std::vector<float>& values, std::size_t m,
                                    std::size_t n) {
  const auto leading = static_cast<std::size_t>(kiln::scale_leading(static_cast<int>(m)));
  std::vector<float8_e4m3> want(m * n);
  std::size_t wrong = scales.margins_intact() ? 0 : 1;
  for (std::size_t b = 0; b < (n + 127) / 128; ++b)
    for (std::size_t i = 0; i < leading; ++i) {
      const float got = scales[b * leading + i];
      if (i >= m) {
        wrong += !std::isnan(got);
        continue;
      }
      const std::size_t end = std::min(n, b * 128 + 128);
      float most = 0;
      for (std::size_t j = b * 128; j < end; ++j)
        most = std::max(most, std::abs(values[i * n + j]));
      const float scale = std::max(most / 448, std::numeric_limits<float>::min());
      wrong += !(got == scale);
      for (std::size_t j = b * 128; j < end; ++j)
        want[i * n + j] = float8_e4m3(values[i * n + j] * (1 / scale));
    }
  return wrong + different(q, want);
}

}  // namespace template_test
