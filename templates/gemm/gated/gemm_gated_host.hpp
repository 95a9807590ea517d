// What the host halves of gated GEMMs share: space, maps, configs, traffic.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/paths.hpp"
#include "templates/gemm/gated/gemm_gated_fp8.hpp"
#include "templates/gemm/gemm_bucket.hpp"
#include "templates/gemm/gemm_configs.hpp"
#include "templates/gemm/gemm_cost.hpp"
#include "templates/gemm/gemm_host.hpp"
#include "templates/gemm/gemm_space.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

inline constexpr auto kGatedOp = GemmTranspose::nt;
inline constexpr int kMostGated = 1 << 29;  // columns, so that those of the product can be counted

inline GemmShape<false> gated_product(const GatedProblem& p) { return gemm_shape<kGatedOp>(p); }

/// The values of each field. `blocks`: results have scales of blocks (gemm_gated_fp8.hpp), which a
/// tile holds whole.
template <class T, bool blocks>
constexpr Space<Gemm, GatedProblem> gated_values() {
  const auto values = gemm_values<T, GatedProblem, blocks>();
  if constexpr (!blocks) {
    return values.where(
        "a thread has gate and up of each of its columns: tile_n of simt is even, and block_n of "
        "tensor maps a multiple of 32, with no k shared unless with swap",
        [](const Gemm& c, const GatedProblem&, const DeviceLimits&) { return takes_pairs(c); });
  } else {
    constexpr int kColumns = kPairsOfScale;
    constexpr std::size_t kBytes = sizeof(GemmOperand<T>);
    return values
        .default_on(Target::Kind::cuda,
                    kBytes == 2   ? plain_config(GemmBody::mma, 64, kColumns, 32, 3, 32, 32, 8)
                    : kBytes == 1 ? plain_config(GemmBody::simt, 32, kColumns, 64, 2, 4, 8, 8)
                                  : plain_config(GemmBody::simt, 32, kColumns, 32, 1, 4, 8, 4))
        .default_on(Target::Kind::host,
                    plain_config(GemmBody::simt, 16, kColumns, 128, 1, 4, 8, 16))
        .where(
            "a tile has the 256 columns of gate and up whose products have a scale in common, and "
            "no blocks share k",
            [](const Gemm& c, const GatedProblem&, const DeviceLimits&) {
              return takes_scale_blocks(c);
            });
  }
}

template <class T, bool blocks>
Space<Gemm, GatedProblem> gated_space(GatedWeights weights) {
  constexpr auto interleaved = [](const Gemm&, const GatedProblem&, const DeviceLimits&) {
    return true;
  };
  constexpr auto stacked = [](const Gemm& c, const GatedProblem& p, const DeviceLimits&) {
    return !c.uses_tma() || p.n % kGatedGroup == 0;
  };
  const auto space =
      with_grid<T, kGatedOp, GatedProblem, blocks ? kPairsOfScale : 128>(gated_values<T, blocks>());
  constexpr const char* kReason =
      "tensor maps of stacked weights need an n that is a multiple of 8";
  return (weights == GatedWeights::stacked ? space.where(kReason, stacked)
                                           : space.where(kReason, interleaved))
      .checked();
}

/// Stacked weights as [n / 8][gate, up][8][k]: a box is what the same rows of interleaved ones are.
template <class T>
TensorMap stacked_map(const Gemm& c, const GemmShape<false>& p) {
  const GemmTma t = c.tma(GemmTypes<T>::kOperands);
  const GemmStride n = p.ldc, group = kGatedGroup;
  return TensorMap::tiled<GemmOperand<T>>(
      {.size = {p.k, group, 2, n / group},
       .stride = {p.ldb, n * p.ldb, group * p.ldb},
       .box = {t.box_k(), group, 2, b_box(t, kGatedOp, p) / (2 * group)},
       .swizzle = Swizzle::bytes128,
       .l2_bytes = 256});
}

