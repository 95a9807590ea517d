// Host half of gemm_grouped.hpp: space, launch, maps, cost, and the sizes of groups that tunings
// draw.
#include "templates/gemm/gemm_grouped.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/gemm_configs.hpp"
#include "templates/gemm/gemm_cost.hpp"
#include "templates/gemm/gemm_host.hpp"
#include "templates/gemm/gemm_space.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

namespace {

constexpr auto kGroupedOp = GemmTranspose::nt;

/// Of groups that are equal, that differ by much, and of which every second one is empty.
const std::vector<double> kGroupDraws{2, 1, 1};

/// About `rows` rows, of which a group has `most` at most.
std::vector<int> drawn_rows(int groups, double rows, int most, std::size_t draw) {
  constexpr std::int64_t kMixed = 1009;  // large groups lie among small ones
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
double expected_rows(const MaskedProblem& p) {
  return p.expected > 0 ? std::min(p.expected, p.m) : p.m / 2.0;
}
std::vector<int> drawn_rows(const GroupedProblem& p, std::size_t draw) {
  return drawn_rows(p.groups, p.m, p.m, draw);
}
std::vector<int> drawn_rows(const MaskedProblem& p, std::size_t draw) {
  return drawn_rows(p.groups, std::round(expected_rows(p) * p.groups), p.m, draw);
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

double all_of(const std::vector<int>& rows) {
  double sum = 0;
  for (const int r : rows) sum += r;
  return sum;
}
/// Bytes that must be moved: empty groups' matrices are not read.
template <class T, class Problem>
double traffic_of(const Problem& p, const std::vector<int>& rows) {
  const double used = static_cast<double>(rows.size()) - std::count(rows.begin(), rows.end(), 0);
  return sizeof(T) * (all_of(rows) * (1.0 * p.k + p.n) + used * p.n * p.k);
}

/// Rows and columns of C that the blocks of a cluster, or one without, compute at a time.
struct GroupedTile {
  int rows, columns;
};
GroupedTile tile_of(const Gemm& c) {
  if (!c.uses_tma()) return {c.block_m, c.block_n};
  const GemmTma t = c.tma();
  const int rows = t.block_m * t.cluster_m, columns = t.block_n * t.cluster_n;
  return t.swap ? GroupedTile{columns, rows} : GroupedTile{rows, columns};
}

/// The most tiles that there may be, whatever the groups' sizes are.
double most_tiles(const Gemm& c, const GroupedProblem& p) {
  const GroupedTile tile = tile_of(c);
  return (std::floor(1.0 * p.m / tile.rows) + std::min(p.groups, p.m)) *
         std::ceil(1.0 * p.n / tile.columns);
}
double most_tiles(const Gemm& c, const MaskedProblem& p) {
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

/// Those of a product of as many batches that have the groups' mean of rows.
template <class T, class Problem>
std::vector<Gemm> grouped_configs(const Problem& p, const DeviceLimits& d) {
  GemmShape<true> shape = gemm_shape<kGroupedOp>(p);
  const double rows = all_of(drawn_rows(p, 0)) / std::max(1, p.groups);
  shape.m = static_cast<int>(std::ceil(rows));
  std::vector<Gemm> configs =
      gemm_configs(kGroupedOp, shape, sizeof(T), GemmTypes<T>::kOperands, d);
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
    return gemm_cost(c, stacked, traffic_of<T>(p, rows), sizeof(T), GemmTypes<T>::kOperands,
                     registers(c, GemmTypes<T>::kOperands), d);
  });
}

template <class T, class Problem>
std::vector<TypedMapRule<Gemm, Problem>> grouped_maps() {
  if constexpr (sizeof(T) > 2) {
    return {};
  } else {
    constexpr auto uses_tma = [](const Gemm& c) { return c.uses_tma(); };
    return {
        {.argument = 1,
         .map = [](const Gemm& c,
                   const Problem& p) { return a_map<T, kGroupedOp>(c, gemm_shape<kGroupedOp>(p)); },
         .only_if = uses_tma},
        {.argument = 2,
         .map = [](const Gemm& c,
                   const Problem& p) { return b_map<T, kGroupedOp>(c, gemm_shape<kGroupedOp>(p)); },
         .only_if = uses_tma}};
  }
}

/// What a grouped GEMM is by the kind of its problem.
template <class Problem>
struct GroupedKind;
template <>
struct GroupedKind<GroupedProblem> {
  static constexpr const char* kEntry = "gemm_grouped";
  static std::vector<ArgumentIsField> relations() {
    return {{4, "m"}, {5, "n"}, {6, "k"}, {7, "groups"}};
  }
  static std::map<std::string, std::int64_t> small() {
    return {{"m", 192}, {"n", 200}, {"k", 136}, {"groups", 3}};
  }
  static GroupedProblem tuned_as(const GroupedProblem& p) {
    return {row_bucket(p.m), p.n, p.k, p.groups};
  }
  static std::vector<int> sizes(const GroupedProblem& p, std::size_t draw) {
    std::vector<int> ends = drawn_rows(p, draw);
    for (std::size_t g = 1; g < ends.size(); ++g) ends[g] += ends[g - 1];
    return ends;
  }
  /// All rows are some group's, if there is one.
  static bool writes_all(const GroupedProblem& p) { return p.groups > 0; }
  static std::size_t rows(const GroupedProblem& p) { return static_cast<std::size_t>(p.m); }
  static void scalars(const GroupedProblem&, Workload&) {}
};
template <>
struct GroupedKind<MaskedProblem> {
  static constexpr const char* kEntry = "gemm_masked";
  static std::vector<ArgumentIsField> relations() {
    return {{4, "m"}, {5, "n"}, {6, "k"}, {7, "groups"}, {8, "expected"}};
  }
  static std::map<std::string, std::int64_t> small() {
    return {{"m", 96}, {"n", 200}, {"k", 136}, {"groups", 3}, {"expected", 60}};
  }
  static MaskedProblem tuned_as(const MaskedProblem& p) {
    const int m = row_bucket(p.m);
    return {m, p.n, p.k, p.groups, p.expected == 0 ? 0 : std::min(count_bucket(p.expected), m)};
  }
  static std::vector<int> sizes(const MaskedProblem& p, std::size_t draw) {
    return drawn_rows(p, draw);
  }
  static bool writes_all(const MaskedProblem&) { return false; }
  static std::size_t rows(const MaskedProblem& p) {
    return static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.groups);
  }
  static void scalars(const MaskedProblem& p, Workload& w) { w.scalar(p.expected); }
};

template <class Problem>
void check_groups(const Problem& p) {
  bool negative = p.m < 0 || p.n < 0 || p.k < 0 || p.groups < 0;
  if constexpr (requires { p.expected; }) negative = negative || p.expected < 0;
  if (negative)
    throw UserError("gemm: m, n, k, the number of groups or of expected rows is negative");
}

template <class T, class Problem>
void fill_groups(const Problem& p, Workload& w) {
  using Kind = GroupedKind<Problem>;
  const auto n = static_cast<std::size_t>(p.n), k = static_cast<std::size_t>(p.k);
  const std::vector<int> sizes = Kind::sizes(p, w.draw());
  if (Kind::writes_all(p))
    w.output<T>(Kind::rows(p) * n);
  else
    w.in_out<T>(Kind::rows(p) * n);
  w.input<T>(Kind::rows(p) * k).template input<T>(sizes.size() * n * k);
  w.input<int>(std::span<const int>(sizes)).scalar(p.m).scalar(p.n).scalar(p.k).scalar(p.groups);
  Kind::scalars(p, w);
}

}  // namespace

