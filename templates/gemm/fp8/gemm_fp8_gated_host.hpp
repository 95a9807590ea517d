// What the host halves of gated GEMMs of 8-bit floats share, whatever leaves them: the scales of
// operands.
#pragma once

#include <string>
#include <vector>

#include "kiln/block_scales.hpp"
#include "kiln/error.hpp"
#include "templates/gemm/fp8/gemm_fp8_gated.hpp"
#include "templates/gemm/gated/gemm_gated_host.hpp"

namespace kiln::templates {

/// What is stored [m][n] before it rounds.
std::vector<float> fp8_gated_values(const float8_e4m3* a, const float8_e4m3* w,
                                    GatedWeights weights, const GatedProblem& p,
                                    float (*activation)(float), GatedScales scales,
                                    const float* scales_a, const float* scales_w);

/// What operands are called in a kernel's name.
std::string fp8_gated_operands(GatedScales scales, Fp8Sums sums);
/// How the device half scales sums, and what the arguments for that are.
void add_types_of_scales(GatedScales scales, std::vector<std::string>& types);
/// These arguments. Sums are about 1.
void add_fp8_scales(GatedScales scales, const GatedProblem& p, Workload& w);

/// Bytes of operands, of their scales and, as `results` says, of what is stored.
template <class T, double (*results)(const GatedProblem&), GatedScales scales>
double fp8_gated_traffic(const GatedProblem& p) {
  const double of_scales = scales == GatedScales::rows ? 1.0 * p.m + 2.0 * p.n
                           : scales == GatedScales::blocks
                               ? 1.0 * scale_blocks(p.k) * (p.m + 2.0 * scale_blocks(p.n))
                               : 0;
  return gated_operand_bytes<T>(p) + sizeof(float) * of_scales + results(p);
}

/// What all of them are: see gated_common.
template <Fp8Sums sums, double (*result_bytes)(const GatedProblem&), bool blocks = false>
kiln::detail::UntypedKernel<Gemm, GatedProblem> fp8_gated_common(const char* file,
                                                                 GatedWeights weights,
                                                                 const HostActivation& activation,
                                                                 GatedScales scales,
                                                                 const std::string& results) {
  using T = Fp8<bfloat16, sums>;
  using Of = GatedScales;
  if ((scales == Of::blocks) != kBlockScaled<T>)
    throw InternalError("gemm: scales of blocks, and sums that have none");
  auto kernel =
      gated_common<T, blocks>(file, weights, activation, results,
                              scales == Of::tensor ? fp8_gated_traffic<T, result_bytes, Of::tensor>
                              : scales == Of::rows ? fp8_gated_traffic<T, result_bytes, Of::rows>
                                                   : fp8_gated_traffic<T, result_bytes, Of::blocks>,
                              fp8_gated_operands(scales, sums));
  add_types_of_scales(scales, kernel.types);
  return kernel;
}

}  // namespace kiln::templates
