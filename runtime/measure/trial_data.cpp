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

void compute_expected(KernelData& data) {
  if (!data.judge.reference) return;
  // An in/out array must stay as it is before a launch, and a reference may use inputs as scratch.
  std::vector<Workload::Argument> arguments = data.trial->arguments;
  std::vector<void*> args;
  for (Workload::Argument& argument : arguments) args.push_back(argument.bytes.data());
  data.judge.reference(args);
  std::vector<detail::HostArray> expected;
  for (Workload::Argument& argument : arguments) {
    const bool written = argument.pointer && argument.direction != Direction::in;
    expected.push_back(written ? std::move(argument.bytes) : detail::HostArray());
  }
  data.expected = std::make_shared<const std::vector<detail::HostArray>>(std::move(expected));
}

std::vector<KernelData> copies_of(std::span<const KernelData> draws) {
  std::vector<KernelData> copies(draws.begin(), draws.end());
  for (KernelData& data : copies) data.trial = std::make_shared<TrialData>(*data.trial);
  return copies;
}

std::vector<VariableData> variables_for(const KernelData& data,
                                        std::span<const std::int64_t> config) {
  std::vector<VariableData> variables;
  for (const Workload::Variable& variable : data.variables)
    variables.push_back({variable.name, variable.make(config)});
  return variables;
}

}  // namespace kiln::runtime
