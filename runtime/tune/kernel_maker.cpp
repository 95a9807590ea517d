#include "runtime/tune/kernel_maker.hpp"

#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/resource_check.hpp"

namespace kiln::runtime {

using kiln::detail::format;

KernelMaker::KernelMaker(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                         std::shared_ptr<Device> device, Builder& builder, std::uint64_t seed)
    : kernel_(kernel),
      problem_(problem.begin(), problem.end()),
      device_(std::move(device)),
      builder_(builder),
      seed_(seed) {}

void KernelMaker::check() const {
  if (!kernel_.workload)
    throw UserError(
        format("kernel {}: `workload` is missing, so it cannot be tuned", kernel_.name));
  const Values& config = kernel_.space.default_config(device_->info().target.kind);
  if (empty(plan(config).launch))
    throw UserError(format("kernel {} for {}: the grid is empty, so there is nothing to tune",
                           kernel_.name, kernel_.describe_problem(problem_)));
}

detail::LaunchPlan KernelMaker::plan(const Values& config) const {
  return detail::plan(kernel_, config, problem_, device_->info().limits);
}

Build KernelMaker::build(const Values& config) {
  return builder_.build(kernel_, config, device_->info().target);
}

std::string KernelMaker::try_to_load(const Values& config, const Build& build) {
  try {
    device_->load(*build.binary(), plan(config).launch);
  } catch (const DeviceLost&) {
    throw;
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TrialBench& KernelMaker::bench() {
  if (!bench_) {
    workload_ = std::make_unique<DeviceWorkload>(kernel_, problem_, device_, seed_);
    bench_.emplace(device_, *workload_);
  }
  return *bench_;
}

void KernelMaker::drop_bench() noexcept {
  bench_.reset();
  workload_.reset();
}

Trial KernelMaker::trial(const Values& config, const Build& build) {
  if (const auto* failure = std::get_if<CompileFailure>(&build.outcome))
    throw CompileError(*failure);
  if (const auto* missing = std::get_if<Missing>(&build.outcome)) throw MissingError(*missing);
  const auto* binary = std::get_if<std::shared_ptr<const codegen::Binary>>(&build.outcome);
  if (!binary)
    throw InternalError(format("kernel {} with {}: a trial needs a binary, and nothing was built",
                               kernel_.name, kernel_.space.describe(config)));
  bench();
  detail::LaunchPlan planned = plan(config);
  return {.code = *binary,
          .launch = planned.launch,
          .maps = std::move(planned.maps),
          .variables = variables_for(workload_->data(), config),
          .data = workload_->data().trial};
}

std::shared_ptr<Module> KernelMaker::module_of(const Rig& rig) {
  return bench_ ? bench_->module_of(rig) : nullptr;
}

}  // namespace kiln::runtime