/// Of A and W.
template <class T>
std::vector<TypedMapRule<Gemm, GatedProblem>> gated_operand_maps(GatedWeights weights) {
  if constexpr (sizeof(GemmOperand<T>) > 2) {
    return {};
  } else {
    constexpr auto uses_tma = [](const Gemm& c) { return c.uses_tma(); };
    using Map = TensorMap (*)(const Gemm&, const GatedProblem&);
    constexpr Map stacked = [](const Gemm& c, const GatedProblem& p) {
      return stacked_map<T>(c, gated_product(p));
    };
    constexpr Map interleaved = [](const Gemm& c, const GatedProblem& p) {
      return b_map<T, kGatedOp>(c, gated_product(p));
    };
    return {{.argument = 1,
             .map = [](const Gemm& c,
                       const GatedProblem& p) { return a_map<T, kGatedOp>(c, gated_product(p)); },
             .only_if = uses_tma},
            {.argument = 2,
             .map = weights == GatedWeights::stacked ? stacked : interleaved,
             .only_if = uses_tma}};
  }
}

/// Of out, whose elements have 2 bytes.
template <class T>
TypedMapRule<Gemm, GatedProblem> gated_result_map() {
  return {.argument = 0,
          .map =
              [](const Gemm& c, const GatedProblem& p) {
                GemmShape<false> of_c = gated_product(p);
                of_c.n = p.n;
                return c_map<T>(gated_results_of(c.tma(GemmTypes<T>::kOperands)), of_c);
              },
          .only_if = [](const Gemm& c) { return gated_by_map(c); }};
}

/// Bytes of A and the weights.
template <class T>
double gated_operand_bytes(const GatedProblem& p) {
  return sizeof(GemmOperand<T>) * (1.0 * p.m * p.k + 2.0 * p.n * p.k);
}

/// A and the weights, as all gated GEMMs read them.
template <class T>
void add_gated_operands(GatedWeights weights, const GatedProblem& p, Workload& w) {
  const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n),
             k = static_cast<std::size_t>(p.k);
  const auto rows =
      weights == GatedWeights::stacked ? 2 * n : static_cast<std::size_t>(gated_rows(p.n));
  w.input<GemmOperand<T>>(m * k).template input<GemmOperand<T>>(rows * k);
  w.scalar(p.m).scalar(p.n).scalar(p.k);
}

template <class T>
GatedProblem gated_bucket(const GatedProblem& p) {
  check_sizes(gated_product({p.m, std::min(p.n, kMostGated), p.k}).general());
  if (p.n < 0) throw UserError("gemm: n is negative");
  if (p.n > kMostGated)
    throw UserError("gemm: n is " + std::to_string(p.n) +
                    ", and a gated product has at most 2^29 columns");
  check_blocks<T>({p.m, p.n, p.k});
  return {row_bucket(p.m), p.n, p.k};
}

/// Sums of a thread that leave registers for any activation.
inline constexpr int kFewSums = 144;

template <class T, int most_sums, bool blocks = false>
std::vector<Gemm> gated_configs(const GatedProblem& p, const DeviceLimits& d) {
  auto configs =
      gemm_configs(kGatedOp, gated_product(p).general(), sizeof(GemmOperand<T>),
                   GemmTypes<T>::kOperands, d, blocks ? GemmTiles::with_wide : GemmTiles::usual);
  std::erase_if(configs, [](const Gemm& c) {
    return !(blocks ? takes_scale_blocks(c) : takes_pairs(c)) ||
           (c.uses_tma() && c.tma().sums() > most_sums);
  });
  if (!configs.empty() || !d.tensor_maps) return configs;
  DeviceLimits plain = d;  // no tile with tensor maps will do
  plain.tensor_maps = false;
  return gated_configs<T, most_sums, blocks>(p, plain);
}

/// What a sum becomes before the activation, of columns of which gate's are the first n and up's
/// the next; null: it is left as it is.
using GatedFinish = std::function<float(float sum, const epilogue::Place& at)>;
/// What is stored [m][n] before it is scaled and rounds. `T`: of A and W. `scales`: of blocks,
/// gate's and then up's.
template <class T>
std::vector<float> gated_values(const T* a, const T* w, GatedWeights weights,
                                const GatedProblem& problem, float (*activation)(float),
                                const GatedFinish& finish = {},
                                const GemmBlockScales* scales = nullptr);

