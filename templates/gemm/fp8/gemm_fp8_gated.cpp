// Host half of gemm_fp8_gated.hpp.
#include "templates/gemm/fp8/gemm_fp8_gated.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "templates/gemm/gated/gemm_gated_host.hpp"

namespace kiln::templates {

using kiln::detail::UntypedKernel;

namespace {

/// A scaled sum's error is about a thousandth with exact sums, and a hundredth with fast ones; an
/// element's, as many times more as the other sum is large.
template <Fp8Sums sums>
constexpr Tolerance kFp8GatedTolerance =
    sums == Fp8Sums::fast ? Tolerance{.relative = 5e-2, .absolute = 0.2}
                          : Tolerance{.relative = 1.6e-2, .absolute = 2e-2};

/// Elements of A and W are within 1, and as many products as k are added: with such scales sums are
/// about 1, where activations are neither 0 nor their argument.
Uniform scales_for(int k) {
  const double most = 2 / std::pow(std::max(k, 1), 0.25);
  return {most / 2, most};
}

template <class T>
double fp8_traffic(const GatedProblem& p) {
  return gated_operand_bytes<T>(p) + sizeof(GemmResult<T>) * 1.0 * p.m * p.n;
}
template <class T>
double fp8_rows_traffic(const GatedProblem& p) {
  return fp8_traffic<T>(p) + sizeof(float) * (1.0 * p.m + 2.0 * p.n);
}

std::string name_of(GatedScales scales, Fp8Sums sums) {
  return std::string("_fp8") + (scales == GatedScales::rows ? "_rows" : "") +
         (sums == Fp8Sums::fast ? "_fast" : "");
}

}  // namespace

template <Fp8Sums sums>
UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_base(GatedWeights weights,
                                                      const HostActivation& activation,
                                                      GatedScales scales) {
  using T = Fp8<bfloat16, sums>;
  const bool rows = scales == GatedScales::rows;
  auto kernel = gated_common<T>("gemm/fp8/gemm_fp8_gated.cuh", weights, activation, "",
                                rows ? fp8_rows_traffic<T> : fp8_traffic<T>, name_of(scales, sums));
  kernel.types.push_back(std::string("kiln::epilogue::") + (rows ? "RowScales" : "TensorScales"));
  for (int array = 0; array < 2; ++array) kernel.types.push_back(device_name<const float*>());
  kernel.maps.insert(kernel.maps.begin(), gated_result_map<T>());
  kernel.workload = [weights, rows](const GatedProblem& p, Workload& w) {
    const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n);
    w.output<bfloat16>(m * n);
    add_gated_operands<T>(weights, p, w);
    w.input<float>(rows ? m : 1, scales_for(p.k)).input<float>(rows ? 2 * n : 1, scales_for(p.k));
  };
  kernel.computed_by([weights, rows, of = activation.of](
                         bfloat16* out, const float8_e4m3* a, const float8_e4m3* w, int m, int n,
                         int k, const float* scales_a, const float* scales_w) {
    const GatedFinish scaled = [=](float sum, const epilogue::Place& at) {
      return rows ? epilogue::RowScales{}(sum, at, scales_a, scales_w)
                  : epilogue::TensorScales{}(sum, at, scales_a, scales_w);
    };
    const std::vector<float> values = gated_values(a, w, weights, {m, n, k}, of, scaled);
    std::transform(values.begin(), values.end(), out, [](float value) { return bfloat16(value); });
  });
  kernel.tolerance = kFp8GatedTolerance<sums>;
  return kernel;
}

template UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_base<Fp8Sums::exact>(
    GatedWeights, const HostActivation&, GatedScales);
template UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_base<Fp8Sums::fast>(GatedWeights,
                                                                              const HostActivation&,
                                                                              GatedScales);

}  // namespace kiln::templates
