// What the host halves of grouped GEMMs share: space, grid, cost, and the sizes of groups that
// tunings draw.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kiln/block_scales.hpp"
#include "templates/gemm/gemm_configs.hpp"
#include "templates/gemm/gemm_cost.hpp"
#include "templates/gemm/gemm_host.hpp"
#include "templates/gemm/gemm_space.hpp"
#include "templates/gemm/grouped/gemm_grouped.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

inline constexpr auto kGroupedOp = GemmTranspose::nt;

/// Weights of draws: groups that are equal, that differ by much, with every second one empty.
inline const std::vector<double> kGroupDraws{2, 1, 1};

/// What mixes small and large numbers of groups that follow each other.
inline constexpr std::int64_t kMixed = 1009;

/// About `rows` rows, of which a group has `most` at most.
inline std::vector<int> drawn_rows(int groups, double rows, int most, std::size_t draw) {
  const auto share = [&](std::int64_t group) {
    if (draw == 1) return 1.0 / (1.0 + static_cast<double>(group * kMixed % groups));
    return draw == 0 || group % 2 == 0 ? 1.0 : 0.0;
  };
  double all = 0, before = 0;
  for (int g = 0; g < groups; ++g) all += share(g);
  std::vector<int> drawn;
  for (int g = 0; g < groups; ++g) {
    const double begin = std::round(rows * (before / all));
    before += share(g);
    const double end = g == groups - 1 ? rows : std::round(rows * (before / all));
    drawn.push_back(static_cast<int>(std::min(end - begin, 1.0 * most)));
  }
  return drawn;
}

/// The rows that a group of a masked problem has on average.
inline double expected_rows(const MaskedProblem& p) {
  return p.expected > 0 ? std::min(p.expected, p.m) : p.m / 2.0;
}
inline std::vector<int> drawn_rows(const GroupedProblem& p, std::size_t draw) {
  return drawn_rows(p.groups, p.m, p.m, draw);
}
inline std::vector<int> drawn_rows(const MaskedProblem& p, std::size_t draw) {
  return drawn_rows(p.groups, std::round(expected_rows(p) * p.groups), p.m, draw);
}
/// Groups share blocks of row_alignment rows. Padding takes a part of each group's last one, about
/// half on average.
inline std::vector<int> drawn_rows(const PaddedProblem& p, std::size_t draw) {
  const std::int64_t high = std::max(p.row_alignment, 1), blocks = (p.m + high - 1) / high;
  std::vector<int> rows =
      drawn_rows(p.groups, static_cast<double>(blocks), static_cast<int>(blocks), draw);
  std::int64_t begin = 0;
  for (std::size_t g = 0; g < rows.size(); ++g) {
    if (rows[g] == 0) continue;
    const std::int64_t next = begin + rows[g] * high;
    const std::int64_t end = next - static_cast<std::int64_t>(g) * kMixed % high;
    rows[g] = static_cast<int>(std::min<std::int64_t>(end, p.m) - begin);
    begin = next;
  }
  return rows;
}

/// The mean of f(a draw's rows of each group).
template <class Problem, class F>
double expectation(const Problem& p, const F& f) {
  double sum = 0, weights = 0;
  for (std::size_t draw = 0; draw < kGroupDraws.size(); ++draw) {
    sum += kGroupDraws[draw] * f(drawn_rows(p, draw));
    weights += kGroupDraws[draw];
  }
  return sum / weights;
}

inline double all_of(const std::vector<int>& rows) {
  double sum = 0;
  for (const int r : rows) sum += r;
  return sum;
}
/// Bytes that must be moved: empty groups' matrices are not read.
template <class T, class Problem>
double traffic_of(const Problem& p, const std::vector<int>& rows) {
  const double used = static_cast<double>(rows.size()) - std::count(rows.begin(), rows.end(), 0);
  const double scales =
      kBlockScaled<T> ? 4.0 * scale_blocks(p.k) * (all_of(rows) + used * scale_blocks(p.n)) : 0;
  return sizeof(GemmOperand<T>) * 1.0 * p.k * (all_of(rows) + used * p.n) +
         sizeof(GemmResult<T>) * all_of(rows) * p.n + scales;
}

/// Rows and columns of C that the blocks of a cluster, or one without, compute at a time.
struct GroupedTile {
  int rows, columns;
};
inline GroupedTile tile_of(const Gemm& c) {
  if (!c.uses_tma()) return {c.block_m, c.block_n};
  const GemmTma t = c.tma();
  const int rows = t.block_m * t.cluster_m, columns = t.block_n * t.cluster_n;
  return t.swap ? GroupedTile{columns, rows} : GroupedTile{rows, columns};
}

