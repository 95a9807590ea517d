// Host half of gemm_gated_fp8.hpp.
#include "templates/gemm/gated/gemm_gated_fp8.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "kiln/paths.hpp"
#include "templates/gemm/gated/gemm_gated_host.hpp"
#include "templates/rows/fp8_host.hpp"

namespace kiln::templates {

namespace {

/// Sums of k products in another order, whose errors count as often as the other sum is large:
/// small elements differ by a part of the largest one, not of themselves.
constexpr NeighboursAllowed kGatedNeighbours{
    .part = 2e-3, .of_scale = 2e-4, .least_scale = 1.0 / 8, .near_zero = 1.0 / 64};

template <class T>
double tensor_traffic(const GatedProblem& p) {
  return gated_operand_bytes<T>(p) + 1.0 * p.m * p.n;
}
template <class T>
double blocks_traffic(const GatedProblem& p) {
  return tensor_traffic<T>(p) + sizeof(float) * 1.0 * p.m * scale_blocks(p.n);
}

/// Products of sums whose variance grows with k, so that few are beyond the largest e4m3.
Uniform scale_for(int k) {
  const double most = std::max(k, 1) / 256.0;
  return {most / 2, most};
}

/// A function of a row's place: its elements.
auto rows_of_values(const std::vector<float>& v, int n) {
  return [&v, n](std::ptrdiff_t row) {
    return std::span(v).subspan(static_cast<std::size_t>(row) * static_cast<std::size_t>(n),
                                static_cast<std::size_t>(n));
  };
}

template <class T, GatedWeights weights>
GemmGatedFp8TensorKernel<T> gated_tensor(bool few_sums, const GatedValues<T>& values) {
  using Signature = void(float8_e4m3*, const T*, const T*, int, int, int, const float*);
  auto kernel = gated_base<T, weights, Signature>(
      "gemm/gated/gemm_gated_fp8.cuh", "gemm_gated_fp8_tensor", few_sums, tensor_traffic<T>);
  kernel.workload = [](const GatedProblem& p, Workload& w) {
    w.output<float8_e4m3>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    add_gated_operands<T, weights>(p, w);
    w.input<float>(1, scale_for(p.k));
  };
  kernel.reference = [values](float8_e4m3* q, const T* a, const T* w, int m, int n, int k,
                              const float* scale) {
    const std::vector<float> v = values(a, w, {m, n, k});
    quantize_by_scale(q, *scale, m, n, rows_of_values(v, n));
  };
  kernel.check = [](const GatedProblem& p, const auto& got, const auto& expected) {
    const float* const scale = std::get<6>(expected);
    return wrong_fp8({p.m, p.n}, std::get<0>(got), scale, std::get<0>(expected), scale,
                     kGatedNeighbours, [](std::ptrdiff_t, int) { return 0; });
  };
  return kernel;
}

template <class T, GatedWeights weights>
GemmGatedFp8BlocksKernel<T> gated_blocks(bool few_sums, const GatedValues<T>& values) {
  using Signature = void(float8_e4m3*, const T*, const T*, int, int, int, float*);
  auto kernel = gated_base<T, weights, Signature, true>(
      "gemm/gated/gemm_gated_fp8.cuh", "gemm_gated_fp8_blocks", few_sums, blocks_traffic<T>);
  kernel.workload = [](const GatedProblem& p, Workload& w) {
    w.output<float8_e4m3>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    add_gated_operands<T, weights>(p, w);
    w.output<float>(Rows{.rows = static_cast<std::size_t>(scale_blocks(p.n)),
                         .columns = static_cast<std::size_t>(p.m),
                         .leading = static_cast<std::size_t>(scale_leading(p.m))});
  };
  kernel.reference = [values](float8_e4m3* q, const T* a, const T* w, int m, int n, int k,
                              float* scales) {
    const std::vector<float> v = values(a, w, {m, n, k});
    quantize_by_blocks(q, scales, m, n, rows_of_values(v, n));
  };
  kernel.check = [](const GatedProblem& p, const auto& got, const auto& expected) {
    return wrong_fp8({p.m, p.n}, std::get<0>(got), std::get<6>(got), std::get<0>(expected),
                     std::get<6>(expected), kGatedNeighbours,
                     [leading = scale_leading(p.m)](std::ptrdiff_t r, int h) {
                       return h / kScaleBlock * leading + r;
                     });
  };
  return kernel;
}

}  // namespace

template <class T>
GemmGatedFp8TensorKernel<T> gemm_gated_fp8_tensor_base(GatedWeights weights, bool few_sums,
                                                       const GatedValues<T>& values) {
  return weights == GatedWeights::stacked
             ? gated_tensor<T, GatedWeights::stacked>(few_sums, values)
             : gated_tensor<T, GatedWeights::interleaved>(few_sums, values);
}

template <class T>
GemmGatedFp8BlocksKernel<T> gemm_gated_fp8_blocks_base(GatedWeights weights, bool few_sums,
                                                       const GatedValues<T>& values) {
  return weights == GatedWeights::stacked
             ? gated_blocks<T, GatedWeights::stacked>(few_sums, values)
             : gated_blocks<T, GatedWeights::interleaved>(few_sums, values);
}

#define KILN_GATED_FP8(T)                                                                    \
  template GemmGatedFp8TensorKernel<T> gemm_gated_fp8_tensor_base<T>(GatedWeights, bool,     \
                                                                     const GatedValues<T>&); \
  template GemmGatedFp8BlocksKernel<T> gemm_gated_fp8_blocks_base<T>(GatedWeights, bool,     \
                                                                     const GatedValues<T>&);
KILN_GATED_FP8(float)
KILN_GATED_FP8(float16)
KILN_GATED_FP8(bfloat16)
#undef KILN_GATED_FP8

}  // namespace kiln::templates
