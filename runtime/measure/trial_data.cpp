#include "runtime/measure/trial_data.hpp"

#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/measure/verify.hpp"

namespace kiln::runtime {

KernelData make_data(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                     std::uint64_t seed, std::size_t draw) {
  Workload workload(seed, draw);
  kernel.workload(problem, workload);
  check_workload(kernel, workload);
  KernelData data;
  data.trial = std::make_shared<TrialData>();
  data.trial->subject =
      detail::format("kernel {} for {}", kernel.name, kernel.describe_problem(problem));
  data.trial->arguments = std::move(workload.arguments());
  data.trial->tolerance = kernel.tolerance;
  if (draw < kernel.draws.size()) data.trial->weight = kernel.draws[draw];
  data.variables = workload.variables();
  Values values(problem.begin(), problem.end());
  if (kernel.reference)
    data.judge.reference = [&kernel, values](std::span<void* const> args) {
      kernel.reference(values, args);
    };
  if (kernel.check)
    data.judge.check = [&kernel, values](std::span<void* const> got,
                                         std::span<void* const> expected) {
      return kernel.check(values, got, expected);
    };
  return data;
}

std::vector<VariableData> variables_for(const KernelData& data,
                                        std::span<const std::int64_t> config) {
  std::vector<VariableData> variables;
  for (const Workload::Variable& variable : data.variables)
    variables.push_back({variable.name, variable.make(config)});
  return variables;
}

}  // namespace kiln::runtime
