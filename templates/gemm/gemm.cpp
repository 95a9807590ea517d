// Host half of gemm.hpp: launch, maps, workload.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <string>

#include "kiln/block_scales.hpp"
#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/gemm_bucket.hpp"
#include "templates/gemm/gemm_configs.hpp"
#include "templates/gemm/gemm_cost.hpp"
#include "templates/gemm/gemm_host.hpp"
#include "templates/gemm/gemm_space.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

namespace {

/// Rows of 128 bytes of A and B, and what a warp has of C. With `swap` A's rows are the product's
/// columns.
template <class T, GemmTranspose op, class Problem>
std::vector<TypedMapRule<Gemm, Problem>> gemm_maps(std::optional<std::size_t> fetched) {
  if constexpr (sizeof(GemmOperand<T>) > 2) {
    return {};
  } else {
    constexpr auto kOperands = GemmTypes<T>::kOperands;
    constexpr auto uses_tma = [](const Gemm& c) { return c.uses_tma(); };
    std::vector<TypedMapRule<Gemm, Problem>> rules{
        {.argument = 0,
         .map = [](const Gemm& c,
                   const Problem& p) { return c_map<T>(c.tma(kOperands), gemm_shape<op>(p)); },
         .only_if = [](const Gemm& c) { return c.stores_by_map(); }},
        {.argument = 1,
         .map = [](const Gemm& c,
                   const Problem& problem) { return a_map<T, op>(c, gemm_shape<op>(problem)); },
         .only_if = uses_tma},
        {.argument = 2,
         .map = [](const Gemm& c,
                   const Problem& problem) { return b_map<T, op>(c, gemm_shape<op>(problem)); },
         .only_if = uses_tma}};
    if (fetched)
      rules.push_back({.argument = *fetched,
                       .map =
                           [](const Gemm& c, const Problem& p) {
                             return fetched_map<T>(c.tma(kOperands), gemm_shape<op>(p));
                           },
                       .only_if = [](const Gemm& c) { return c.fetches(kOperands); }});
    return rules;
  }
}

/// A problem of one batch that has as many tiles: batches are rows, or with few rows or `swap`
/// columns.
GemmProblem unbatched(const Gemm& c, const GemmShape<true>& p) {
  const auto stacked = [&](int size, int block) {
    const double all = std::ceil(1.0 * size / block) * block * p.batch;
    return static_cast<int>(std::min(all, 2147483647.0));
  };
  if (p.batch <= 1) return p.sizes();
  if (c.body == GemmBody::stream) return {p.m, stacked(p.n, c.block_n), p.k};
  return c.swap ? GemmProblem{p.m, stacked(p.n, c.block_m), p.k}
                : GemmProblem{stacked(p.m, c.block_m), p.n, p.k};
}

/// An array's rows, if `Rows` can say them for all batches: with gaps of one kind.
std::optional<Rows> rows_of(int batch, int rows, int row, GemmStride leading, GemmStride stride) {
  const auto size = [](GemmStride n) { return static_cast<std::size_t>(n); };
  if (batch == 0) return Rows{};
  if (batch == 1 || stride == 0) return Rows{size(rows), size(row), size(leading)};
  if (stride == rows * leading) return Rows{size(batch) * size(rows), size(row), size(leading)};
  if (leading == row && stride > rows * leading)
    return Rows{size(batch), size(rows) * size(row), size(stride)};
  return std::nullopt;
}

template <class T, GemmTranspose op>
void fill(const GemmShape<true>& p, Workload& w) {
  const auto count = [](GemmStride span) { return static_cast<std::size_t>(span); };
  const auto input = [&](int rows, int row, GemmStride leading, GemmStride stride,
                         GemmStride span) {
    if (const auto listed = rows_of(p.batch, rows, row, leading, stride))
      w.input<GemmOperand<T>>(*listed);
    else
      w.input<GemmOperand<T>>(count(span));
  };
  if (const auto listed = rows_of(p.batch, p.m, p.n, p.ldc, p.stride_c))
    w.output<GemmResult<T>>(*listed);
  else
    w.in_out<GemmResult<T>>(count(p.c_span()));  // what lies between is as it was
  input(p.a_rows(op), p.a_row(op), p.lda, p.stride_a, p.a_span(op));
  input(p.b_rows(op), p.b_row(op), p.ldb, p.stride_b, p.b_span(op));
  w.scalar(p.m).scalar(p.n).scalar(p.k);
}

/// Bytes of A, B, C and the scales of blocks.
template <class T, GemmTranspose op, class Problem>
double traffic_of(const Problem& p) {
  const double scales =
      kBlockScaled<T> ? 4.0 * scale_blocks(p.k) * (1.0 * p.m + scale_blocks(p.n)) : 0;
  return gemm_shape<op>(p).traffic(sizeof(GemmOperand<T>), sizeof(GemmResult<T>)) + scales;
}

/// What a GEMM is by the kind of its problem.
template <class Problem>
struct Kind;
template <>
struct Kind<GemmProblem> {
  static constexpr const char* kEntry = "gemm";
  static std::vector<ArgumentIsField> relations() { return {{3, "m"}, {4, "n"}, {5, "k"}}; }
  static void scalars(const GemmProblem&, Workload&) {}
  static std::map<std::string, std::int64_t> small(bool scaled) {
    return {{"m", 192}, {"n", 200}, {"k", scaled ? 384 : 136}};
  }
};
template <>
struct Kind<GemmStridedProblem> {
  static constexpr const char* kEntry = "gemm_strided";
  static std::vector<ArgumentIsField> relations() {
    return {{3, "m"},   {4, "n"},     {5, "k"},         {6, "ldc"},       {7, "lda"},
            {8, "ldb"}, {9, "batch"}, {10, "stride_c"}, {11, "stride_a"}, {12, "stride_b"}};
  }
  static void scalars(const GemmStridedProblem& p, Workload& w) {
    w.scalar(p.ldc).scalar(p.lda).scalar(p.ldb).scalar(p.batch);
    w.scalar(p.stride_c).scalar(p.stride_a).scalar(p.stride_b);
  }
  static std::map<std::string, std::int64_t> small(bool) {
    constexpr std::int64_t kLeading = 208;  // more than any row
    return {{"m", 192},
            {"n", 200},
            {"k", 136},
            {"ldc", kLeading},
            {"lda", kLeading},
            {"ldb", kLeading},
            {"batch", 2},
            {"stride_c", 192 * kLeading},
            {"stride_a", 200 * kLeading},
            {"stride_b", 200 * kLeading}};
  }
};

/// What does not depend on the type of elements, but on their size.
template <class T, GemmTranspose op, class Problem>
Kernel<Gemm, Problem, void()> gemm_rules() {
  using K = Kind<Problem>;
  constexpr auto kOperands = GemmTypes<T>::kOperands;
  constexpr int kOperandBytes = sizeof(GemmOperand<T>);
  return {
      .entry = std::string("kiln::templates::") + K::kEntry,
      .config_type = "kiln::templates::Gemm",
      .space = gemm_space<T, op, Problem>(),
      .configs =
          [](const Problem& p, const DeviceLimits& d) {
            const auto shape = gemm_shape<op>(p).general();
            auto configs = gemm_configs(op, shape, kOperandBytes, kOperands, d);
            if (op == GemmTranspose::nt && kOperandBytes == 2)
              std::ranges::copy(gemm_shift_configs(shape, d), std::back_inserter(configs));
            return configs;
          },
      .launch = [](const Gemm& c, const Problem& p,
                   const DeviceLimits& d) { return gemm_launch<T>(c, op, gemm_shape<op>(p), d); },
      .workspace = {.size =
                        [](const Gemm& c, const Problem& p, const DeviceLimits&) {
                          return gemm_workspace(c, gemm_shape<op>(p).general());
                        },
                    .only_if = [](const Gemm& c) { return c.parts > 1; }},
      .steps = {{.entry = std::string("kiln::templates::") + K::kEntry + "_add",
                 .launch =
                     [](const Gemm& c, const Problem& p) {
                       return gemm_add_launch(c, gemm_shape<op>(p).general());
                     },
                 .only_if = [](const Gemm& c) { return c.later; }}},
      .relations = K::relations(),
      .bucket = [](const Problem& p) { return tuned_as<T, op>(p); },
      .device_reference = DeviceReference{.config = "", .problem = K::small(kBlockScaled<T>)},
      .flops = [](const Problem& p) { return 2.0 * p.m * p.n * p.k * gemm_shape<op>(p).batch; },
      .bytes = [](const Problem& p) { return traffic_of<T, op>(p); },
      .cost =
          [](const Gemm& c, const Problem& p, const DeviceLimits& d) {
            const auto shape = gemm_shape<op>(p).general();
            return gemm_cost(
                c, unbatched(c, shape), traffic_of<T, op>(p), kOperandBytes, kOperands,
                registers(c, kOperands), d, 1,
                op == GemmTranspose::nt && kOperandBytes == 2 && shape.has_unaligned_rows());
          },
      .untuned_by_cost =
          [](const DeviceLimits& d) { return kOperandBytes <= 2 && d.compute_capability == 90; },
      .numerics = [](const Gemm& c, const Problem&) { return order_of_sums(c); }};
}

}  // namespace

