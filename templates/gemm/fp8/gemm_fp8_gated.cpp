// Host half of gemm_fp8_gated.hpp.
#include "templates/gemm/fp8/gemm_fp8_gated.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kiln/block_scales.hpp"
#include "templates/gemm/fp8/gemm_fp8_gated_host.hpp"

namespace kiln::templates {

using kiln::detail::UntypedKernel;

namespace {

/// A scaled sum's error is about a thousandth with exact sums, and a hundredth with fast ones; an
/// element's, as many times more as the other sum is large.
template <Fp8Sums sums>
constexpr Tolerance kFp8GatedTolerance =
    sums == Fp8Sums::fast ? Tolerance{.relative = 5e-2, .absolute = 0.2, .norm = 3e-2}
                          : Tolerance{.relative = 1.6e-2, .absolute = 2e-2, .norm = 8e-3};

double bf16_bytes(const GatedProblem& p) { return sizeof(bfloat16) * 1.0 * p.m * p.n; }

/// Elements of A and W are within 1, and as many products as k are added: with such scales sums are
/// about 1, where activations are neither 0 nor their argument.
Uniform scales_for(int k) {
  const double most = 2 / std::pow(std::max(k, 1), 0.25);
  return {most / 2, most};
}

}  // namespace

std::vector<float> fp8_gated_values(const float8_e4m3* a, const float8_e4m3* w,
                                    GatedWeights weights, const GatedProblem& p,
                                    float (*activation)(float), GatedScales scales,
                                    const float* scales_a, const float* scales_w) {
  const bool blocks = scales == GatedScales::blocks;
  const GemmBlockScales of_blocks{scales_a, scales_w};
  const GatedFinish scaled = [=](float sum, const epilogue::Place& at) {
    return scales == GatedScales::rows     ? epilogue::RowScales{}(sum, at, scales_a, scales_w)
           : scales == GatedScales::tensor ? epilogue::TensorScales{}(sum, at, scales_a, scales_w)
                                           : sum;
  };
  return gated_values(a, w, weights, p, activation, scaled, blocks ? &of_blocks : nullptr);
}

std::string fp8_gated_operands(GatedScales scales, Fp8Sums sums) {
  constexpr const char* kNames[] = {"", "_rows", "_block"};
  return std::string("_fp8") + kNames[static_cast<int>(scales)] +
         (sums == Fp8Sums::fast ? "_fast" : "");
}

void add_types_of_scales(GatedScales scales, std::vector<std::string>& types) {
  constexpr const char* kTypes[] = {"TensorScales", "RowScales", "BlockScales"};
  types.push_back(std::string("kiln::epilogue::") + kTypes[static_cast<int>(scales)]);
  for (int array = 0; array < 2; ++array) types.push_back(device_name<const float*>());
}

void add_fp8_scales(GatedScales scales, const GatedProblem& p, Workload& w) {
  const auto m = static_cast<std::size_t>(p.m), n = static_cast<std::size_t>(p.n);
  const auto range = scales_for(p.k);
  switch (scales) {
    case GatedScales::tensor:
      w.input<float>(1, range).input<float>(1, range);
      break;
    case GatedScales::rows:
      w.input<float>(m, range).input<float>(2 * n, range);
      break;
    case GatedScales::blocks: {
      const auto of_k = static_cast<std::size_t>(scale_blocks(p.k));
      const Uniform different{range.low / 4, range.high};
      w.input<float>(Rows{of_k, m, static_cast<std::size_t>(scale_leading(p.m))}, different);
      w.input<float>(2 * static_cast<std::size_t>(scale_blocks(p.n)) * of_k, different);
    }
  }
}

template <Fp8Sums sums>
UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_base(GatedWeights weights,
                                                      const HostActivation& activation,
                                                      GatedScales scales) {
  using T = Fp8<bfloat16, sums>;
  auto kernel = fp8_gated_common<sums, bf16_bytes>("gemm/fp8/gemm_fp8_gated.cuh", weights,
                                                   activation, scales, "");
  kernel.maps.insert(kernel.maps.begin(), gated_result_map<T>());
  kernel.workload = [weights, scales](const GatedProblem& p, Workload& w) {
    w.output<bfloat16>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    add_gated_operands<T>(weights, p, w);
    add_fp8_scales(scales, p, w);
  };
  kernel.computed_by([weights, scales, of = activation.of](
                         bfloat16* out, const float8_e4m3* a, const float8_e4m3* w, int m, int n,
                         int k, const float* scales_a, const float* scales_w) {
    const std::vector<float> values =
        fp8_gated_values(a, w, weights, {m, n, k}, of, scales, scales_a, scales_w);
    std::transform(values.begin(), values.end(), out, [](float value) { return bfloat16(value); });
  });
  kernel.tolerance = kFp8GatedTolerance<sums>;
  return kernel;
}

#define KILN_FP8_GATED(sums)                                                     \
  template UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_base<Fp8Sums::sums>( \
      GatedWeights, const HostActivation&, GatedScales);
KILN_FP8_GATED(exact)
KILN_FP8_GATED(fast)
KILN_FP8_GATED(scaled)
#undef KILN_FP8_GATED

}  // namespace kiln::templates
