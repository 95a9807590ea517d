// The typed kernels of gemm_gated_fp8.hpp for C++ programs.
#pragma once

#include <functional>
#include <vector>

#include "gemm_gated_fp8.hpp"
#include "gemm_gated_kernel.hpp"

namespace kiln::templates {

/// Arguments: q, A, W, m, n, k, scale.
template <class T>
using GemmGatedFp8TensorKernel =
    Kernel<Gemm, GatedProblem, void(float8_e4m3*, const T*, const T*, int, int, int, const float*)>;
/// Arguments: q, A, W, m, n, k, scales.
template <class T>
using GemmGatedFp8BlocksKernel =
    Kernel<Gemm, GatedProblem, void(float8_e4m3*, const T*, const T*, int, int, int, float*)>;

/// On the host, from A and W, what is stored [m][n] before it is scaled and rounds.
template <class T>
using GatedValues = std::function<std::vector<float>(const T*, const T*, const GatedProblem&)>;

// What the kernels are without their activation, of which `values` computes. Registers are left for
// it with `few_sums`. T is float, kiln::float16 or kiln::bfloat16.
template <class T>
GemmGatedFp8TensorKernel<T> gemm_gated_fp8_tensor_base(GatedWeights weights, bool few_sums,
                                                       const GatedValues<T>& values);
template <class T>
GemmGatedFp8BlocksKernel<T> gemm_gated_fp8_blocks_base(GatedWeights weights, bool few_sums,
                                                       const GatedValues<T>& values);

namespace gemm_detail {

template <class T, class Activation, GatedWeights weights>
struct TypedGatedFp8 {
  static_assert(std::is_same_v<epilogue::detail::parameters_of<Activation>, Parameters<>>,
                "an activation has no parameters");

  static std::vector<float> values(const T* a, const T* w, const GatedProblem& p) {
    std::vector<float> v(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    gated_values<T, Activation, weights>(
        a, w, p, [&](GemmStride at, float value) { v[static_cast<std::size_t>(at)] = value; });
    return v;
  }
  /// @throws UserError when q or `scales` overlap what is read
  static GatedProblem checked(const float8_e4m3* q, const T* a, const T* w, const GatedProblem& p,
                              const GemmArea& scales, bool scales_are_read) {
    const GemmArea area = gemm_area(q, GemmStride{p.m} * p.n, 1, p.n, p.n);
    const GemmArea operands[] = {gemm_area(a, GemmStride{p.m} * p.k, 1, p.k, p.k),
                                 gated_weights_area(w, weights, p)};
    if (overlap(area, scales)) throw UserError("gemm: q overlaps the scales");
    for (const GemmArea& operand : operands) {
      if (overlap(area, operand)) throw UserError("gemm: q overlaps A or W");
      if (!scales_are_read && overlap(scales, operand))
        throw UserError("gemm: the scales overlap A or W");
    }
    return p;
  }
  template <class Type>
  static Type named(Type kernel, const char* results, const std::filesystem::path& header) {
    kernel.name = gated_name<Activation, weights>(results);
    kernel.source = with_header(kernel.source, header);
    kernel.types.push_back(epilogue_name<Activation>());
    return kernel;
  }

  static GemmGatedFp8TensorKernel<T> tensor(const std::filesystem::path& header) {
    auto kernel =
        named(gemm_gated_fp8_tensor_base<T>(weights, !kTakesFewRegisters<Activation>, values),
              "_fp8_tensor", header);
    kernel.problem = [](float8_e4m3* q, const T* a, const T* w, int m, int n, int k,
                        const float* scale) {
      return checked(q, a, w, {m, n, k}, gemm_area(scale, 1, 1, 1, 1), true);
    };
    return kernel;
  }
  static GemmGatedFp8BlocksKernel<T> blocks(const std::filesystem::path& header) {
    auto kernel =
        named(gemm_gated_fp8_blocks_base<T>(weights, !kTakesFewRegisters<Activation>, values),
              "_fp8_blocks", header);
    kernel.problem = [](float8_e4m3* q, const T* a, const T* w, int m, int n, int k,
                        float* scales) {
      const GemmStride span = GemmStride{scale_blocks(n)} * scale_leading(m);
      return checked(q, a, w, {m, n, k}, gemm_area(scales, span, 0, 0, 0), false);
    };
    return kernel;
  }
};

}  // namespace gemm_detail

/// T is float, kiln::float16 or kiln::bfloat16; Activation is Silu, Gelu, GeluTanh or Relu of
/// kiln/epilogue.hpp, or a struct like those in a header of your own.
template <class T, class Activation, GatedWeights weights = GatedWeights::stacked>
GemmGatedFp8TensorKernel<T> gemm_gated_fp8_tensor_kernel(
    const std::filesystem::path& activation_header = {}) {
  return gemm_detail::TypedGatedFp8<T, Activation, weights>::tensor(activation_header);
}
template <class T, class Activation, GatedWeights weights = GatedWeights::stacked>
GemmGatedFp8BlocksKernel<T> gemm_gated_fp8_blocks_kernel(
    const std::filesystem::path& activation_header = {}) {
  return gemm_detail::TypedGatedFp8<T, Activation, weights>::blocks(activation_header);
}

}  // namespace kiln::templates