template <class T, GemmTranspose op, class Problem>
Kernel<Gemm, Problem, void()> gemm_base(std::optional<std::size_t> fetched) {
  using K = Kind<Problem>;
  constexpr auto kOperands = GemmTypes<T>::kOperands;
  constexpr const char* kSuffixes[] = {"", "_nn", "_tn", "_tt"};
  constexpr const char* kTypeSuffix = kOperands == GemmOperands::fp8          ? "_fp8_fast"
                                      : kOperands == GemmOperands::fp8_exact  ? "_fp8"
                                      : kOperands == GemmOperands::fp8_scaled ? "_fp8_block"
                                                                              : "";
  auto kernel = gemm_rules<OfSize<T>, op, Problem>();
  kernel.name = K::kEntry + std::string(kTypeSuffix) + kSuffixes[static_cast<int>(op)];
  kernel.source = {.file = templates_dir() /
                           (GemmTypes<T>::kFp8 ? "gemm/fp8/gemm_fp8.cuh" : "gemm/gemm.cuh")};
  kernel.types = {device_name<T>()};
  kernel.maps = gemm_maps<T, op, Problem>(fetched);
  kernel.workload = [](const Problem& p, Workload& w) {
    fill<T, op>(gemm_shape<op>(p).general(), w);
    K::scalars(p, w);
  };
  kernel.tolerance = kGemmTolerance<T>;
  return kernel;
}

#define KILN_GEMM(T, op)                                                                   \
  template Kernel<Gemm, GemmProblem, void()> gemm_base<T, GemmTranspose::op, GemmProblem>( \
      std::optional<std::size_t>);                                                         \
  template Kernel<Gemm, GemmStridedProblem, void()>                                        \
      gemm_base<T, GemmTranspose::op, GemmStridedProblem>(std::optional<std::size_t>);
#define KILN_GEMMS(T) KILN_GEMM(T, nt) KILN_GEMM(T, nn) KILN_GEMM(T, tn) KILN_GEMM(T, tt)
KILN_GEMMS(float)
KILN_GEMMS(float16)
KILN_GEMMS(bfloat16)
KILN_GEMM(Fp8<bfloat16>, nt)
using FastFp8 = Fp8<bfloat16, Fp8Sums::fast>;
KILN_GEMM(FastFp8, nt)
using ScaledFp8 = Fp8<bfloat16, Fp8Sums::scaled>;
template Kernel<Gemm, GemmProblem, void()> gemm_base<ScaledFp8, GemmTranspose::nt, GemmProblem>(
    std::optional<std::size_t>);
#undef KILN_GEMMS
#undef KILN_GEMM

}  // namespace kiln::templates
