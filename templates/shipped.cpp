// The shipped kernels by name.
#include "kiln/error.hpp"
#include "kiln/registry.hpp"
#include "templates/kernels.hpp"

namespace kiln {

namespace {

/// `make` is called with a type's host representation, as `make(T{})`.
template <class Make>
RegisteredKernel family(std::string name, std::string summary, Make make) {
  return {name, std::move(summary), {"f32", "f16", "bf16"}, [name, make](std::string_view type) {
            if (type == "f32") return make(float{}).definition();
            if (type == "f16") return make(float16{}).definition();
            if (type == "bf16") return make(bfloat16{}).definition();
            throw UserError("kernel " + name + " has no type '" + std::string(type) +
                            "' (known: f32, f16, bf16)");
          }};
}

template <templates::GemmTranspose op>
void add_gemm(Registry& registry, const std::string& suffix, const std::string& equation) {
  registry.add(family("gemm" + suffix, equation,
                      [](auto t) { return templates::gemm_kernel<decltype(t), op>(); }));
  registry.add(family("gemm_strided" + suffix, equation + ", with leading dimensions and batches",
                      [](auto t) { return templates::gemm_strided_kernel<decltype(t), op>(); }));
}

/// C is bf16, which `kiln` calls their type.
template <class Make>
void add_fp8(Registry& registry, const std::string& name, const std::string& equation, Make make) {
  registry.add({name, equation, {"bf16"}, [name, make](std::string_view type) {
                  if (type == "bf16") return make().definition();
                  throw UserError("kernel " + name + " has no type '" + std::string(type) +
                                  "' (known: bf16)");
                }});
}

template <templates::Fp8Sums sums>
void add_fp8_gemms(Registry& registry, const std::string& suffix) {
  using epilogue::RowScales, epilogue::TensorScales;
  add_fp8(registry, "gemm_fp8" + suffix, "C[m][n] = scale_a * scale_b * sum_k A[m][k] * B[n][k]",
          [] { return templates::gemm_fp8_kernel<TensorScales, sums>(); });
  add_fp8(registry, "gemm_fp8_rows" + suffix,
          "C[m][n] = scales_a[m] * scales_b[n] * sum_k A[m][k] * B[n][k]",
          [] { return templates::gemm_fp8_kernel<RowScales, sums>(); });
}

void add_grouped_gemms(Registry& registry) {
  registry.add(family("gemm_grouped",
                      "C[i][n] = sum_k A[i][k] * B[g][n][k] of each group g's rows i",
                      [](auto t) { return templates::gemm_grouped_kernel<decltype(t)>(); }));
  registry.add(family("gemm_masked", "C[g][i][n] = sum_k A[g][i][k] * B[g][n][k], i < counts[g]",
                      [](auto t) { return templates::gemm_masked_kernel<decltype(t)>(); }));
}

template <class Activation>
void add_gated(Registry& registry, const std::string& name) {
  using templates::GatedWeights;
  const std::string equation = "out[m][n] = " + name + "(A * gate^T)[m][n] * (A * up^T)[m][n]";
  registry.add(family("gemm_gated_" + name, equation, [](auto t) {
    return templates::gemm_gated_kernel<decltype(t), Activation>();
  }));
  registry.add(family(
      "gemm_gated_" + name + "_interleaved", equation + ", rows of gate and up interleaved",
      [](auto t) {
        return templates::gemm_gated_kernel<decltype(t), Activation, GatedWeights::interleaved>();
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
  add_fp8(registry, "gemm_fp8_block",
          "C[m][n] = sum_k scales_a[k / 128][m] * scales_b[n / 128][k / 128] * A[m][k] * B[n][k]",
          [] { return templates::gemm_fp8_block_kernel<>(); });
  add_grouped_gemms(registry);
  add_gated_gemms(registry);
  return registry;
}

}  // namespace kiln
