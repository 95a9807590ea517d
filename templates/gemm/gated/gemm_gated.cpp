// Host half of gemm_gated.hpp and interleave_gate_up.hpp.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/gated/interleave_gate_up.hpp"
#include "templates/gemm/gemm_bucket.hpp"
#include "templates/gemm/gemm_configs.hpp"
#include "templates/gemm/gemm_cost.hpp"
#include "templates/gemm/gemm_host.hpp"
#include "templates/gemm/gemm_space.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

namespace {

constexpr auto kGatedOp = GemmTranspose::nt;
/// An error of one sum counts as often as the other sum is large, also where the product is small.
template <class T>
constexpr Tolerance kGatedTolerance{.relative = kGemmTolerance<T>.relative,
                                    .absolute = 16 * kGemmTolerance<T>.absolute};
constexpr int kMostGated = 1 << 29;  // columns, so that those of the product can be counted

GemmShape<false> gated_product(const GatedProblem& p) { return gemm_shape<kGatedOp>(p); }

template <class T, GatedWeights weights>
constexpr Space<Gemm, GatedProblem> gated_space() {
  using P = const GatedProblem&;
  using D = const DeviceLimits&;
  return with_grid<T, kGatedOp, GatedProblem>(
             gemm_values<T, GatedProblem>().where(
                 "a thread has gate and up of each of its columns: tile_n of simt is even, and "
                 "block_n of "
                 "tensor maps a multiple of 32, with no k shared unless with swap",
                 [](const Gemm& c, P, D) { return takes_pairs(c); }))
      .where("tensor maps of stacked weights need an n that is a multiple of 8",
             [](const Gemm& c, P p, D) {
               return weights != GatedWeights::stacked || !c.uses_tma() || p.n % kGatedGroup == 0;
             })
      .checked();
}

/// Stacked weights as [n / 8][gate, up][8][k]: a box is what the same rows of interleaved ones are.
template <class T>
TensorMap stacked_map(const Gemm& c, const GemmShape<false>& p) {
  const GemmTma t = c.tma();
  const GemmStride n = p.ldc, group = kGatedGroup;
  return TensorMap::tiled<T>({.size = {p.k, group, 2, n / group},
                              .stride = {p.ldb, n * p.ldb, group * p.ldb},
                              .box = {t.box_k(), group, 2, b_box(t, kGatedOp, p) / (2 * group)},
                              .swizzle = Swizzle::bytes128,
                              .l2_bytes = 256});
}

template <class T, GatedWeights weights>
std::vector<TypedMapRule<Gemm, GatedProblem>> gated_maps() {
  if constexpr (sizeof(T) > 2) {
    return {};
  } else {
    constexpr auto uses_tma = [](const Gemm& c) { return c.uses_tma(); };
    return {{.argument = 0,
             .map =
                 [](const Gemm& c, const GatedProblem& p) {
                   GemmShape<false> of_c = gated_product(p);
                   of_c.n = p.n;
                   return c_map<T>(gated_results_of(c.tma()), of_c);
                 },
             .only_if = [](const Gemm& c) { return gated_by_map(c); }},
            {.argument = 1,
             .map = [](const Gemm& c,
                       const GatedProblem& p) { return a_map<T, kGatedOp>(c, gated_product(p)); },
             .only_if = uses_tma},
            {.argument = 2,
             .map =
                 [](const Gemm& c, const GatedProblem& p) {
                   if (weights == GatedWeights::stacked) return stacked_map<T>(c, gated_product(p));
                   return b_map<T, kGatedOp>(c, gated_product(p));
                 },
             .only_if = uses_tma}};
  }
}

/// Bytes of A, the weights and out.
template <class T>
double gated_traffic(const GatedProblem& p) {
  return sizeof(T) * (1.0 * p.m * p.k + 2.0 * p.n * p.k + 1.0 * p.m * p.n);
}

GatedProblem gated_bucket(const GatedProblem& p) {
  check_sizes(gated_product({p.m, std::min(p.n, kMostGated), p.k}).general());
  if (p.n < 0) throw UserError("gemm: n is negative");
  if (p.n > kMostGated)
    throw UserError("gemm: n is " + std::to_string(p.n) +
                    ", and a gated product has at most 2^29 columns");
  return {row_bucket(p.m), p.n, p.k};
}

/// Sums of a thread that leave registers for any activation.
constexpr int kFewSums = 144;

template <class T, int most_sums>
std::vector<Gemm> gated_configs(const GatedProblem& p, const DeviceLimits& d) {
  auto configs =
      gemm_configs(kGatedOp, gated_product(p).general(), sizeof(T), GemmOperands::two_bytes, d);
  std::erase_if(configs, [](const Gemm& c) {
    return !takes_pairs(c) || (c.uses_tma() && c.tma().sums() > most_sums);
  });
  return configs;
}

template <class T, GatedWeights weights>
Kernel<Gemm, GatedProblem, void()> gated_base(bool few_sums) {
  constexpr bool kStacked = weights == GatedWeights::stacked;
  constexpr auto kOperands = GemmOperands::two_bytes;
  return {.name = "gemm_gated",
          .source = {.file = templates_dir() / "gemm/gated/gemm_gated.cuh"},
          .entry = "kiln::templates::gemm_gated",
          .config_type = "kiln::templates::Gemm",
          .types = {device_name<T>(), std::string("kiln::templates::GatedWeights::") +
                                          (kStacked ? "stacked" : "interleaved")},
          .space = gated_space<T, weights>(),
          .configs = few_sums ? gated_configs<T, kFewSums> : gated_configs<T, GemmTma::kMostSums>,
          .launch =
              [](const Gemm& c, const GatedProblem& p, const DeviceLimits& d) {
                return gemm_launch<T>(c, kGatedOp, gated_product(p), d);
              },
          .maps = gated_maps<T, weights>(),
          .workspace = {.size =
                            [](const Gemm& c, const GatedProblem& p, const DeviceLimits&) {
                              return gemm_workspace(c, gated_product(p).general());
                            },
                        .only_if = [](const Gemm& c) { return c.parts > 1; }},
          .steps = {{.entry = "kiln::templates::gemm_gated_add",
                     .launch =
                         [](const Gemm& c, const GatedProblem& p) {
                           return gemm_add_launch(c, gated_product(p).general());
                         },
                     .only_if = [](const Gemm& c) { return c.later; }}},
          .relations = {{3, "m"}, {4, "n"}, {5, "k"}},
          .bucket = gated_bucket,
          .workload =
              [](const GatedProblem& p, Workload& w) {
                const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n),
                           k = static_cast<std::size_t>(p.k);
                const auto rows = kStacked ? 2 * n : static_cast<std::size_t>(gated_rows(p.n));
                w.output<T>(m * n).template input<T>(m * k).template input<T>(rows * k);
                w.scalar(p.m).scalar(p.n).scalar(p.k);
              },
          .device_reference =
              DeviceReference{.config = "", .problem = {{"m", 192}, {"n", 104}, {"k", 136}}},
          .tolerance = kGatedTolerance<T>,
          .flops = [](const GatedProblem& p) { return 4.0 * p.m * p.n * p.k; },
          .bytes = gated_traffic<T>,
          .cost =
              [](const Gemm& c, const GatedProblem& p, const DeviceLimits& d) {
                return gemm_cost(c, gated_product(p).sizes(), gated_traffic<T>(p), sizeof(T),
                                 kOperands, registers(c, kOperands), d, 0.5);
              },
          .untuned_by_cost =
              [](const DeviceLimits& d) { return sizeof(T) <= 2 && d.compute_capability == 90; },
          .numerics = [](const Gemm& c, const GatedProblem&) { return order_of_sums(c); }};
}

