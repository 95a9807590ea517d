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
                                    .absolute = 16 * kGemmTolerance<T>.absolute,
                                    .norm = kGemmTolerance<T>.norm};

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
                                const GatedProblem& problem, float (*activation)(float),
                                const GatedFinish& finish, const GemmBlockScales* scales) {
  const auto [m, n, k] = problem;
  if (n <= 0 || m <= 0) return {};
  const auto width = static_cast<std::size_t>(n), depth = static_cast<std::size_t>(k);
  std::vector<T> rows;  // of gate and of up, apart
  if (weights == GatedWeights::interleaved) {
    for (const int first : {0, kGatedGroup})
      for (int j = 0; j < n; ++j) {
        const GemmStride row = j / kGatedGroup * 2 * kGatedGroup + first + j % kGatedGroup;
        rows.insert(rows.end(), w + row * k, w + row * k + k);
      }
    w = rows.data();
  }
  GemmShape<true> p = gated_shape(m, n, k).general();
  p.n = n;
  std::vector<float> values(static_cast<std::size_t>(m) * width), ups(values.size());
  const auto product = [&](std::vector<float>& to, int first) {
    const auto store = [&](const float* sums, int, int row, int column, int count) {
      for (int j = 0; j < count; ++j)
        to[static_cast<std::size_t>(row) * width + static_cast<std::size_t>(column + j)] =
            finish ? finish(sums[j], {row, first + column + j, 0, 0}) : sums[j];
    };
    GemmBlockScales of_blocks{};
    if (scales != nullptr)
      of_blocks = {scales->a,
                   scales->b + (first == 0 ? 0 : GemmStride{scale_blocks(n)} * scale_blocks(k))};
    gemm_sums<T>(kGatedOp, p, a, w + static_cast<std::size_t>(first) * depth, store,
                 scales != nullptr ? &of_blocks : nullptr);
  };
  product(values, 0);
  product(ups, n);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = activation(values[i]) * ups[i];
  return values;
}

template <class T>
UntypedKernel<Gemm, GatedProblem> gemm_gated_base(GatedWeights weights,
                                                  const HostActivation& activation) {
  auto kernel = gated_common<T>("gemm/gated/gemm_gated.cuh", weights, activation, "",
                                gated_traffic<OfSize<T>>);
  if constexpr (sizeof(T) == 2) kernel.maps.insert(kernel.maps.begin(), gated_result_map<T>());
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
UntypedKernel<InterleaveGateUp, GateUpRows> interleave_gate_up_base() {
  UntypedKernel<InterleaveGateUp, GateUpRows> kernel{
      {.name = "interleave_gate_up",
       .source = {.file = templates_dir() / (sizeof(T) == 1 ? "gemm/fp8/interleave_gate_up_fp8.cuh"
                                                            : "gemm/gated/interleave_gate_up.cuh")},
       .entry = "kiln::templates::interleave_gate_up",
       .config_type = "kiln::templates::InterleaveGateUp",
       .types = {device_name<T>()},
       .space = interleave_space(),
       .launch =
           [](const InterleaveGateUp& c, const GateUpRows& p) {
             return Launch{
                 {c.grid(p.n, p.k)}, {static_cast<unsigned>(c.threads())}, c.shared_bytes()};
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
       .tolerance = {.relative = 0, .absolute = 0},
       .bytes =
           [](const GateUpRows& p) {
             return sizeof(T) * 1.0 * p.k * (2.0 * p.n + static_cast<double>(gated_rows(p.n)));
           },
       .numerics = [](const InterleaveGateUp&, const GateUpRows&) { return "copies"; }}};
  kernel.computed_by([](T* out, const T* gate, const T* up, int n, int k) {
    for (GemmStride row = 0; row < gated_rows(n); ++row) {
      const GemmStride in_group = row % (2 * kGatedGroup);
      const GemmStride from = row / (2 * kGatedGroup) * kGatedGroup + in_group % kGatedGroup;
      T* const to = out + row * k;
      if (from < n)
        std::copy_n((in_group < kGatedGroup ? gate : up) + from * k, k, to);
      else
        std::fill_n(to, k, T(0.0f));
    }
  });
  return kernel;
}

#define KILN_GATED(T)                                                                             \
  template std::vector<float> gated_values(const T*, const T*, GatedWeights, const GatedProblem&, \
                                           float (*)(float), const GatedFinish&,                  \
                                           const GemmBlockScales*);                               \
  template UntypedKernel<Gemm, GatedProblem> gemm_gated_base<T>(GatedWeights,                     \
                                                                const HostActivation&);           \
  template UntypedKernel<InterleaveGateUp, GateUpRows> interleave_gate_up_base<T>();
KILN_GATED(float)
KILN_GATED(float16)
KILN_GATED(bfloat16)
#undef KILN_GATED
template std::vector<float> gated_values(const float8_e4m3*, const float8_e4m3*, GatedWeights,
                                         const GatedProblem&, float (*)(float), const GatedFinish&,
                                         const GemmBlockScales*);
template UntypedKernel<InterleaveGateUp, GateUpRows> interleave_gate_up_base<float8_e4m3>();

}  // namespace kiln::templates
