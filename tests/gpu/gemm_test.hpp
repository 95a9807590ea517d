// What tests of the shipped GEMMs on a GPU share.
#pragma once

#include <future>
#include <string>
#include <utility>
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

/// Verifies what a config may compute. Returns how many did. Configs are compiled side by side:
/// one after the other they would take minutes.
template <class Kernel, class Problem>
int verified(const kiln::Runtime& runtime, const Kernel& kernel,
             const std::vector<kiln::templates::Gemm>& configs,
             const std::vector<Problem>& problems) {
  const auto tuned = runtime.tuned(kernel);
  const auto definition = kernel.definition();
  using Verified = std::vector<std::pair<std::string, kiln::Verification>>;
  const auto verify = [&](const kiln::templates::Gemm& config) {
    Verified of_config;
    const auto values = kiln::to_values(config);
    for (const Problem& p : problems) {
      const auto problem = kiln::to_values(p);
      if (definition.space.violated(values, problem, runtime.device().limits)) continue;
      of_config.emplace_back(kernel.name + " with " + definition.space.describe(values) + " for " +
                                 definition.describe_problem(problem),
                             tuned.with_config(config).verify(p));
    }
    return of_config;
  };
  std::vector<std::future<Verified>> all;
  for (const auto& config : configs) all.push_back(std::async(std::launch::async, verify, config));
  int count = 0;
  for (auto& of_config : all)
    for (const auto& [what, verification] : of_config.get()) {
      ++count;
      INFO(what << ": " << verification.why);
      CHECK(verification.right);
    }
  return count;
}

}  // namespace gpu_test
