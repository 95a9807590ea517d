// The shipped kernels by name.
#include <functional>
#include <memory>
#include <utility>

#include "kiln/error.hpp"
#include "kiln/registry.hpp"
#include "templates/gemm/gemm_choice.hpp"
#include "templates/kernels.hpp"

namespace kiln {

namespace {

using epilogue::Nothing;
using templates::GatedWeights, templates::HostActivation;
using templates::GemmTranspose, templates::GemmProblem, templates::GemmStridedProblem,
    templates::GroupedProblem, templates::MaskedProblem, templates::PaddedProblem;
using templates::gemm_detail::TypedGemm, templates::gemm_detail::TypedGroupedGemm;

using BlockFp8 = templates::Fp8<bfloat16, templates::Fp8Sums::scaled>;
using BlockScaled = templates::Fp8Epilogue<epilogue::BlockScales>;

using Define = std::function<KernelDefinition()>;

/// A kernel of several types, each with a function that defines it.
RegisteredKernel of_types(std::string name, std::string summary,
                          std::vector<std::pair<std::string, Define>> types) {
  RegisteredKernel kernel{name, std::move(summary), {}, {}};
  for (const auto& [type, define] : types) kernel.types.push_back(type);
  kernel.make = [name = std::move(name), types = std::move(types)](std::string_view type) {
    std::string known;
    for (const auto& [other, define] : types) {
      if (type == other) return define();
      known += (known.empty() ? "" : ", ") + other;
    }
    throw UserError("kernel " + name + " has no type '" + std::string(type) + "' (known: " + known +
                    ")");
  };
  return kernel;
}

/// `Make` is called with a type's host representation, as `make(T{})`.
template <class Make>
RegisteredKernel family(std::string name, std::string summary, Make make) {
  return of_types(std::move(name), std::move(summary),
                  {{"f32", [make] { return make(float{}).definition(); }},
                   {"f16", [make] { return make(float16{}).definition(); }},
                   {"bf16", [make] { return make(bfloat16{}).definition(); }}});
}

/// As templates::gemm_choice and templates::gemm_fp8_choice, without their signatures.
template <class T, GemmTranspose op, class Problem, class Epilogue = Nothing>
detail::ChoiceDescription gemm_choice() {
  detail::ChoiceDescription choice;
  choice.name = templates::gemm_choice_name<T>();
  choice.types = templates::gemm_choice_types<T>(op);
  choice.operation = TypedGemm<T, op, Problem, Epilogue>{}.definition();
  choice.alternatives.resize(2);
  choice.alternatives[0].name = "cublaslt";
  choice.alternatives[0].cublaslt = templates::cublaslt_gemm<T, op, Problem>();
  choice.alternatives[1].name = "template";
  choice.alternatives[1].kernel = std::make_shared<const KernelDefinition>(choice.operation);
  return choice;
}

template <GemmTranspose op, class Problem>
void add_gemm_choice(Registry& registry, const std::string& name, const std::string& summary) {
  registry.add_choice({name, summary, {"f32", "f16", "bf16"}, [](std::string_view type) {
                         return type == "f32"   ? gemm_choice<float, op, Problem>()
                                : type == "f16" ? gemm_choice<float16, op, Problem>()
                                                : gemm_choice<bfloat16, op, Problem>();
                       }});
}

template <templates::GemmTranspose op>
void add_gemm(Registry& registry, const std::string& suffix, const std::string& equation) {
  registry.add(family("gemm" + suffix, equation,
                      [](auto t) { return TypedGemm<decltype(t), op, GemmProblem, Nothing>{}; }));
  registry.add(
      family("gemm_strided" + suffix, equation + ", with leading dimensions and batches",
             [](auto t) { return TypedGemm<decltype(t), op, GemmStridedProblem, Nothing>{}; }));
  add_gemm_choice<op, GemmProblem>(registry, "gemm" + suffix, equation);
  add_gemm_choice<op, GemmStridedProblem>(registry, "gemm_strided" + suffix,
                                          equation + ", with leading dimensions and batches");
}

/// C is bf16, which `kiln` calls their type.
RegisteredKernel fp8(std::string name, std::string equation, Define define) {
  return of_types(std::move(name), std::move(equation), {{"bf16", define}});
}

template <templates::Fp8Sums sums>
void add_fp8_gemms(Registry& registry, const std::string& suffix) {
  using epilogue::RowScales, epilogue::TensorScales;
  using Fp8 = templates::Fp8<bfloat16, sums>;
  const std::string name = "gemm_fp8" + suffix,
                    equation = "C[m][n] = scale_a * scale_b * sum_k A[m][k] * B[n][k]";
  registry.add(fp8(name, equation, [] {
    return TypedGemm<Fp8, GemmTranspose::nt, GemmProblem, TensorScales>::definition();
  }));
  registry.add_choice({name, equation, {"bf16"}, [](std::string_view) {
                         return gemm_choice<Fp8, GemmTranspose::nt, GemmProblem, TensorScales>();
                       }});
  registry.add(fp8("gemm_fp8_rows" + suffix,
                   "C[m][n] = scales_a[m] * scales_b[n] * sum_k A[m][k] * B[n][k]", [] {
                     KernelDefinition kernel =
                         TypedGemm<Fp8, GemmTranspose::nt, GemmProblem, RowScales>::definition();
                     kernel.name = templates::fp8_name<RowScales>(kernel.name);
                     return kernel;
                   }));
}

void add_grouped_gemms(Registry& registry) {
  registry.add(
      family("gemm_grouped", "C[i][n] = sum_k A[i][k] * B[g][n][k] of each group g's rows i",
             [](auto t) { return TypedGroupedGemm<decltype(t), GroupedProblem, Nothing>{}; }));
  registry.add(
      family("gemm_padded",
             "gemm_grouped, where the first row of each group is a multiple of row_alignment",
             [](auto t) { return TypedGroupedGemm<decltype(t), PaddedProblem, Nothing>{}; }));
  registry.add(
      family("gemm_masked", "C[g][i][n] = sum_k A[g][i][k] * B[g][n][k], i < counts[g]",
             [](auto t) { return TypedGroupedGemm<decltype(t), MaskedProblem, Nothing>{}; }));
  registry.add(fp8("gemm_grouped_fp8_block",
                   "gemm_grouped of e4m3, sums of each 128 k times scales_a[k / 128][i] * "
                   "scales_b[g][n / 128][k / 128]",
                   TypedGroupedGemm<BlockFp8, GroupedProblem, BlockScaled>::definition));
  registry.add(fp8("gemm_padded_fp8_block",
                   "gemm_grouped_fp8_block, where the first row of each group is a multiple of "
                   "row_alignment",
                   TypedGroupedGemm<BlockFp8, PaddedProblem, BlockScaled>::definition));
  registry.add(fp8("gemm_masked_fp8_block",
                   "gemm_masked of e4m3, sums of each 128 k times scales_a[g][k / 128][i] * "
                   "scales_b[g][n / 128][k / 128]",
                   TypedGroupedGemm<BlockFp8, MaskedProblem, BlockScaled>::definition));
  registry.add(of_types("sort_by_expert",
                        "ends[g], tokens[i], places[t][e]: rows i of tokens t sorted by their "
                        "experts g = choices[t][e]",
                        {{"i32", [] { return templates::sort_by_expert_kernel().definition(); }}}));
}

std::string suffix_of(GatedWeights weights) {
  return weights == GatedWeights::stacked ? "" : "_interleaved";
}
std::string layout_of(GatedWeights weights) {
  return weights == GatedWeights::stacked ? "" : ", rows of gate and up interleaved";
}

void add_gated_product(Registry& registry, const HostActivation& activation, GatedWeights weights) {
  const std::string name(activation.word);
  registry.add(
      family("gemm_gated_" + name + suffix_of(weights),
             "out[m][n] = " + name + "(A * gate^T)[m][n] * (A * up^T)[m][n]" + layout_of(weights),
             [=](auto t) { return templates::gemm_gated_base<decltype(t)>(weights, activation); }));
}

/// For 8-bit floats; kernels are called by the type of results. `name`: the GEMM's.
template <templates::Fp8Sums sums>
void add_fp8_gated(Registry& registry, const HostActivation& activation, const std::string& name,
                   templates::GatedScales scales) {
  using templates::GatedScales;
  const std::string word(activation.word);
  const auto product = [&](const std::string& which) {
    const std::string factors = scales == GatedScales::tensor ? "scale_a * scale_w * "
                                : scales == GatedScales::rows
                                    ? "scales_a[m] * scales_" + which + "[n] * "
                                    : "";
    return factors + "(A * " + which + "^T)[m][n]";
  };
  const std::string v = word + "(" + product("gate") + ") * " + product("up"),
                    gated = name + "_gated_" + word;
  const std::string how =
      scales == GatedScales::blocks ? ", scales of 1 x 128 of A and 128 x 128 of gate and up" : "";
  for (const GatedWeights weights : {GatedWeights::stacked, GatedWeights::interleaved}) {
    const auto add = [&](const std::string& results, const std::string& type,
                         const std::string& equation, auto base) {
      registry.add(
          of_types(gated + results + suffix_of(weights), equation + how + layout_of(weights),
                   {{type, [=] { return base(weights, activation, scales).definition(); }}}));
    };
    add("", "bf16", "out[m][n] = " + v, templates::gemm_fp8_gated_base<sums>);
    add("_fp8_tensor", "e4m3", "q[m][n] = e4m3((" + v + ") / scale)",
        templates::gemm_fp8_gated_fp8_tensor_base<sums>);
    add("_fp8_blocks", "e4m3", "q[m][n] = e4m3((" + v + ") / scales[n / 128][m])",
        templates::gemm_fp8_gated_fp8_blocks_base<sums>);
  }
}

void add_gated_fp8(Registry& registry, const HostActivation& activation, GatedWeights weights) {
  const std::string word(activation.word), name = "gemm_gated_" + word + "_fp8_";
  const std::string equation =
      "q[m][n] = e4m3(" + word + "(A * gate^T)[m][n] * (A * up^T)[m][n] / ";
  registry.add(family(
      name + "tensor" + suffix_of(weights), equation + "scale)" + layout_of(weights), [=](auto t) {
        return templates::gemm_gated_fp8_tensor_base<decltype(t)>(weights, activation);
      }));
  registry.add(family(name + "blocks" + suffix_of(weights),
                      equation + "scales[n / 128][m])" + layout_of(weights), [=](auto t) {
                        return templates::gemm_gated_fp8_blocks_base<decltype(t)>(weights,
                                                                                  activation);
                      }));
}

void add_gated(Registry& registry, const HostActivation& activation) {
  const std::string name(activation.word);
  constexpr GatedWeights kLayouts[] = {GatedWeights::stacked, GatedWeights::interleaved};
  for (const GatedWeights weights : kLayouts) add_gated_product(registry, activation, weights);
  for (const GatedWeights weights : kLayouts) add_gated_fp8(registry, activation, weights);
  using enum templates::Fp8Sums;
  using enum templates::GatedScales;
  add_fp8_gated<exact>(registry, activation, "gemm_fp8", tensor);
  add_fp8_gated<exact>(registry, activation, "gemm_fp8_rows", rows);
  add_fp8_gated<fast>(registry, activation, "gemm_fp8_fast", tensor);
  add_fp8_gated<fast>(registry, activation, "gemm_fp8_rows_fast", rows);
  add_fp8_gated<scaled>(registry, activation, "gemm_fp8_block", blocks);
  registry.add(
      family(name + "_mul", "out[r][h] = " + name + "(x[r][h]) * x[r][hidden + h]",
             [=](auto t) { return templates::gated_activation_base<decltype(t)>(activation); }));
  const std::string quantized = "q[r][h] = e4m3(" + name + "(x[r][h]) * x[r][hidden + h] / ";
  registry.add(family(name + "_mul_fp8_rows", quantized + "scales[r])", [=](auto t) {
    return templates::gated_fp8_rows_base<decltype(t)>(activation);
  }));
  registry.add(family(name + "_mul_fp8_blocks", quantized + "scales[h / 128][r])", [=](auto t) {
    return templates::gated_fp8_blocks_base<decltype(t)>(activation);
  }));
  registry.add(family(name + "_mul_fp8_tensor", quantized + "scale)", [=](auto t) {
    return templates::gated_fp8_tensor_base<decltype(t)>(activation);
  }));
}

void add_gated_gemms(Registry& registry) {
  using templates::known_activation;
  add_gated(registry, known_activation<epilogue::Silu>());
  add_gated(registry, known_activation<epilogue::Gelu>());
  add_gated(registry, known_activation<epilogue::GeluTanh>());
  add_gated(registry, known_activation<epilogue::Relu>());
  const auto interleave = [](auto t) -> Define {
    return [] { return templates::interleave_gate_up_base<decltype(t)>().definition(); };
  };
  registry.add(of_types("interleave_gate_up", "out = rows of gate and up, 8 of each in turn",
                        {{"f32", interleave(float{})},
                         {"f16", interleave(float16{})},
                         {"bf16", interleave(bfloat16{})},
                         {"e4m3", interleave(float8_e4m3{})}}));
}

void add_rows(Registry& registry) {
  registry.add(family("rmsnorm_residual", "residual[r][h] += x[r][h], y = rmsnorm(residual)",
                      [](auto t) { return templates::rmsnorm_residual_base<decltype(t)>(); }));
  registry.add(family("rmsnorm_fp8", "q[r][h] = e4m3(rmsnorm(x)[r][h] / scales[r])",
                      [](auto t) { return templates::rmsnorm_fp8_base<decltype(t)>(); }));
  registry.add(family("rmsnorm_fp8_blocks", "q[r][h] = e4m3(rmsnorm(x)[r][h] / scales[h / 128][r])",
                      [](auto t) { return templates::rmsnorm_fp8_blocks_base<decltype(t)>(); }));
  registry.add(
      family("rmsnorm_residual_fp8",
             "residual[r][h] += x[r][h], q[r][h] = e4m3(rmsnorm(residual)[r][h] / scales[r])",
             [](auto t) { return templates::rmsnorm_residual_fp8_base<decltype(t)>(); }));
  registry.add(family(
      "rmsnorm_residual_fp8_blocks",
      "residual[r][h] += x[r][h], q[r][h] = e4m3(rmsnorm(residual)[r][h] / scales[h / 128][r])",
      [](auto t) { return templates::rmsnorm_residual_fp8_blocks_base<decltype(t)>(); }));
  registry.add(family(
      "layernorm", "y[r][h] = (x[r][h] - mean(x[r])) * rsqrt(variance(x[r]) + eps) * w[h] + b[h]",
      [](auto t) { return templates::layernorm_base<decltype(t)>(); }));
  registry.add(family("softmax", "y[r][c] = exp(x[r][c]) / sum_i exp(x[r][i])",
                      [](auto t) { return templates::softmax_base<decltype(t)>(); }));
  registry.add(family("cross_entropy", "loss[r] = log(sum_c exp(x[r][c])) - x[r][label[r]]",
                      [](auto t) { return templates::cross_entropy_base<decltype(t)>(); }));
  registry.add(family("quantize_rows", "q[r][h] = e4m3(x[r][h] / scales[r])",
                      [](auto t) { return templates::quantize_rows_base<decltype(t)>(); }));
  registry.add(family("quantize_blocks", "q[r][h] = e4m3(x[r][h] / scales[h / 128][r])",
                      [](auto t) { return templates::quantize_blocks_base<decltype(t)>(); }));
  registry.add(family("quantize_tensor", "q[r][h] = e4m3(x[r][h] / scale)",
                      [](auto t) { return templates::quantize_tensor_base<decltype(t)>(); }));
  registry.add(
      family("quantize_tensor_dynamic", "q[r][h] = e4m3(x[r][h] / scale), scale = max |x| / 448",
             [](auto t) { return templates::quantize_tensor_dynamic_base<decltype(t)>(); }));
  registry.add(
      family("quantize_blocks_masked",
             "q[g][i][h] = e4m3(x[g][i][h] / scales[g][h / 128][i]), i < counts[g]",
             [](auto t) { return templates::quantize_blocks_masked_base<decltype(t)>(); }));
  registry.add(family("quantize_weights",
                      "q[g][n][k] = e4m3(w[g][n][k] / scales[g][n / 128][k / 128])",
                      [](auto t) { return templates::quantize_weights_base<decltype(t)>(); }));
}

/// Tables of floats, and 64-bit positions.
void add_rope(Registry& registry, templates::RopeOrder order, const std::string& suffix) {
  const std::string how = order == templates::RopeOrder::halved ? "" : ", interleaved";
  registry.add(family("rope" + suffix, "q_out = rope(q), k_out = rope(k)" + how, [order](auto t) {
    return templates::rope_base<decltype(t), float, std::int64_t>(order, false);
  }));
  registry.add(family("rope_norm" + suffix,
                      "q_out = rope(rmsnorm(q)), k_out = rope(rmsnorm(k))" + how, [order](auto t) {
                        return templates::rope_base<decltype(t), float, std::int64_t>(order, true);
                      }));
  registry.add(family("rope_paged" + suffix,
                      "q_out = rope(q), rope(k) and v to a paged cache" + how, [order](auto t) {
                        return templates::rope_paged_base<decltype(t), float, std::int64_t>(order,
                                                                                            false);
                      }));
  registry.add(family(
      "rope_norm_paged" + suffix,
      "q_out = rope(rmsnorm(q)), rope(rmsnorm(k)) and v to a paged cache" + how, [order](auto t) {
        return templates::rope_paged_base<decltype(t), float, std::int64_t>(order, true);
      }));
}

}  // namespace

Registry shipped_kernels() {
  Registry registry;
  registry.add(family("vector_add", "out[i] = a[i] + b[i]",
                      [](auto t) { return templates::vector_add_base<decltype(t)>(); }));
  registry.add(family("residual_add", "out[r][h] = x[r][h] + residual[r][h]",
                      [](auto t) { return templates::residual_add_base<decltype(t)>(); }));
  registry.add(family("rmsnorm", "y[r][h] = x[r][h] * rsqrt(mean(x[r]^2) + eps) * w[h]",
                      [](auto t) { return templates::rmsnorm_base<decltype(t)>(); }));
  add_rows(registry);
  add_rope(registry, templates::RopeOrder::halved, "");
  add_rope(registry, templates::RopeOrder::interleaved, "_interleaved");
  add_gemm<GemmTranspose::nt>(registry, "", "C[m][n] = sum_k A[m][k] * B[n][k]");
  add_gemm<GemmTranspose::nn>(registry, "_nn", "C[m][n] = sum_k A[m][k] * B[k][n]");
  add_gemm<GemmTranspose::tn>(registry, "_tn", "C[m][n] = sum_k A[k][m] * B[k][n]");
  add_gemm<GemmTranspose::tt>(registry, "_tt", "C[m][n] = sum_k A[k][m] * B[n][k]");
  add_fp8_gemms<templates::Fp8Sums::exact>(registry, "");
  add_fp8_gemms<templates::Fp8Sums::fast>(registry, "_fast");
  registry.add(
      fp8("gemm_fp8_block",
          "C[m][n] = sum_k scales_a[k / 128][m] * scales_b[n / 128][k / 128] * A[m][k] * B[n][k]",
          TypedGemm<BlockFp8, GemmTranspose::nt, GemmProblem, BlockScaled>::definition));
  add_grouped_gemms(registry);
  add_gated_gemms(registry);
  return registry;
}

}  // namespace kiln
