// Host half of gemm_grouped.hpp: launch, maps and data.
#include "templates/gemm/grouped/gemm_grouped.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/gemm_bucket.hpp"
#include "templates/gemm/grouped/gemm_grouped_host.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

namespace {

template <class T, class Problem>
std::vector<TypedMapRule<Gemm, Problem>> grouped_maps() {
  if constexpr (sizeof(GemmOperand<T>) > 2) {
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
  static std::map<std::string, std::int64_t> small(std::int64_t k) {
    return {{"m", 192}, {"n", 200}, {"k", k}, {"groups", 3}};
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
struct GroupedKind<PaddedProblem> {
  static constexpr const char* kEntry = "gemm_padded";
  static std::vector<ArgumentIsField> relations() {
    return {{4, "m"}, {5, "n"}, {6, "k"}, {7, "groups"}, {8, "row_alignment"}};
  }
  static std::map<std::string, std::int64_t> small(std::int64_t k) {
    return {{"m", 192}, {"n", 200}, {"k", k}, {"groups", 3}, {"row_alignment", 40}};
  }
  static PaddedProblem tuned_as(const PaddedProblem& p) {
    return {row_bucket(p.m), p.n, p.k, p.groups, p.row_alignment};
  }
  static std::vector<int> sizes(const PaddedProblem& p, std::size_t draw) {
    std::vector<int> ends = drawn_rows(p, draw);
    int end = 0;
    for (int& of_group : ends) of_group = end = group_begin(end, p.row_alignment, p.m) + of_group;
    return ends;
  }
  static bool writes_all(const PaddedProblem&) { return false; }
  static std::size_t rows(const PaddedProblem& p) { return static_cast<std::size_t>(p.m); }
  static void scalars(const PaddedProblem& p, Workload& w) { w.scalar(p.row_alignment); }
};
template <>
struct GroupedKind<MaskedProblem> {
  static constexpr const char* kEntry = "gemm_masked";
  static std::vector<ArgumentIsField> relations() {
    return {{4, "m"}, {5, "n"}, {6, "k"}, {7, "groups"}, {8, "expected"}};
  }
  static std::map<std::string, std::int64_t> small(std::int64_t k) {
    return {{"m", 96}, {"n", 200}, {"k", k}, {"groups", 3}, {"expected", 60}};
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

template <class T, class Problem>
void check_groups(const Problem& p) {
  bool negative = p.m < 0 || p.n < 0 || p.k < 0 || p.groups < 0;
  if constexpr (requires { p.expected; }) negative = negative || p.expected < 0;
  if (negative)
    throw UserError("gemm: m, n, k, the number of groups or of expected rows is negative");
  if constexpr (requires { p.row_alignment; })
    if (p.row_alignment < 1)
      throw UserError("gemm: row_alignment is " + std::to_string(p.row_alignment) +
                      ", and must be at least 1");
  check_depth(p.k);
  check_blocks<T>({p.m, p.n, p.k});
}

template <class T, class Problem>
void fill_groups(const Problem& p, Workload& w) {
  using Kind = GroupedKind<Problem>;
  const auto n = static_cast<std::size_t>(p.n), k = static_cast<std::size_t>(p.k);
  const std::vector<int> sizes = Kind::sizes(p, w.draw());
  if (Kind::writes_all(p))
    w.output<GemmResult<T>>(Kind::rows(p) * n);
  else
    w.in_out<GemmResult<T>>(Kind::rows(p) * n);
  w.input<GemmOperand<T>>(Kind::rows(p) * k);
  w.input<GemmOperand<T>>(sizes.size() * n * k);
  w.input<int>(std::span<const int>(sizes)).scalar(p.m).scalar(p.n).scalar(p.k).scalar(p.groups);
  Kind::scalars(p, w);
}

}  // namespace

template <class T, class Problem>
Kernel<Gemm, Problem, void()> gemm_grouped_base() {
  using Kind = GroupedKind<Problem>;
  constexpr bool kFp8 = GemmTypes<T>::kFp8;
  return {
      .name = Kind::kEntry + std::string(kFp8 ? "_fp8_block" : ""),
      .source = {.file = templates_dir() / (kFp8 ? "gemm/fp8/gemm_grouped_fp8.cuh"
                                                 : "gemm/grouped/gemm_grouped.cuh")},
      .entry = std::string("kiln::templates::") + Kind::kEntry,
      .config_type = "kiln::templates::Gemm",
      .types = {device_name<T>()},
      .space = grouped_space<OfSize<T>, Problem>(),
      .configs = grouped_configs<OfSize<T>, Problem>,
      .launch = grouped_launch<OfSize<T>, Problem>,
      .maps = grouped_maps<T, Problem>(),
      .relations = Kind::relations(),
      .bucket =
          [](const Problem& p) {
            check_groups<T>(p);
            return Kind::tuned_as(p);
          },
      .workload = fill_groups<T, Problem>,
      .draws = kGroupDraws,
      .device_reference = DeviceReference{.config = "", .problem = Kind::small(kFp8 ? 384 : 136)},
      .tolerance = kGemmTolerance<T>,
      .flops =
          [](const Problem& p) {
            return 2.0 * p.n * p.k * expectation(p, [](const auto& rows) { return all_of(rows); });
          },
      .bytes =
          [](const Problem& p) {
            return expectation(p, [&](const auto& rows) { return traffic_of<OfSize<T>>(p, rows); });
          },
      .cost = grouped_cost<OfSize<T>, Problem>,
      .untuned_by_cost =
          [](const DeviceLimits& d) {
            return sizeof(GemmOperand<T>) <= 2 && d.compute_capability == 90;
          },
      .numerics = [](const Gemm& c, const Problem&) { return order_of_sums(c); }};
}

#define KILN_GROUPED(T)                                                                 \
  template Kernel<Gemm, GroupedProblem, void()> gemm_grouped_base<T, GroupedProblem>(); \
  template Kernel<Gemm, PaddedProblem, void()> gemm_grouped_base<T, PaddedProblem>();   \
  template Kernel<Gemm, MaskedProblem, void()> gemm_grouped_base<T, MaskedProblem>();
KILN_GROUPED(float)
KILN_GROUPED(float16)
KILN_GROUPED(bfloat16)
using ScaledFp8 = Fp8<bfloat16, Fp8Sums::scaled>;
KILN_GROUPED(ScaledFp8)
#undef KILN_GROUPED

}  // namespace kiln::templates