/// What does not depend on the type of elements, but on their size. `traffic`: bytes.
template <class T, bool blocks>
kiln::detail::UntypedKernel<Gemm, GatedProblem> gated_rules(
    GatedWeights weights, bool few_sums, const std::string& entry,
    double (*traffic)(const GatedProblem&)) {
  constexpr auto kOperands = GemmTypes<T>::kOperands;
  constexpr int kOperandBytes = sizeof(GemmOperand<T>);
  kiln::detail::UntypedKernel<Gemm, GatedProblem> kernel{
      {.space = gated_space<T, blocks>(weights)}};
  kernel.entry = "kiln::templates::" + entry;
  kernel.config_type = "kiln::templates::Gemm";
  kernel.configs =
      few_sums ? gated_configs<T, kFewSums, blocks> : gated_configs<T, GemmTma::kMostSums, blocks>;
  kernel.launch = [](const Gemm& c, const GatedProblem& p, const DeviceLimits& d) {
    return gemm_launch<T>(c, kGatedOp, gated_product(p), d);
  };
  if constexpr (!blocks) {
    kernel.workspace = {
        .size = [](const Gemm& c, const GatedProblem& p,
                   const DeviceLimits&) { return gemm_workspace(c, gated_product(p).general()); },
        .only_if = [](const Gemm& c) { return c.parts > 1; }};
    kernel.steps = {{.entry = kernel.entry + "_add",
                     .launch =
                         [](const Gemm& c, const GatedProblem& p) {
                           return gemm_add_launch(c, gated_product(p).general());
                         },
                     .only_if = [](const Gemm& c) { return c.later; }}};
  }
  kernel.relations = {{3, "m"}, {4, "n"}, {5, "k"}};
  kernel.bucket = gated_bucket<T>;
  kernel.device_reference = DeviceReference{
      .config = "",
      .problem = {{"m", 192}, {"n", blocks ? 264 : 104}, {"k", kBlockScaled<T> ? 384 : 136}}};
  kernel.flops = [](const GatedProblem& p) { return 4.0 * p.m * p.n * p.k; };
  kernel.bytes = traffic;
  kernel.cost = [traffic](const Gemm& c, const GatedProblem& p, const DeviceLimits& d) {
    return gemm_cost(c, gated_product(p).sizes(), traffic(p), kOperandBytes, kOperands,
                     registers(c, kOperands), d, 0.5);
  };
  kernel.untuned_by_cost = [](const DeviceLimits& d) {
    return kOperandBytes <= 2 && d.compute_capability == 90;
  };
  kernel.numerics = [](const Gemm& c, const GatedProblem&) { return order_of_sums(c); };
  return kernel;
}

/// What all gated GEMMs are, whatever leaves them. `operands` and `results`: what they are called
/// by those.
template <class T, bool blocks = false>
kiln::detail::UntypedKernel<Gemm, GatedProblem> gated_common(const char* file, GatedWeights weights,
                                                             const HostActivation& activation,
                                                             const std::string& results,
                                                             double (*traffic)(const GatedProblem&),
                                                             const std::string& operands = "") {
  const bool stacked = weights == GatedWeights::stacked;
  auto kernel = gated_rules<OfSize<T>, blocks>(weights, !activation.takes_few_registers(),
                                               "gemm_gated" + results, traffic);
  kernel.name = "gemm" + operands + "_gated" + (activation.word.empty() ? "" : "_") +
                std::string(activation.word) + results + (stacked ? "" : "_interleaved");
  kernel.source = {.file = templates_dir() / file};
  kernel.types = {
      device_name<T>(),
      std::string("kiln::templates::GatedWeights::") + (stacked ? "stacked" : "interleaved"),
      activation.type};
  kernel.maps = gated_operand_maps<T>(weights);
  return kernel;
}

}  // namespace kiln::templates