/// The most tiles that there may be, whatever the groups' sizes are.
inline double most_tiles(const Gemm& c, const GroupedProblem& p) {
  const GroupedTile tile = tile_of(c);
  return (std::floor(1.0 * p.m / tile.rows) + std::min(p.groups, p.m)) *
         std::ceil(1.0 * p.n / tile.columns);
}
inline double most_tiles(const Gemm& c, const PaddedProblem& p) {
  const GroupedTile tile = tile_of(c);
  const double blocks = std::ceil(1.0 * p.m / p.row_alignment);
  const double high = p.row_alignment % tile.rows == 0
                          ? std::ceil(1.0 * p.m / tile.rows)
                          : std::floor(1.0 * p.m / tile.rows) + std::min<double>(p.groups, blocks);
  return high * std::ceil(1.0 * p.n / tile.columns);
}
inline double most_tiles(const Gemm& c, const MaskedProblem& p) {
  const GroupedTile tile = tile_of(c);
  return std::ceil(1.0 * p.m / tile.rows) * p.groups * std::ceil(1.0 * p.n / tile.columns);
}

template <class Problem>
unsigned grouped_grid(const Gemm& c, const Problem& p, const DeviceLimits& d) {
  constexpr double kMost = 4294967295.0;  // more than any device takes
  if (p.m <= 0 || p.n <= 0 || p.groups <= 0) return 0;
  const double tiles = most_tiles(c, p);
  if (!c.uses_tma()) return static_cast<unsigned>(std::min(tiles, kMost));
  const int cluster = c.tma().cluster();
  const int clusters = std::max(1, d.usable_multiprocessors() * c.resident / cluster);
  return static_cast<unsigned>(std::min<double>(tiles, clusters)) * static_cast<unsigned>(cluster);
}

template <class T, class Problem>
Launch grouped_launch(const Gemm& c, const Problem& p, const DeviceLimits& d) {
  Launch launch{{grouped_grid(c, p, d)},
                {static_cast<unsigned>(c.threads())},
                c.shared_bytes(sizeof(GemmOperand<T>), kGroupedOp, GemmTypes<T>::kOperands)};
  if (c.uses_tma()) launch.cluster.x = static_cast<unsigned>(c.tma().cluster());
  return launch;
}

template <class T, class Problem>
constexpr Space<Gemm, Problem> grouped_space() {
  using P = const Problem&;
  using D = const DeviceLimits&;
  return constrained<T, kGroupedOp, Problem>(gemm_values<T, Problem>())
      .where(
          "blocks of a grouped product share no k, stream no rows and begin when the launch in "
          "front of theirs has ended",
          [](const Gemm& c, P, D) {
            return c.body != GemmBody::stream && c.split_k() == 1 && c.parts == 1 && !c.later &&
                   !c.programmatic;
          })
      .where("a thread has at most 192 sums beside what it knows of the groups",
             [](const Gemm& c, P, D) {
               return !c.uses_tma() || c.tma(GemmTypes<T>::kOperands).held_sums() <= 192;
             })
      .where("the grid fits the device, and its tiles can be counted",
             [](const Gemm& c, P p, D d) {
               return grouped_grid(c, p, d) <= d.max_grid.x && most_tiles(c, p) < 2147483648.0;
             })
      .checked();
}

/// The configs of a product with a batch for each group, all with the groups' mean of rows.
template <class T, class Problem>
std::vector<Gemm> grouped_configs(const Problem& p, const DeviceLimits& d) {
  GemmShape<true> shape = gemm_shape<kGroupedOp>(p);
  const double rows = all_of(drawn_rows(p, 0)) / std::max(1, p.groups);
  shape.m = static_cast<int>(std::ceil(rows));
  std::vector<Gemm> configs =
      gemm_configs(kGroupedOp, shape, sizeof(GemmOperand<T>), GemmTypes<T>::kOperands, d);
  std::erase_if(configs, [](const Gemm& c) {
    return c.body == GemmBody::stream || c.split_k() > 1 || c.parts > 1;
  });
  return configs;
}

/// A product of one batch that has as many tiles.
template <class T, class Problem>
double grouped_cost(const Gemm& c, const Problem& p, const DeviceLimits& d) {
  const int high = tile_of(c).rows;
  return expectation(p, [&](const std::vector<int>& rows) {
    double padded = 0;
    for (const int r : rows) padded += std::ceil(1.0 * r / high) * high;
    const GemmProblem stacked{static_cast<int>(std::min(padded, 2147483647.0)), p.n, p.k};
    return gemm_cost(c, stacked, traffic_of<T>(p, rows), sizeof(GemmOperand<T>),
                     GemmTypes<T>::kOperands, registers(c, GemmTypes<T>::kOperands), d);
  });
}

/// The reference's sums of groups whose rows follow each other: store(sum, element of C).
template <class T, class Store>
void grouped_sums(const GroupedProblem& p, const T* a, const T* b, const int* ends,
                  const Store& store) {
  const GemmShape<true> shape = gemm_shape<kGroupedOp>(p);
  for (int group = 0, end = 0; group < p.groups; ++group) {
    const int begin = end;
    end = group_end(ends[group], begin, p.m);
    GemmShape<true> own = shape;
    own.m = end - begin;
    own.batch = 1;
    gemm_sums<T>(kGroupedOp, own, a + GemmStride{begin} * p.k, b + group * shape.stride_b,
                 [&](const float* sums, int, int row, int column, int count) {
                   for (int j = 0; j < count; ++j)
                     store(sums[j], (GemmStride{begin} + row) * p.n + column + j);
                 });
  }
}

}  // namespace kiln::templates
