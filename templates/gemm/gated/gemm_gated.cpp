// Host half of gemm_gated.hpp and interleave_gate_up.hpp.
#include <algorithm>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/gated/gemm_gated_host.hpp"
#include "templates/gemm/gated/interleave_gate_up.hpp"

namespace kiln::templates {

using kiln::detail::UntypedKernel;

namespace {

/// An error of one sum counts as often as the other sum is large, also where the product is small.
template <class T>
constexpr Tolerance kGatedTolerance{.relative = kGemmTolerance<T>.relative,
                                    .absolute = 16 * kGemmTolerance<T>.absolute};

template <class T>
double gated_traffic(const GatedProblem& p) {
  return gated_operand_bytes<T>(p) + sizeof(T) * 1.0 * p.m * p.n;
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
std::vector<float> gated_values(const T* a, const T* w, GatedWeights weights,
                                const GatedProblem& problem, float (*activation)(float)) {
  const auto [m, n, k] = problem;
  if (n <= 0) return {};
  // The product in the order that W has, whose columns are found for each of out's.
  const bool stacked = weights == GatedWeights::stacked;
  GemmShape<true> p = gated_shape(m, n, k).general();
  if (stacked) p.n = 2 * n;
  const auto width = static_cast<std::size_t>(p.n);
  std::vector<float> product(static_cast<std::size_t>(m) * width), values;
  gemm_sums<T>(
      GemmTranspose::nt, p, a, w, [&](const float* sums, int, int row, int column, int count) {
        std::copy_n(sums, count, product.data() + static_cast<std::size_t>(row) * width + column);
      });
  values.reserve(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      const float* const row = product.data() + static_cast<std::size_t>(i) * width;
      const int gate = stacked ? j : j / kGatedGroup * 2 * kGatedGroup + j % kGatedGroup;
      values.push_back(activation(row[gate]) * row[gate + (stacked ? n : kGatedGroup)]);
    }
  return values;
}

template <class T>
UntypedKernel<Gemm, GatedProblem> gemm_gated_base(GatedWeights weights,
                                                  const HostActivation& activation) {
  auto kernel = gated_common<T>("gemm/gated/gemm_gated.cuh", weights, activation, "",
                                gated_traffic<OfSize<T>>);
  if constexpr (sizeof(T) == 2)
    kernel.maps.insert(kernel.maps.begin(),
                       {.argument = 0,
                        .map =
                            [](const Gemm& c, const GatedProblem& p) {
                              GemmShape<false> of_c = gated_product(p);
                              of_c.n = p.n;
                              return c_map<T>(gated_results_of(c.tma()), of_c);
                            },
                        .only_if = [](const Gemm& c) { return gated_by_map(c); }});
  kernel.workload = [weights](const GatedProblem& p, Workload& w) {
    w.output<T>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    add_gated_operands<T>(weights, p, w);
  };
  kernel.computed_by(
      [weights, of = activation.of](T* out, const T* a, const T* w, int m, int n, int k) {
        const std::vector<float> values = gated_values(a, w, weights, {m, n, k}, of);
        std::transform(values.begin(), values.end(), out, [](float value) { return T(value); });
      });
  kernel.tolerance = kGatedTolerance<T>;
  return kernel;
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

#define KILN_GATED(T)                                                                             \
  template std::vector<float> gated_values(const T*, const T*, GatedWeights, const GatedProblem&, \
                                           float (*)(float));                                     \
  template UntypedKernel<Gemm, GatedProblem> gemm_gated_base<T>(GatedWeights,                     \
                                                                const HostActivation&);           \
  template InterleaveGateUpKernel<T> interleave_gate_up_kernel();
KILN_GATED(float)
KILN_GATED(float16)
KILN_GATED(bfloat16)
#undef KILN_GATED

}  // namespace kiln::templates
