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

/// A config of each kind that the GEMM's relatives (gated, grouped) have, too, and `more`.
inline std::vector<kiln::templates::Gemm> each_kind(
    const std::vector<kiln::templates::Gemm>& more) {
  using enum kiln::templates::GemmBody;
  using C = kiln::templates::GemmCluster;
  std::vector<kiln::templates::Gemm> configs{
      {mma, 64, 128, 64, 3, 32, 32, 8, 8},
      {wgmma, 128, 128, 64, 4, 64, 128, 8, 8},
      {pingpong, 128, 128, 64, 1, 128, 64, 8, 8},
      {pingpong, 64, 96, 64, 1, 64, 64, 8, 4, C::two_n},
      {pingpong, 128, 192, 64, 1, 128, 64, 8, 8, C::two_m, 1, true},
      {tma, 128, 256, 64, 1, 64, 64, 8, 8, C::two_m},
      {tma, 256, 128, 64, 1, 128, 64, 8, 4, C::two_n, 1, true},
      {tma, 64, 128, 128, 1, 64, 64, 8, 8, C::none, 2},
      {tma, 64, 16, 64, 1, 64, 64, 8, 8, C::none, 2, false, true},
      {tma, 128, 64, 128, 1, 128, 64, 8, 8, C::none, 1, false, true}};
  configs.insert(configs.end(), more.begin(), more.end());
  return configs;
}

/// Each config must have something that it may compute; without Hopper those that run there.
template <class Kernel, class Problem>
void check_each(const kiln::Runtime& runtime, const Kernel& kernel,
                const std::vector<kiln::templates::Gemm>& configs,
                const std::vector<Problem>& problems) {
  const bool hopper = runtime.device().limits.compute_capability == 90;
  for (const auto& config : configs) {
    if (!hopper && (config.uses_tma() || config.body == kiln::templates::GemmBody::wgmma)) continue;
    INFO(kernel.definition().space.describe(kiln::to_values(config)));
    CHECK(verified(runtime, kernel, {config}, problems) > 0);
  }
}

}  // namespace gpu_test
