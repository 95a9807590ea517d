// The typed kernels of gemm_gated_fp8.hpp for C++ programs.
#pragma once

#include <filesystem>

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

// What the kernels are without their signatures. T is float, kiln::float16 or kiln::bfloat16.
template <class T>
kiln::detail::UntypedKernel<Gemm, GatedProblem> gemm_gated_fp8_tensor_base(
    GatedWeights weights, const HostActivation& activation);
template <class T>
kiln::detail::UntypedKernel<Gemm, GatedProblem> gemm_gated_fp8_blocks_base(
    GatedWeights weights, const HostActivation& activation);

namespace gemm_detail {

/// @throws UserError when q or `scales` overlap what is read
template <class T>
GatedProblem checked_fp8(GatedWeights weights, const float8_e4m3* q, const T* a, const T* w,
                         const GatedProblem& p, const GemmArea& scales, bool scales_are_read) {
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

}  // namespace gemm_detail

/// T is float, kiln::float16 or kiln::bfloat16; Activation is Silu, Gelu, GeluTanh or Relu of
/// kiln/epilogue.hpp, or a struct like those in a header of your own.
template <class T, class Activation, GatedWeights weights = GatedWeights::stacked>
GemmGatedFp8TensorKernel<T> gemm_gated_fp8_tensor_kernel(
    const std::filesystem::path& activation_header = {}) {
  auto base = gemm_gated_fp8_tensor_base<T>(weights, gemm_detail::gated_activation<Activation>());
  base.source = gemm_detail::with_header(base.source, activation_header);
  return base.template typed<GemmGatedFp8TensorKernel<T>>(
      [](float8_e4m3* q, const T* a, const T* w, int m, int n, int k, const float* scale) {
        using namespace gemm_detail;
        return checked_fp8(weights, q, a, w, {m, n, k}, gemm_area(scale, 1, 1, 1, 1), true);
      });
}
template <class T, class Activation, GatedWeights weights = GatedWeights::stacked>
GemmGatedFp8BlocksKernel<T> gemm_gated_fp8_blocks_kernel(
    const std::filesystem::path& activation_header = {}) {
  auto base = gemm_gated_fp8_blocks_base<T>(weights, gemm_detail::gated_activation<Activation>());
  base.source = gemm_detail::with_header(base.source, activation_header);
  return base.template typed<GemmGatedFp8BlocksKernel<T>>(
      [](float8_e4m3* q, const T* a, const T* w, int m, int n, int k, float* scales) {
        using namespace gemm_detail;
        const GemmStride span = GemmStride{scale_blocks(n)} * scale_leading(m);
        return checked_fp8(weights, q, a, w, {m, n, k}, gemm_area(scales, span, 0, 0, 0), false);
      });
}

}  // namespace kiln::templates
