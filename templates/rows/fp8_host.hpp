// What the host halves of kernels with 8-bit results share: launches of tiles, workloads,
// references, and a judgement of results that depend on a device's functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <span>
#include <string>
#include <utility>

#include "kiln/detail/format.hpp"
#include "templates/rows/quantize.hpp"
#include "templates/rows/row_space.hpp"

namespace kiln::templates {

/// Of kernels whose thread blocks take tiles. More blocks than a launch may have are a problem that
/// the launch is refused for.
inline Launch tile_launch(const RowConfig& c, double blocks) {
  constexpr double kMost = 4294967295.0;
  return {{static_cast<unsigned>(blocks < kMost ? blocks : kMost)},
          {static_cast<unsigned>(c.threads())}};
}
/// Tiles as fp8_tiles.cuh has them.
inline Launch row_tiles_launch(const RowConfig& c, const HiddenRows& p) {
  return tile_launch(
      c, std::ceil(1.0 * p.rows / c.kept) * static_cast<double>(column_tiles(c, p.hidden)));
}

// Workloads of each way to scale, with `kRead` elements of x for each of q.

template <class T, int kRead>
void rows_workload(const HiddenRows& p, Workload& w) {
  const auto rows = static_cast<std::size_t>(p.rows);
  const auto elements = rows * static_cast<std::size_t>(p.hidden);
  w.output<float8_e4m3>(elements).template output<float>(rows).template input<T>(kRead * elements);
  w.scalar(p.rows).scalar(p.hidden);
}

template <class T, int kRead>
void blocks_workload(const HiddenRows& p, Workload& w) {
  const auto rows = static_cast<std::size_t>(p.rows), hidden = static_cast<std::size_t>(p.hidden);
  w.output<float8_e4m3>(rows * hidden);
  w.output<float>(Rows{.rows = static_cast<std::size_t>(scale_blocks(p.hidden)),
                       .columns = rows,
                       .leading = static_cast<std::size_t>(scale_leading(p.rows))});
  w.input<T>(kRead * rows * hidden).scalar(p.rows).scalar(p.hidden);
}

template <class T, int kRead>
void tensor_workload(const HiddenRows& p, Workload& w) {
  const auto elements = static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.hidden);
  w.output<float8_e4m3>(elements).template input<T>(kRead * elements);
  w.input<float>(1, {1.0 / 512, 1.0 / 256}).scalar(p.rows).scalar(p.hidden);
}

template <class V>
void scale_to_fp8(float8_e4m3* q, std::span<const V> values, float scale) {
  const float factor = 1 / scale;
  for (const V& value : values) *q++ = float8_e4m3(static_cast<float>(value) * factor);
}

/// Quantizes elements that have one scale, and returns it.
template <class V>
float quantize(float8_e4m3* q, std::span<const V> values) {
  float most = 0;
  for (const V& value : values) most = std::fmax(most, std::fabs(static_cast<float>(value)));
  const float scale = fp8_scale(most);
  scale_to_fp8(q, values, scale);
  return scale;
}

// In the following, `row(r)` is a span or a vector of row r's elements.

template <class Row>
void quantize_by_rows(float8_e4m3* q, float* scales, int rows, int hidden, Row row) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    const auto values = row(r);
    scales[r] = quantize(q + r * hidden, std::span(values));
  });
}

template <class Row>
void quantize_by_blocks(float8_e4m3* q, float* scales, int rows, int hidden, Row row) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    const auto values = row(r);
    for (int h = 0; h < hidden; h += kScaleBlock) {
      const auto count = static_cast<std::size_t>(std::min(kScaleBlock, hidden - h));
      scales[h / kScaleBlock * scale_leading(rows) + r] = quantize(
          q + r * hidden + h, std::span(values).subspan(static_cast<std::size_t>(h), count));
    }
  });
}

template <class Row>
void quantize_by_scale(float8_e4m3* q, float scale, int rows, int hidden, Row row) {
  for_each_row(rows, [=](std::ptrdiff_t r) {
    const auto values = row(r);
    scale_to_fp8(q + r * hidden, std::span(values), scale);
  });
}

/// How many elements may become a neighbour of what they should: of each row, or of all rows.
struct NeighboursAllowed {
  double part;
  bool of_each_row = false;
  double of_scale = 1e-5;  ///< by how much of itself a scale may differ
  /// A scale that is a smaller part of the largest one may differ as much as one of that part: of
  /// sums that cancel, errors are as large as of others.
  double least_scale = 0;
  double near_zero = 0;  ///< elements that differ by no more are neighbours, too
  double of(std::ptrdiff_t elements) const { return 4 + part * static_cast<double>(elements); }
};

/// Why 8-bit floats and their scales are not the right ones; empty: they are. An element within
/// float rounding of the midpoint between two e4m3 numbers may become either. A kernel that rounds
/// at another place, or differs by a thousandth, does so for many more elements than `allowed`.
/// `scale_at(r, h)`: the place of an element's scale among `scales`.
template <class ScaleAt>
std::string wrong_fp8(const HiddenRows& p, const float8_e4m3* got, const float* scales,
                      const float8_e4m3* expected, const float* right_scales,
                      NeighboursAllowed allowed, ScaleAt scale_at) {
  const auto order = [](float8_e4m3 x) { return x.bits & 0x80 ? -(x.bits & 0x7f) : x.bits & 0x7f; };
  std::ptrdiff_t neighbours = 0, of_row = 0;
  float least = 0;
  if (allowed.least_scale > 0)
    for (std::ptrdiff_t r = 0; r < p.rows; ++r)
      for (int h = 0; h < p.hidden; h += kScaleBlock)
        if (const float scale = right_scales[scale_at(r, h)]; std::isfinite(scale))
          least = std::fmax(least, scale);
  least *= static_cast<float>(allowed.least_scale);
  for (std::ptrdiff_t r = 0; r < p.rows; ++r) {
    std::ptrdiff_t compared = -1;
    of_row = 0;
    for (int h = 0; h < p.hidden; ++h) {
      if (const std::ptrdiff_t s = scale_at(r, h); s != std::exchange(compared, s)) {
        const float right = right_scales[s];
        const auto off = static_cast<double>(std::fabs(scales[s] - right));
        if (scales[s] != right &&
            !(off <= allowed.of_scale * static_cast<double>(std::fmax(right, least))))
          return detail::format("scales[{}] is {}, not {}", s, scales[s], right);
      }
      const std::ptrdiff_t i = r * p.hidden + h;
      const int steps = std::abs(order(got[i]) - order(expected[i]));
      const bool both = std::isnan(got[i]) == std::isnan(expected[i]);
      of_row += steps > 0;
      const auto off = static_cast<double>(
          std::fabs(static_cast<float>(got[i]) - static_cast<float>(expected[i])));
      if (!both || (steps > 1 && !(off <= allowed.near_zero)))
        return detail::format("q[{}][{}] is {}, not {}", r, h, static_cast<float>(got[i]),
                              static_cast<float>(expected[i]));
    }
    neighbours += of_row;
    if (allowed.of_each_row && static_cast<double>(of_row) > allowed.of(p.hidden))
      return detail::format("{} elements of row {} are rounded to a neighbour", of_row, r);
  }
  if (!allowed.of_each_row &&
      static_cast<double>(neighbours) > allowed.of(std::ptrdiff_t{p.rows} * p.hidden))
    return detail::format("{} elements are rounded to a neighbour", neighbours);
  return "";
}

}  // namespace kiln::templates
