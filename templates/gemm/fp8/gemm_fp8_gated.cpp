// Host half of gemm_fp8_gated.hpp.
#include "templates/gemm/fp8/gemm_fp8_gated.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "kiln/block_scales.hpp"
#include "kiln/error.hpp"
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
double fp8_blocks_traffic(const GatedProblem& p) {
  return fp8_traffic<T>(p) +
         sizeof(float) * 1.0 * scale_blocks(p.k) * (p.m + 2.0 * scale_blocks(p.n));
}
template <class T>
double fp8_rows_traffic(const GatedProblem& p) {
  return fp8_traffic<T>(p) + sizeof(float) * (1.0 * p.m + 2.0 * p.n);
}

std::string name_of(GatedScales scales, Fp8Sums sums) {
  constexpr const char* kNames[] = {"", "_rows", "_block"};
  return std::string("_fp8") + kNames[static_cast<int>(scales)] +
         (sums == Fp8Sums::fast ? "_fast" : "");
}
std::string type_of(GatedScales scales) {
  constexpr const char* kTypes[] = {"TensorScales", "RowScales", "BlockScales"};
  return std::string("kiln::epilogue::") + kTypes[static_cast<int>(scales)];
}

void add_scales(GatedScales scales, const GatedProblem& p, Workload& w) {
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

}  // namespace

template <Fp8Sums sums>
UntypedKernel<Gemm, GatedProblem> gemm_fp8_gated_base(GatedWeights weights,
                                                      const HostActivation& activation,
                                                      GatedScales scales) {
  using T = Fp8<bfloat16, sums>;
  if ((scales == GatedScales::blocks) != kBlockScaled<T>)
    throw InternalError("gemm: scales of blocks, and sums that have none");
  auto kernel = gated_common<T>("gemm/fp8/gemm_fp8_gated.cuh", weights, activation, "",
                                scales == GatedScales::tensor ? fp8_traffic<T>
                                : scales == GatedScales::rows ? fp8_rows_traffic<T>
                                                              : fp8_blocks_traffic<T>,
                                name_of(scales, sums));
  kernel.types.push_back(type_of(scales));
  for (int array = 0; array < 2; ++array) kernel.types.push_back(device_name<const float*>());
  kernel.maps.insert(kernel.maps.begin(), gated_result_map<T>());
  kernel.workload = [weights, scales](const GatedProblem& p, Workload& w) {
    w.output<bfloat16>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    add_gated_operands<T>(weights, p, w);
    add_scales(scales, p, w);
  };
  kernel.computed_by([weights, scales, of = activation.of](
                         bfloat16* out, const float8_e4m3* a, const float8_e4m3* w, int m, int n,
                         int k, const float* scales_a, const float* scales_w) {
    const GemmBlockScales of_blocks{scales_a, scales_w};
    const GatedFinish scaled = [=](float sum, const epilogue::Place& at) {
      return scales == GatedScales::rows     ? epilogue::RowScales{}(sum, at, scales_a, scales_w)
             : scales == GatedScales::tensor ? epilogue::TensorScales{}(sum, at, scales_a, scales_w)
                                             : sum;
    };
    const std::vector<float> values =
        gated_values(a, w, weights, {m, n, k}, of, scaled, kBlockScaled<T> ? &of_blocks : nullptr);
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
