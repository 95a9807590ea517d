// The data of a kernel's trials, made from what its definition says of a problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kiln/definition.hpp"
#include "runtime/measure/trial.hpp"

namespace kiln::runtime {

/// What the program itself says of results. Runs in this process, on the thread of its bench.
struct Judge {
  std::function<void(std::span<void* const> args)> reference;  ///< may be empty
  std::function<std::string(std::span<void* const> got, std::span<void* const> expected)>
      check;  ///< may be empty
};

struct KernelData {
  std::shared_ptr<TrialData> trial;
  std::vector<Workload::Variable> variables;
  Judge judge;
  /// What the reference gave, by argument; empty for inputs. Null: it has not run.
  std::shared_ptr<const std::vector<detail::HostArray>> expected{};
};

/// Refers to the kernel, which must outlive it. @throws UserError when the kernel's `workload` does
/// not fit its signature
KernelData make_data(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                     std::uint64_t seed, std::size_t draw = 0);

/// Runs the reference, if there is one, on a copy of the data. @throws what the reference throws
void compute_expected(KernelData& data);

/// The same data, for a bench to change.
std::vector<KernelData> copies_of(std::span<const KernelData> draws);

/// What the variables hold for one config.
std::vector<VariableData> variables_for(const KernelData& data,
                                        std::span<const std::int64_t> config);

}  // namespace kiln::runtime
