// The shipped kernels by name.
#include "kiln/error.hpp"
#include "kiln/registry.hpp"
#include "templates/kernels.hpp"

namespace kiln {

namespace {

using epilogue::Nothing;
using templates::GemmProblem, templates::GemmStridedProblem, templates::GroupedProblem,
    templates::MaskedProblem;
using templates::gemm_detail::TypedGatedGemm, templates::gemm_detail::TypedGemm,
    templates::gemm_detail::TypedGroupedGemm;

using Define = KernelDefinition (*)();

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

KernelDefinition definition_of(KernelDefinition kernel) { return kernel; }
template <class Config, class Problem, class Signature>
KernelDefinition definition_of(const Kernel<Config, Problem, Signature>& kernel) {
  return kernel.definition();
}

/// `Make`, a lambda without captures, is called with a type's host representation, as `make(T{})`.
template <class Make>
RegisteredKernel family(std::string name, std::string summary, Make) {
  return of_types(std::move(name), std::move(summary),
                  {{"f32", [] { return definition_of(Make{}(float{})); }},
                   {"f16", [] { return definition_of(Make{}(float16{})); }},
                   {"bf16", [] { return definition_of(Make{}(bfloat16{})); }}});
}

template <templates::GemmTranspose op>
void add_gemm(Registry& registry, const std::string& suffix, const std::string& equation) {
  registry.add(family("gemm" + suffix, equation, [](auto t) {
    return TypedGemm<decltype(t), op, GemmProblem, Nothing>::definition();
  }));
  registry.add(family(
      "gemm_strided" + suffix, equation + ", with leading dimensions and batches", [](auto t) {
        return TypedGemm<decltype(t), op, GemmStridedProblem, Nothing>::definition();
      }));
}

/// C is bf16, which `kiln` calls their type.
template <class Make>
RegisteredKernel fp8(std::string name, std::string equation, Make) {
  return of_types(std::move(name), std::move(equation),
                  {{"bf16", [] { return Make{}().definition(); }}});
}

template <templates::Fp8Sums sums>
void add_fp8_gemms(Registry& registry, const std::string& suffix) {
  using epilogue::RowScales, epilogue::TensorScales;
  registry.add(fp8("gemm_fp8" + suffix, "C[m][n] = scale_a * scale_b * sum_k A[m][k] * B[n][k]",
                   [] { return templates::gemm_fp8_kernel<TensorScales, sums>(); }));
  registry.add(fp8("gemm_fp8_rows" + suffix,
                   "C[m][n] = scales_a[m] * scales_b[n] * sum_k A[m][k] * B[n][k]",
                   [] { return templates::gemm_fp8_kernel<RowScales, sums>(); }));
}

void add_grouped_gemms(Registry& registry) {
  registry.add(family(
      "gemm_grouped", "C[i][n] = sum_k A[i][k] * B[g][n][k] of each group g's rows i",
      [](auto t) { return TypedGroupedGemm<decltype(t), GroupedProblem, Nothing>::definition(); }));
  registry.add(family(
      "gemm_masked", "C[g][i][n] = sum_k A[g][i][k] * B[g][n][k], i < counts[g]",
      [](auto t) { return TypedGroupedGemm<decltype(t), MaskedProblem, Nothing>::definition(); }));
  registry.add(fp8("gemm_grouped_fp8_block",
                   "gemm_grouped of e4m3, sums of each 128 k times scales_a[k / 128][i] * "
                   "scales_b[g][n / 128][k / 128]",
                   [] { return templates::gemm_grouped_fp8_block_kernel<>(); }));
  registry.add(fp8("gemm_masked_fp8_block",
                   "gemm_masked of e4m3, sums of each 128 k times scales_a[g][k / 128][i] * "
                   "scales_b[g][n / 128][k / 128]",
                   [] { return templates::gemm_masked_fp8_block_kernel<>(); }));
  registry.add(of_types("sort_by_expert",
                        "ends[g], tokens[i], places[t][e]: rows i of tokens t sorted by their "
                        "experts g = choices[t][e]",
                        {{"i32", [] { return templates::sort_by_expert_kernel().definition(); }}}));
}

template <class Activation, templates::GatedWeights weights>
void add_gated_fp8(Registry& registry, const std::string& name, const std::string& suffix) {
  const std::string equation =
      "q[m][n] = e4m3(" + name + "(A * gate^T)[m][n] * (A * up^T)[m][n] / ";
  const std::string how = suffix.empty() ? "" : ", rows of gate and up interleaved";
  registry.add(
      family("gemm_gated_" + name + "_fp8_tensor" + suffix, equation + "scale)" + how, [](auto t) {
        return templates::gemm_gated_fp8_tensor_kernel<decltype(t), Activation, weights>();
      }));
  registry.add(
      family("gemm_gated_" + name + "_fp8_blocks" + suffix, equation + "scales[n / 128][m])" + how,
             [](auto t) {
               return templates::gemm_gated_fp8_blocks_kernel<decltype(t), Activation, weights>();
             }));
}

template <class Activation>
void add_gated(Registry& registry, const std::string& name) {
  using templates::GatedWeights;
  const std::string equation = "out[m][n] = " + name + "(A * gate^T)[m][n] * (A * up^T)[m][n]";
  registry.add(family("gemm_gated_" + name, equation, [](auto t) {
    return TypedGatedGemm<decltype(t), Activation, GatedWeights::stacked>::definition();
  }));
  registry.add(family(
      "gemm_gated_" + name + "_interleaved", equation + ", rows of gate and up interleaved",
      [](auto t) {
        return TypedGatedGemm<decltype(t), Activation, GatedWeights::interleaved>::definition();
      }));
  add_gated_fp8<Activation, GatedWeights::stacked>(registry, name, "");
  add_gated_fp8<Activation, GatedWeights::interleaved>(registry, name, "_interleaved");
  registry.add(
      family(name + "_mul", "out[r][h] = " + name + "(x[r][h]) * x[r][hidden + h]",
             [](auto t) { return templates::gated_activation_kernel<decltype(t), Activation>(); }));
  const std::string quantized = "q[r][h] = e4m3(" + name + "(x[r][h]) * x[r][hidden + h] / ";
  registry.add(family(name + "_mul_fp8_rows", quantized + "scales[r])", [](auto t) {
    return templates::gated_fp8_rows_kernel<decltype(t), Activation>();
  }));
  registry.add(family(name + "_mul_fp8_blocks", quantized + "scales[h / 128][r])", [](auto t) {
    return templates::gated_fp8_blocks_kernel<decltype(t), Activation>();
  }));
  registry.add(family(name + "_mul_fp8_tensor", quantized + "scale)", [](auto t) {
    return templates::gated_fp8_tensor_kernel<decltype(t), Activation>();
  }));
}

void add_gated_gemms(Registry& registry) {
  add_gated<epilogue::Silu>(registry, "silu");
  add_gated<epilogue::Gelu>(registry, "gelu");
  add_gated<epilogue::GeluTanh>(registry, "gelu_tanh");
  add_gated<epilogue::Relu>(registry, "relu");
  registry.add(family("interleave_gate_up", "out = rows of gate and up, 8 of each in turn",
                      [](auto t) { return templates::interleave_gate_up_kernel<decltype(t)>(); }));
}

void add_rows(Registry& registry) {
  registry.add(family("rmsnorm_residual", "residual[r][h] += x[r][h], y = rmsnorm(residual)",
                      [](auto t) { return templates::rmsnorm_residual_kernel<decltype(t)>(); }));
  registry.add(family("rmsnorm_fp8", "q[r][h] = e4m3(rmsnorm(x)[r][h] / scales[r])",
                      [](auto t) { return templates::rmsnorm_fp8_kernel<decltype(t)>(); }));
  registry.add(family(
      "layernorm", "y[r][h] = (x[r][h] - mean(x[r])) * rsqrt(variance(x[r]) + eps) * w[h] + b[h]",
      [](auto t) { return templates::layernorm_kernel<decltype(t)>(); }));
  registry.add(family("softmax", "y[r][c] = exp(x[r][c]) / sum_i exp(x[r][i])",
                      [](auto t) { return templates::softmax_kernel<decltype(t)>(); }));
  registry.add(family("cross_entropy", "loss[r] = log(sum_c exp(x[r][c])) - x[r][label[r]]",
                      [](auto t) { return templates::cross_entropy_kernel<decltype(t)>(); }));
  registry.add(family("quantize_rows", "q[r][h] = e4m3(x[r][h] / scales[r])",
                      [](auto t) { return templates::quantize_rows_kernel<decltype(t)>(); }));
  registry.add(family("quantize_blocks", "q[r][h] = e4m3(x[r][h] / scales[h / 128][r])",
                      [](auto t) { return templates::quantize_blocks_kernel<decltype(t)>(); }));
  registry.add(family("quantize_tensor", "q[r][h] = e4m3(x[r][h] / scale)",
                      [](auto t) { return templates::quantize_tensor_kernel<decltype(t)>(); }));
}

/// Tables of floats, and 64-bit positions.
template <templates::RopeOrder order>
void add_rope(Registry& registry, const std::string& suffix) {
  const std::string how = order == templates::RopeOrder::halved ? "" : ", interleaved";
  registry.add(family("rope" + suffix, "q_out = rope(q), k_out = rope(k)" + how,
                      [](auto t) { return templates::rope_kernel<decltype(t)>(order); }));
  registry.add(family("rope_norm" + suffix,
                      "q_out = rope(rmsnorm(q)), k_out = rope(rmsnorm(k))" + how,
                      [](auto t) { return templates::rope_norm_kernel<decltype(t)>(order); }));
  registry.add(family("rope_paged" + suffix,
                      "q_out = rope(q), rope(k) and v to a paged cache" + how,
                      [](auto t) { return templates::rope_paged_kernel<decltype(t)>(order); }));
  registry.add(
      family("rope_norm_paged" + suffix,
             "q_out = rope(rmsnorm(q)), rope(rmsnorm(k)) and v to a paged cache" + how,
             [](auto t) { return templates::rope_norm_paged_kernel<decltype(t)>(order); }));
}

}  // namespace

Registry shipped_kernels() {
  Registry registry;
  registry.add(family("vector_add", "out[i] = a[i] + b[i]",
                      [](auto t) { return templates::vector_add_kernel<decltype(t)>(); }));
  registry.add(family("residual_add", "out[r][h] = x[r][h] + residual[r][h]",
                      [](auto t) { return templates::residual_add_kernel<decltype(t)>(); }));
  registry.add(family("rmsnorm", "y[r][h] = x[r][h] * rsqrt(mean(x[r]^2) + eps) * w[h]",
                      [](auto t) { return templates::rmsnorm_kernel<decltype(t)>(); }));
  add_rows(registry);
  add_rope<templates::RopeOrder::halved>(registry, "");
  add_rope<templates::RopeOrder::interleaved>(registry, "_interleaved");
  using templates::GemmTranspose;
  add_gemm<GemmTranspose::nt>(registry, "", "C[m][n] = sum_k A[m][k] * B[n][k]");
  add_gemm<GemmTranspose::nn>(registry, "_nn", "C[m][n] = sum_k A[m][k] * B[k][n]");
  add_gemm<GemmTranspose::tn>(registry, "_tn", "C[m][n] = sum_k A[k][m] * B[k][n]");
  add_gemm<GemmTranspose::tt>(registry, "_tt", "C[m][n] = sum_k A[k][m] * B[n][k]");
  add_fp8_gemms<templates::Fp8Sums::exact>(registry, "");
  add_fp8_gemms<templates::Fp8Sums::fast>(registry, "_fast");
  registry.add(
      fp8("gemm_fp8_block",
          "C[m][n] = sum_k scales_a[k / 128][m] * scales_b[n / 128][k / 128] * A[m][k] * B[n][k]",
          [] { return templates::gemm_fp8_block_kernel<>(); }));
  add_grouped_gemms(registry);
  add_gated_gemms(registry);
  return registry;
}

}  // namespace kiln
