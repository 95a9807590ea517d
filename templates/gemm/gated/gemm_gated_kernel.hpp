// The typed kernels of gemm_gated.hpp for C++ programs.
#pragma once

#include <filesystem>
#include <type_traits>

#include "../../elementwise/activation.hpp"
#include "../gemm_kernel.hpp"
#include "gemm_gated.hpp"
#include "kiln/detail/untyped_kernel.hpp"

namespace kiln::templates {

/// What a gated GEMM is without its signature. T is float, kiln::float16 or kiln::bfloat16.
template <class T>
kiln::detail::UntypedKernel<Gemm, GatedProblem> gemm_gated_base(GatedWeights weights,
                                                                const HostActivation& activation);

/// Arguments: out, A, W, m, n, k.
template <class T>
using GemmGatedKernel = Kernel<Gemm, GatedProblem, void(T*, const T*, const T*, int, int, int)>;

namespace gemm_detail {

template <class Activation>
HostActivation gated_activation() {
  static_assert(std::is_same_v<epilogue::detail::parameters_of<Activation>, Parameters<>>,
                "an activation has no parameters");
  return host_activation<Activation>(epilogue_name<Activation>());
}

template <class T>
GemmArea gated_weights_area(const T* w, GatedWeights weights, const GatedProblem& p) {
  const GemmStride rows = weights == GatedWeights::stacked ? 2ll * p.n : gated_rows(p.n);
  return gemm_area(w, rows * p.k, 1, p.k, p.k);
}

}  // namespace gemm_detail

/// T is float, kiln::float16 or kiln::bfloat16; Activation is Silu, Gelu, GeluTanh or Relu of
/// kiln/epilogue.hpp, or a struct like those in a header of your own.
template <class T, class Activation, GatedWeights weights = GatedWeights::stacked>
GemmGatedKernel<T> gemm_gated_kernel(const std::filesystem::path& activation_header = {}) {
  auto base = gemm_gated_base<T>(weights, gemm_detail::gated_activation<Activation>());
  base.source = gemm_detail::with_header(base.source, activation_header);
  return base.template typed<GemmGatedKernel<T>>(
      [](T* out, const T* a, const T* w, int m, int n, int k) {
        using namespace gemm_detail;
        const GatedProblem p{m, n, k};
        const GemmArea area = gemm_area(out, GemmStride{m} * n, 1, n, n);
        if (overlap(area, gemm_area(a, GemmStride{m} * k, 1, k, k)) ||
            overlap(area, gated_weights_area(w, weights, p)))
          throw UserError("gemm: out overlaps A or W");
        return p;
      });
}

}  // namespace kiln::templates