constexpr Space<InterleaveGateUp, GateUpRows> interleave_space() {
  return Space<InterleaveGateUp, GateUpRows>{{.block = 256, .items = 8}}
      .values(&InterleaveGateUp::block, {64, 128, 256, 512})
      .values(&InterleaveGateUp::items, {1, 2, 4, 8, 16, 32})
      .where("a block's threads fit the device, and its tile is no larger than twice a row",
             [](const InterleaveGateUp& c, const GateUpRows& p, const DeviceLimits& d) {
               return c.threads() <= d.max_threads_per_block &&
                      (c.tile() <= 2 * std::max(p.k, 1024));
             })
      .where("the grid fits the device",
             [](const InterleaveGateUp& c, const GateUpRows& p, const DeviceLimits& d) {
               return c.grid(p.n, p.k) <= d.max_grid.x;
             })
      .checked();
}

}  // namespace

template <class T>
Kernel<Gemm, GatedProblem, void()> gemm_gated_base(GatedWeights weights, bool few_sums) {
  return weights == GatedWeights::stacked ? gated_base<T, GatedWeights::stacked>(few_sums)
                                          : gated_base<T, GatedWeights::interleaved>(few_sums);
}

template <class T>
InterleaveGateUpKernel<T> interleave_gate_up_kernel() {
  return {.name = "interleave_gate_up",
          .source = {.file = templates_dir() / "gemm/gated/interleave_gate_up.cuh"},
          .entry = "kiln::templates::interleave_gate_up",
          .config_type = "kiln::templates::InterleaveGateUp",
          .types = {device_name<T>()},
          .space = interleave_space(),
          .launch =
              [](const InterleaveGateUp& c, const GateUpRows& p) {
                return Launch{
                    {c.grid(p.n, p.k)}, {static_cast<unsigned>(c.threads())}, c.shared_bytes()};
              },
          .problem =
              [](T* out, const T* gate, const T* up, int n, int k) {
                using namespace gemm_detail;
                const GemmStride rows = n;
                const GemmArea area = gemm_area(out, gated_rows(n) * k, 1, k, k);
                for (const T* const from : {gate, up})
                  if (overlap(area, gemm_area(from, rows * k, 1, k, k)))
                    throw UserError("interleave_gate_up: out overlaps gate or up");
                return GateUpRows{n, k};
              },
          .relations = {{3, "n"}, {4, "k"}},
          .bucket =
              [](const GateUpRows& p) {
                if (p.n < 0 || p.k < 0) throw UserError("interleave_gate_up: n or k is negative");
                return p;
              },
          .workload =
              [](const GateUpRows& p, Workload& w) {
                const auto k = static_cast<std::size_t>(p.k), n = static_cast<std::size_t>(p.n);
                w.output<T>(static_cast<std::size_t>(gated_rows(p.n)) * k);
                w.input<T>(n * k).template input<T>(n * k).scalar(p.n).scalar(p.k);
              },
          .reference =
              [](T* out, const T* gate, const T* up, int n, int k) {
                for (GemmStride row = 0; row < gated_rows(n); ++row) {
                  const GemmStride in_group = row % (2 * kGatedGroup);
                  const GemmStride from =
                      row / (2 * kGatedGroup) * kGatedGroup + in_group % kGatedGroup;
                  T* const to = out + row * k;
                  if (from < n)
                    std::copy_n((in_group < kGatedGroup ? gate : up) + from * k, k, to);
                  else
                    std::fill_n(to, k, T(0.0f));
                }
              },
          .tolerance = {.relative = 0, .absolute = 0},
          .bytes =
              [](const GateUpRows& p) {
                return sizeof(T) * 1.0 * p.k * (2.0 * p.n + static_cast<double>(gated_rows(p.n)));
              },
          .numerics = [](const InterleaveGateUp&, const GateUpRows&) { return "copies"; }};
}

#define KILN_GATED(T)                                                                 \
  template Kernel<Gemm, GatedProblem, void()> gemm_gated_base<T>(GatedWeights, bool); \
  template InterleaveGateUpKernel<T> interleave_gate_up_kernel();
KILN_GATED(float)
KILN_GATED(float16)
KILN_GATED(bfloat16)
#undef KILN_GATED

}  // namespace kiln::templates
