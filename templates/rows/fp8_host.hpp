// What the host halves of kernels with 8-bit results share: launches of tiles, workloads,
// references, and a judgement of results that depend on a device's functions.
#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "templates/rows/quantize.hpp"
#include "templates/rows/row_host.hpp"

namespace kiln::templates {

/// The launch of kernels whose thread blocks take tiles. A launch with more blocks than it may have
/// is refused.
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

// q and the scales that are computed.

inline void add_scaled_by_rows(const HiddenRows& p, Workload& w) {
  const auto rows = static_cast<std::size_t>(p.rows);
  w.output<float8_e4m3>(rows * static_cast<std::size_t>(p.hidden)).output<float>(rows);
}
inline void add_scaled_by_blocks(const HiddenRows& p, Workload& w) {
  const auto rows = static_cast<std::size_t>(p.rows);
  w.output<float8_e4m3>(rows * static_cast<std::size_t>(p.hidden));
  w.output<float>(Rows{.rows = static_cast<std::size_t>(scale_blocks(p.hidden)),
                       .columns = rows,
                       .leading = static_cast<std::size_t>(scale_leading(p.rows))});
}

// Workloads of each way to scale, with `kRead` elements of x for each of q.

template <class T, int kRead>
void rows_workload(const HiddenRows& p, Workload& w) {
  add_scaled_by_rows(p, w);
  w.input<T>(static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.hidden) * kRead);
  w.scalar(p.rows).scalar(p.hidden);
}

template <class T, int kRead>
void blocks_workload(const HiddenRows& p, Workload& w) {
  add_scaled_by_blocks(p, w);
  w.input<T>(static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.hidden) * kRead);
  w.scalar(p.rows).scalar(p.hidden);
}

template <class T, int kRead>
void tensor_workload(const HiddenRows& p, Workload& w) {
  const auto elements = static_cast<std::size_t>(p.rows) * static_cast<std::size_t>(p.hidden);
  w.output<float8_e4m3>(elements).template input<T>(kRead * elements);
  w.input<float>(1, {1.0 / 512, 1.0 / 256}).scalar(p.rows).scalar(p.hidden);
}

/// Quantizes elements that have one scale, and returns it.
float quantize(float8_e4m3* q, std::span<const float> values);

/// A row's elements.
using RowValues = std::function<std::vector<float>(std::ptrdiff_t)>;
void quantize_by_rows(float8_e4m3* q, float* scales, int rows, int hidden, const RowValues& row);
/// `leading` as a GEMM has it of more rows; 0: scale_leading(rows).
void quantize_by_blocks(float8_e4m3* q, float* scales, int rows, int hidden, const RowValues& row,
                        long long leading = 0);
void quantize_by_scale(float8_e4m3* q, float scale, int rows, int hidden, const RowValues& row);

/// How many elements may become a neighbour of what they should: of each row, or of all rows.
struct NeighboursAllowed {
  double part;
  bool of_each_row = false;
  double of_scale = 1e-5;  ///< by how much of itself a scale may differ
  /// A scale that is a smaller part of the largest one may differ as much as one of that part: of
  /// sums that cancel, errors are as large as of others.
  double least_scale = 0;
  double near_zero = 0;  ///< elements that differ by no more are neighbours, too

  /// A neighbour is an eighth off at most, and a twelfth on average; a few of them may be all that
  /// there are.
  Tolerance tolerance() const {
    return {.relative = 0.25, .absolute = 0, .norm = std::sqrt(part) / 10};
  }
  double of(std::ptrdiff_t elements) const { return 4 + part * static_cast<double>(elements); }
};

/// What a kernel's 8-bit floats have scales of, and which argument these are.
struct Fp8Scales {
  enum class Of { rows, blocks, all } of;
  std::size_t argument;
};

/// Why 8-bit floats, which are argument 0, and their scales are not the right ones; empty: they
/// are. An element within float rounding of the midpoint between two e4m3 numbers may become
/// either. A kernel that rounds at another place, or differs by a thousandth, does so for many more
/// elements than `allowed`.
std::string wrong_fp8(const HiddenRows& p, Fp8Scales scales, const NeighboursAllowed& allowed,
                      kiln::detail::HostArguments got, kiln::detail::HostArguments expected);

}  // namespace kiln::templates
