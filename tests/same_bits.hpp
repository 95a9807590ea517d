// Whether configs that share a name of KernelDefinition::numerics compute the same bits.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "kiln/definition.hpp"
#include "kiln/runtime.hpp"

namespace kiln::test {

/// What tuning a kernel among the configs with its untuned config's bits has found.
struct SameBits {
  std::size_t compared = 0;  ///< configs that ran, the untuned one included
  std::string different;     ///< those with other bits, and why else one did not run
};

/// Tries up to `most` random configs. The kernel needs a workload.
inline SameBits same_bits(const Runtime& runtime, KernelDefinition kernel, const Values& problem,
                          std::size_t most) {
  // Without either, candidates are compared with the default's output.
  kernel.reference = nullptr;
  kernel.device_reference.reset();
  kernel.check = nullptr;
  kernel.tolerance = {.relative = 0, .absolute = 0};
  kernel.deterministic = true;
  TuneOptions tuning;
  tuning.strategy = "random";
  tuning.max_evaluations = most;
  const TuneResult result = runtime.tuned(kernel).tune(problem, tuning);
  SameBits found;
  for (const Candidate& c : result.candidates)
    if (c.status == CandidateStatus::measured)
      ++found.compared;
    else if (c.status != CandidateStatus::exceeds_limits)
      found.different += result.describe(c) + ": " + c.reason + "; ";
  return found;
}

}  // namespace kiln::test
