// The typed kernels of gemm_gated.hpp for C++ programs.
#pragma once

#include <algorithm>
#include <vector>

#include "../gemm_kernel.hpp"
#include "gemm_gated.hpp"

namespace kiln::templates {

/// What a gated GEMM is without its signature and its activation, for which registers are left with
/// `few_sums`. T is float, kiln::float16 or kiln::bfloat16.
template <class T>
Kernel<Gemm, GatedProblem, void()> gemm_gated_base(GatedWeights weights, bool few_sums);

/// Arguments: out, A, W, m, n, k.
template <class T>
using GemmGatedKernel = Kernel<Gemm, GatedProblem, void(T*, const T*, const T*, int, int, int)>;

namespace gemm_detail {

/// Calls store(place in out, value) for each element, before it rounds.
template <class T, class Activation, GatedWeights weights, class Store>
void gated_values(const T* a, const T* w, const GatedProblem& problem, Store store) {
  const auto [m, n, k] = problem;
  if (n <= 0) return;
  // The product in the order that W has, whose columns are found for each of out's.
  constexpr bool kStacked = weights == GatedWeights::stacked;
  GemmShape<true> p = gated_shape(m, n, k).general();
  if (kStacked) p.n = 2 * n;
  const auto width = static_cast<std::size_t>(p.n);
  std::vector<float> product(static_cast<std::size_t>(m) * width);
  gemm_sums<T>(
      GemmTranspose::nt, p, a, w, [&](const float* sums, int, int row, int column, int count) {
        std::copy_n(sums, count, product.data() + static_cast<std::size_t>(row) * width + column);
      });
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      const float* const row = product.data() + static_cast<std::size_t>(i) * width;
      const int gate = kStacked ? j : j / kGatedGroup * 2 * kGatedGroup + j % kGatedGroup;
      store(GemmStride{i} * n + j,
            Activation{}(row[gate], epilogue::Place{}) * row[gate + (kStacked ? n : kGatedGroup)]);
    }
}

template <class Activation>
inline constexpr bool kTakesFewRegisters =
    std::is_same_v<Activation, epilogue::Silu> || std::is_same_v<Activation, epilogue::GeluTanh> ||
    std::is_same_v<Activation, epilogue::Relu>;

/// What the command calls a kernel; of an activation of your own the family's name. `results`: what
/// becomes of them.
template <class Activation, GatedWeights weights>
std::string gated_name(const char* results = "") {
  using std::is_same_v;
  const char* const of_activation = is_same_v<Activation, epilogue::Silu>       ? "_silu"
                                    : is_same_v<Activation, epilogue::Gelu>     ? "_gelu"
                                    : is_same_v<Activation, epilogue::GeluTanh> ? "_gelu_tanh"
                                    : is_same_v<Activation, epilogue::Relu>     ? "_relu"
                                                                                : "";
  return std::string("gemm_gated") + of_activation + results +
         (weights == GatedWeights::stacked ? "" : "_interleaved");
}

template <class T>
GemmArea gated_weights_area(const T* w, GatedWeights weights, const GatedProblem& p) {
  const GemmStride rows = weights == GatedWeights::stacked ? 2ll * p.n : gated_rows(p.n);
  return gemm_area(w, rows * p.k, 1, p.k, p.k);
}

template <class T, class Activation, GatedWeights weights>
struct TypedGatedGemm {
  static_assert(std::is_same_v<epilogue::detail::parameters_of<Activation>, Parameters<>>,
                "an activation has no parameters");
  using Type = GemmGatedKernel<T>;
  static constexpr GemmTranspose kOp = GemmTranspose::nt;

  static GatedProblem problem(T* out, const T* a, const T* w, int m, int n, int k) {
    const GatedProblem p{m, n, k};
    const GemmArea area = gemm_area(out, GemmStride{m} * n, 1, n, n);
    if (overlap(area, gemm_area(a, GemmStride{m} * k, 1, k, k)) ||
        overlap(area, gated_weights_area(w, weights, p)))
      throw UserError("gemm: out overlaps A or W");
    return p;
  }

  static void reference(T* out, const T* a, const T* w, int m, int n, int k) {
    gated_values<T, Activation, weights>(a, w, {m, n, k},
                                         [&](GemmStride at, float value) { out[at] = T(value); });
  }

  static Kernel<Gemm, GatedProblem, void()> base() {
    auto base = gemm_gated_base<T>(weights, !kTakesFewRegisters<Activation>);
    base.name = gated_name<Activation, weights>();
    base.types.push_back(epilogue_name<Activation>());
    return base;
  }
  static GemmShape<true> shape(const GatedProblem& p) { return gemm_shape<kOp>(p).general(); }

  static Type kernel(const std::filesystem::path& header) {
    return with_signature<Type>(base(), header, shape, problem, reference);
  }
  static KernelDefinition definition() { return defined(base(), shape, reference); }
};

}  // namespace gemm_detail

/// T is float, kiln::float16 or kiln::bfloat16; Activation is Silu, Gelu, GeluTanh or Relu of
/// kiln/epilogue.hpp, or a struct like those in a header of your own.
template <class T, class Activation, GatedWeights weights = GatedWeights::stacked>
typename gemm_detail::TypedGatedGemm<T, Activation, weights>::Type gemm_gated_kernel(
    const std::filesystem::path& activation_header = {}) {
  return gemm_detail::TypedGatedGemm<T, Activation, weights>::kernel(activation_header);
}

}  // namespace kiln::templates
