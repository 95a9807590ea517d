// What tests of the shipped GEMMs on a GPU share.
#pragma once

#include <vector>

#include "kiln/kernels/gemm.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"

namespace gpu_test {

inline kiln::Runtime untuned_runtime() {
  kiln::RuntimeOptions options;
  options.device = "cuda:0";
  options.store.disk = false;
  options.mode = kiln::Mode::untuned;
  return kiln::Runtime(options);
}

/// Verifies what a config may compute. Returns how many did.
template <class Kernel, class Problem>
int verified(const kiln::Runtime& runtime, const Kernel& kernel,
             const std::vector<kiln::templates::Gemm>& configs,
             const std::vector<Problem>& problems) {
  int count = 0;
  const auto tuned = runtime.tuned(kernel);
  for (const auto& config : configs)
    for (const Problem& p : problems) {
      const auto definition = kernel.definition();
      const auto values = kiln::to_values(config);
      const auto problem = kiln::to_values(p);
      if (definition.space.violated(values, problem, runtime.device().limits)) continue;
      ++count;
      const kiln::Verification v = tuned.with_config(config).verify(p);
      INFO(kernel.name << " with " << definition.space.describe(values) << " for "
                       << definition.describe_problem(problem) << ": " << v.why);
      CHECK(v.right);
    }
  return count;
}

}  // namespace gpu_test