template <class T, class Problem>
Kernel<Gemm, Problem, void()> gemm_grouped_base() {
  using Kind = GroupedKind<Problem>;
  return {.name = Kind::kEntry,
          .source = {.file = templates_dir() / "gemm/gemm_grouped.cuh"},
          .entry = std::string("kiln::templates::") + Kind::kEntry,
          .config_type = "kiln::templates::Gemm",
          .types = {device_name<T>()},
          .space = grouped_space<T, Problem>(),
          .configs = grouped_configs<T, Problem>,
          .launch =
              [](const Gemm& c, const Problem& p, const DeviceLimits& d) {
                Launch launch{{grouped_grid(c, p, d)},
                              {static_cast<unsigned>(c.threads())},
                              c.shared_bytes(sizeof(T), kGroupedOp, GemmTypes<T>::kOperands)};
                if (c.uses_tma()) launch.cluster.x = static_cast<unsigned>(c.tma().cluster());
                return launch;
              },
          .maps = grouped_maps<T, Problem>(),
          .relations = Kind::relations(),
          .bucket =
              [](const Problem& p) {
                check_groups(p);
                return Kind::tuned_as(p);
              },
          .workload = fill_groups<T, Problem>,
          .draws = kGroupDraws,
          .device_reference = DeviceReference{.config = "", .problem = Kind::small()},
          .tolerance = kGemmTolerance<T>,
          .flops =
              [](const Problem& p) {
                return 2.0 * p.n * p.k *
                       expectation(p, [](const auto& rows) { return all_of(rows); });
              },
          .bytes =
              [](const Problem& p) {
                return expectation(p, [&](const auto& rows) { return traffic_of<T>(p, rows); });
              },
          .cost = grouped_cost<T, Problem>,
          .untuned_by_cost =
              [](const DeviceLimits& d) { return sizeof(T) <= 2 && d.compute_capability == 90; },
          .numerics = [](const Gemm& c, const Problem&) { return order_of_sums(c); }};
}

#define KILN_GROUPED(T)                                                                 \
  template Kernel<Gemm, GroupedProblem, void()> gemm_grouped_base<T, GroupedProblem>(); \
  template Kernel<Gemm, MaskedProblem, void()> gemm_grouped_base<T, MaskedProblem>();
KILN_GROUPED(float)
KILN_GROUPED(float16)
KILN_GROUPED(bfloat16)
#undef KILN_GROUPED

}  // namespace kiln::templates
