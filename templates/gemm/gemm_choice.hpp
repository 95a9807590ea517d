// The GEMM as a choice (kiln/choice.hpp): cuBLASLt, whose first answer is the default, and the
// kernel of gemm.hpp with its whole space, `template`. Switches name it `gemm`:
// KILN_BACKENDS_GEMM=-cublaslt.
//
//   auto gemm = kiln::tuned(runtime, kiln::templates::gemm_choice<kiln::bfloat16>());
//   gemm(stream, c, a, b, m, n, k);  // C = A * B^T, without gaps
//
// C, A and B must be aligned to 16 bytes. Where cuBLASLt cannot be used the kernel alone takes
// part.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gemm_kernel.hpp"
#include "kiln/choice.hpp"

namespace kiln::templates {

namespace gemm_detail {

template <class T>
constexpr CublasltGemm::Type cublaslt_type() {
  using Type = CublasltGemm::Type;
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, float16> ||
                    std::is_same_v<T, bfloat16> || std::is_same_v<T, float8_e4m3>,
                "T is float, kiln::float16, kiln::bfloat16 or Fp8<kiln::bfloat16, ...>");
  return std::is_same_v<T, float16>       ? Type::float16
         : std::is_same_v<T, bfloat16>    ? Type::bfloat16
         : std::is_same_v<T, float8_e4m3> ? Type::float8_e4m3
                                          : Type::float32;
}

}  // namespace gemm_detail

/// What cuBLASLt is told of a GEMM's problem. With T = Fp8<...> the epilogue is TensorScales, whose
/// arguments follow the sizes.
template <class T, GemmTranspose op, class Problem>
CublasltGemm cublaslt_gemm() {
  static_assert(!kBlockScaled<T>, "cuBLASLt has one scale for each of A and B");
  CublasltGemm gemm{.type = gemm_detail::cublaslt_type<GemmOperand<T>>(),
                    .product = [](std::span<const std::int64_t> problem) {
                      const auto p = gemm_shape<op>(from_values<Problem>(problem)).general();
                      return MatrixProduct{.m = p.m,
                                           .n = p.n,
                                           .k = p.k,
                                           .a_transposed = a_across(op),
                                           .b_transposed = !b_across(op),
                                           .ldc = p.ldc,
                                           .lda = p.lda,
                                           .ldb = p.ldb,
                                           .batch = p.batch,
                                           .stride_c = p.stride_c,
                                           .stride_a = p.stride_a,
                                           .stride_b = p.stride_b};
                    }};
  if constexpr (GemmTypes<T>::kFp8) {
    const std::size_t scales = 3 + field_infos<Problem>().size();  // behind C, A, B and the sizes
    gemm.c_type = gemm_detail::cublaslt_type<GemmResult<T>>();
    gemm.scale_a = scales;
    gemm.scale_b = scales + 1;
    gemm.fast_accumulation = GemmTypes<T>::kOperands == GemmOperands::fp8;
  }
  return gemm;
}

/// The name in switches and records.
template <class T>
std::string gemm_choice_name() {
  return GemmTypes<T>::kFp8 ? "gemm_fp8" : "gemm";
}
/// What tells choices of that name apart in records.
template <class T>
std::vector<std::string> gemm_choice_types(GemmTranspose op) {
  constexpr const char* kOperations[] = {"nt", "nn", "tn", "tt"};
  return {device_name<T>(), kOperations[static_cast<int>(op)]};
}

namespace gemm_detail {

template <class T, GemmTranspose op, class Problem, class... Args>
Choice<Problem, void(Args...)> with_cublaslt(const Kernel<Gemm, Problem, void(Args...)>& kernel) {
  auto made = choice(kernel, gemm_choice_name<T>());
  made.types = gemm_choice_types<T>(op);
  made.alternatives.insert(made.alternatives.begin(),
                           {.name = "cublaslt", .cublaslt = cublaslt_gemm<T, op, Problem>()});
  return made;
}

}  // namespace gemm_detail

/// Arguments: C, A, B, m, n, k. T is float, kiln::float16 or kiln::bfloat16.
template <class T, GemmTranspose op = GemmTranspose::nt>
auto gemm_choice() {
  return gemm_detail::with_cublaslt<T, op>(gemm_kernel<T, op>());
}

/// Arguments: C, A, B, m, n, k, ldc, lda, ldb, batch, stride_c, stride_a, stride_b.
template <class T, GemmTranspose op = GemmTranspose::nt>
auto gemm_strided_choice() {
  return gemm_detail::with_cublaslt<T, op>(gemm_strided_kernel<T, op>());
}

}  // namespace kiln::templates
