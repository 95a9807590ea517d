// Builds of many configs at once, for tests and benchmarks.
#pragma once

#include <span>
#include <vector>

#include "runtime/build/builder.hpp"
#include "runtime/support/parallel.hpp"

namespace kiln::test {

/// One Build per config, in order, on as many threads as the builder has.
inline std::vector<runtime::Build> build_all(runtime::Builder& builder,
                                             const KernelDefinition& kernel,
                                             std::span<const Values> configs,
                                             const Target& target) {
  std::vector<runtime::Build> builds(configs.size());
  runtime::for_each_index(
      builder.threads(), configs.size(), {},
      [&](std::size_t i) { builds[i] = builder.build(kernel, configs[i], target); }, {});
  return builds;
}

}  // namespace kiln::test
