#include "runtime/serve/verification.hpp"

#include <algorithm>
#include <variant>

#include "kiln/detail/format.hpp"
#include "runtime/device/module_data.hpp"
#include "runtime/measure/device_workload.hpp"
#include "runtime/measure/trial_kernel.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;

namespace {

Verification verify_draw(detail::Engine& engine, KernelLoader& loader, const Launchable& ready,
                         std::span<const std::int64_t> problem, std::uint64_t seed,
                         std::size_t draw) {
  const KernelDefinition& kernel = loader.definition();
  const auto& device = engine.device();
  DeviceWorkload workload(kernel, problem, device, seed, draw);
  const Stream stream = device->tuning_stream();
  const detail::LaunchPlan plan =
      detail::plan(kernel, ready.config, problem, device->info().limits);
  std::shared_ptr<const Module> module = KernelLoader::loaded(ready);
  std::shared_ptr<ModuleData> data;
  if (workload.has_variables()) {
    // The program's own data stay: a module apart is filled for this.
    const auto own = loader.load_fresh(problem, ready.config);
    if (const auto* missing = std::get_if<Missing>(&own)) throw MissingError(*missing);
    module = KernelLoader::loaded(std::get<Launchable>(own));
    data = workload.module_data(module, ready.config);
  }
  TrialKernel whole(device, module, plan, kernel.arguments.size());
  const auto verdict = workload.verify(stream, [&] {
    if (data) data->fill();
    whole.launch_checked(stream, workload.arguments());
  });
  return {verdict.right, verdict.max_error, verdict.why, verdict.norm_error};
}

}  // namespace

Verification verify_launch(detail::Engine& engine, KernelLoader& loader, const Launchable& ready,
                           std::span<const std::int64_t> problem, std::uint64_t seed) {
  const KernelDefinition& kernel = loader.definition();
  if (!ready.loaded)  // mode collect launches nothing in its place
    throw UserError(format("kernel {} for {}: its binary is missing, so it cannot be verified",
                           kernel.name, kernel.describe_problem(problem)));
  Verification verified{true, 0, {}};
  const std::size_t draws = std::max<std::size_t>(1, kernel.draws.size());
  for (std::size_t draw = 0; verified.right && draw < draws; ++draw) {
    const double worst = verified.max_error, norm = verified.norm_error;
    verified = verify_draw(engine, loader, ready, problem, seed, draw);
    verified.max_error = std::max(verified.max_error, worst);
    verified.norm_error = std::max(verified.norm_error, norm);
  }
  return verified;
}

}  // namespace kiln::runtime
