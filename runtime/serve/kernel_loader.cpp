#include "runtime/serve/kernel_loader.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/each_entry.hpp"
#include "runtime/device/entry_arguments.hpp"
#include "runtime/device/loaded_modules.hpp"
#include "runtime/device/module_data.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/problem_arguments.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;

namespace {

const Device& device_of(const Launchable& ready) {
  return *static_cast<const Device*>(ready.device);
}
const Module& module_of(const Launchable& ready) {
  return *static_cast<const Module*>(ready.loaded);
}

KernelLoader& loader_of(const Launchable& ready) {
  return *static_cast<KernelLoader*>(ready.loader);
}

[[noreturn]] void refuse(const KernelDefinition& kernel, std::span<const std::int64_t> config,
                         std::span<const std::int64_t> problem, const std::string& why) {
  throw UserError(format("kernel {} with {} for {}: {}", kernel.name, kernel.space.describe(config),
                         kernel.describe_problem(problem), why));
}

/// Whether a grid whose blocks run at the same time fits is asked for each exact problem: the
/// config was loaded for another one of its bucket.
void check_fits(const Launchable& ready, const Launch& launch,
                std::span<const std::int64_t> problem) {
  if (!launch.cooperative) [[likely]]
    return;
  const std::string why =
      resource_obstacle(module_of(ready).resources(), launch, device_of(ready).info().limits);
  if (!why.empty()) refuse(loader_of(ready).definition(), ready.config, problem, why);
}

void start(const Launchable& ready, const Launch& launch, std::span<const std::int64_t> problem,
           Stream stream, void** args) {
  check_fits(ready, launch, problem);
  device_of(ready).launch(module_of(ready), launch, stream, args);
}

/// `index`: among the steps of the config.
void check_step(const Launchable& ready, std::span<const std::int64_t> problem,
                const KernelStep& step, std::size_t index, const Launch& launch) {
  if (empty(launch)) return;
  const std::string why = loaded_obstacle(module_of(ready).step(index).resources(), launch,
                                          device_of(ready).info().limits);
  if (!why.empty())
    refuse(loader_of(ready).definition(), ready.config, problem, step_obstacle(step.entry, why));
}

/// Calls `use` with the launches of the config's steps. All are planned and checked before, so that
/// nothing is on the stream when one of them is refused. Allocates nothing for a few steps.
template <class F>
void with_steps(const Launchable& ready, std::span<const std::int64_t> problem, const F& use) {
  const std::vector<KernelStep>& rules = loader_of(ready).definition().steps;
  const auto use_planned = [&](std::span<Launch> launches) {
    std::size_t count = 0;
    for (const KernelStep& step : rules)
      if (step.applies(ready.config)) {
        Launch& launch = launches[count];
        launch = step.launch(ready.config, problem, device_of(ready).info().limits);
        check_step(ready, problem, step, count++, launch);
      }
    use(std::span<const Launch>(launches.first(count)));
  };
  if (std::array<Launch, 8> few; rules.size() <= few.size()) {
    use_planned(few);
  } else {
    std::vector<Launch> many(rules.size());
    use_planned(many);
  }
}

/// Puts the entry and the steps of one call on the stream.
void launch_whole(const Launchable& ready, const EntryArguments& arguments,
                  const std::optional<WorkspaceSize>& size, const Launch& own,
                  std::span<const Launch> steps, Stream stream, void** args) {
  Workspace workspace{};
  arguments.with(args, size ? &workspace : nullptr, [&](void** entry_args) {
    Workspaces::Turn turn = loader_of(ready).turn(stream, size.value_or(WorkspaceSize{}));
    workspace = turn.workspace();
    try {
      each_entry(module_of(ready), own, steps, [&](const Module& entry, const Launch& launch) {
        device_of(ready).launch(entry, launch, stream, entry_args);
      });
    } catch (...) {
      turn.failed();
      throw;
    }
  });
}

/// What a problem has of its kernel: problems may share the module.
struct ProblemKernel {
  std::shared_ptr<const Module> kernel;
};
struct ProblemKernelWithMaps : ProblemKernel {
  ProblemArguments known;
};

/// Calls `use` with what the entries take for this problem.
template <class F>
void with_arguments(const Launchable& ready, std::span<const std::int64_t> problem, const F& use) {
  KernelLoader& loader = loader_of(ready);
  // Without maps there is nothing to keep.
  if (!ready.known) return use(loader.entry_arguments(ready, problem));
  auto& known = *static_cast<ProblemArguments*>(ready.known);
  detail::ReadSection section;
  if (const EntryArguments* const found = known.find(problem, section)) return use(*found);
  use(*known.keep(problem, loader.entry_arguments(ready, problem)));
}

/// Plans its workspace and steps for this launch alone; a Bound keeps what it has found out.
void start_whole(const Launchable& ready, const Launch& launch,
                 std::span<const std::int64_t> problem, Stream stream, void** args) {
  check_fits(ready, launch, problem);
  const auto size = detail::planned_workspace(loader_of(ready).definition(), ready.config, problem,
                                              device_of(ready).info().limits);
  with_arguments(ready, problem, [&](const EntryArguments& arguments) {
    with_steps(ready, problem, [&](std::span<const Launch> steps) {
      launch_whole(ready, arguments, size, launch, steps, stream, args);
    });
  });
}

class BoundWhole final : public detail::BoundLaunch {
 public:
  BoundWhole(const Launchable& ready, EntryArguments arguments,
             std::optional<WorkspaceSize> workspace, std::vector<Launch> steps)
      : arguments_(std::move(arguments)),
        ready_(ready),
        workspace_(workspace),
        steps_(std::move(steps)) {}

  void operator()(const Launch& launch, Stream stream, void** args) const override {
    if (!empty(launch)) launch_whole(ready_, arguments_, workspace_, launch, steps_, stream, args);
  }

 private:
  const EntryArguments arguments_;
  const Launchable ready_;
  const std::optional<WorkspaceSize> workspace_;
  const std::vector<Launch> steps_;
};

/// @pre `launch` is not empty
std::shared_ptr<const detail::BoundLaunch> bound_whole(const Launchable& ready,
                                                       const Launch& launch,
                                                       std::span<const std::int64_t> problem) {
  check_fits(ready, launch, problem);
  EntryArguments arguments = loader_of(ready).entry_arguments(ready, problem);
  const auto workspace = detail::planned_workspace(loader_of(ready).definition(), ready.config,
                                                   problem, device_of(ready).info().limits);
  std::vector<Launch> steps;
  with_steps(ready, problem, [&](std::span<const Launch> planned) {
    steps.assign(planned.begin(), planned.end());
  });
  // Most configs have maps alone, and their launch is little more than the driver's own.
  if (steps.empty() && !workspace)
    return device_of(ready).fixed(module_of(ready), launch, std::move(arguments));
  return std::make_shared<const BoundWhole>(ready, std::move(arguments), workspace,
                                            std::move(steps));
}

/// A launch of what is in use while something better is looked for. Notes captured launches.
class BoundProvisional final : public detail::BoundLaunch {
 public:
  BoundProvisional(const Launchable& ready, const Launch& launch,
                   std::span<const std::int64_t> problem)
      : ready_(ready),
        problem_(problem.begin(), problem.end()),
        whole_(bound_whole(ready, launch, problem)) {}

  void operator()(const Launch& launch, Stream stream, void** args) const override {
    if (device_of(ready_).capturing(stream))
      ready_.launch(launch, problem_, stream, args);
    else
      (*whole_)(launch, stream, args);
  }

 private:
  const Launchable ready_;
  const Values problem_;
  const std::shared_ptr<const detail::BoundLaunch> whole_;
};

bool has_maps(const KernelDefinition& kernel, std::span<const std::int64_t> config) {
  return std::ranges::any_of(kernel.maps,
                             [&](const MapRule& rule) { return rule.applies(config); });
}

/// Whether launches of a config are more than its entry with the caller's arguments.
bool is_whole(const KernelDefinition& kernel, std::span<const std::int64_t> config) {
  return kernel.workspace.applies(config) || has_maps(kernel, config) ||
         std::ranges::any_of(kernel.steps,
                             [&](const KernelStep& step) { return step.applies(config); });
}

}  // namespace

std::variant<KernelLoader::Loadable, Missing> KernelLoader::loadable(
    std::span<const std::int64_t> problem, std::span<const std::int64_t> config,
    Builder::Access access) {
  const Device& device = *engine_->device();
  const DeviceLimits& limits = device.info().limits;
  detail::LaunchPlan plan = detail::plan(definition_, config, problem, limits);
  const std::string impossible = plan.obstacle(limits);
  if (!impossible.empty()) refuse(definition_, config, problem, impossible);
  std::shared_ptr<const codegen::Binary> binary = built(config);
  if (!binary) {
    Build build = engine_->builder().build(definition_, config, device.info().target, access);
    if (auto* failure = std::get_if<CompileFailure>(&build.outcome))
      throw CompileError(std::move(*failure));
    if (auto* missing = std::get_if<Missing>(&build.outcome)) {
      if (!engine_->wanted().note(engine_->wanted().instance(definition_, problem, config)))
        ++engine_->workshop().telemetry().counters.wanted_cut;
      return std::move(*missing);
    }
    binary = std::get<std::shared_ptr<const codegen::Binary>>(std::move(build.outcome));
  }
  const std::string exceeds =
      plan.empty() ? "" : resource_obstacle(resources_of_entries(*binary), plan, limits);
  if (!exceeds.empty()) refuse(definition_, config, problem, exceeds);
  return Loadable{std::move(binary), std::move(plan)};
}

std::shared_ptr<const Module> KernelLoader::load_apart(std::span<const std::int64_t> config,
                                                       const Loadable& what) {
  SpanScope span(&engine_->workshop().telemetry().spans, "kiln.load",
                 {{"kernel", definition_.name}, {"config", definition_.space.describe(config)}});
  auto kernel = load_counted(*engine_->device(), *what.binary, what.plan.launch, what.plan.steps);
  span.end();
  return kernel;
}

std::variant<Launchable, Missing> KernelLoader::load_fresh(std::span<const std::int64_t> problem,
                                                           std::span<const std::int64_t> config,
                                                           Builder::Access access) {
  auto found = loadable(problem, config, access);
  if (auto* const missing = std::get_if<Missing>(&found)) return std::move(*missing);
  return launchable(problem, config, load_apart(config, std::get<Loadable>(found)));
}

void KernelLoader::keep_built(std::span<const std::int64_t> config,
                              std::shared_ptr<const codegen::Binary> binary) {
  const std::lock_guard lock(built_mutex_);
  built_.insert_or_assign(Values(config.begin(), config.end()), std::move(binary));
}

void KernelLoader::forget_built() {
  const std::lock_guard lock(built_mutex_);
  built_.clear();
}

std::shared_ptr<const codegen::Binary> KernelLoader::built(std::span<const std::int64_t> config) {
  const std::lock_guard lock(built_mutex_);
  if (built_.empty()) return nullptr;
  const auto found = built_.find(Values(config.begin(), config.end()));
  return found == built_.end() ? nullptr : found->second;
}

std::variant<Launchable, Missing> KernelLoader::load(std::span<const std::int64_t> problem,
                                                     std::span<const std::int64_t> config,
                                                     Builder::Access access) {
  auto found = loadable(problem, config, access);
  if (auto* const missing = std::get_if<Missing>(&found)) return std::move(*missing);
  const auto& what = std::get<Loadable>(found);
  return launchable(problem, config,
                    modules_.find_or_load(what.binary->key, problem, what.plan, [&] {
                      return filled(load_apart(config, what), problem, what.plan);
                    }));
}

Launchable KernelLoader::adopt(std::span<const std::int64_t> problem,
                               std::span<const std::int64_t> config,
                               std::shared_ptr<const Module> kernel) {
  const detail::LaunchPlan plan =
      detail::plan(definition_, config, problem, engine_->device()->info().limits);
  if (auto same = modules_.find(kernel->binary_key, problem, plan)) {
    engine_->bounds().dispose(std::move(kernel));
    return launchable(problem, config, std::move(same));
  }
  return launchable(problem, config, filled(std::move(kernel), problem, plan));
}

Launchable KernelLoader::launchable(std::span<const std::int64_t> problem,
                                    std::span<const std::int64_t> config,
                                    std::shared_ptr<const Module> kernel) {
  Launchable ready;
  ready.loader = this;
  ready.whole = is_whole(definition_, config);
  ready.problem.assign(problem.begin(), problem.end());
  ready.config.assign(config.begin(), config.end());
  ready.device = engine_->device().get();
  ready.loaded = kernel.get();
  ready.start = ready.whole ? start_whole : start;
  if (has_maps(definition_, config)) {
    const auto owner = std::make_shared<ProblemKernelWithMaps>();
    owner->kernel = std::move(kernel);
    ready.known = &owner->known;
    ready.owner = owner;
  } else {
    ready.owner = std::make_shared<const ProblemKernel>(ProblemKernel{std::move(kernel)});
  }
  return ready;
}

EntryArguments KernelLoader::entry_arguments(const Launchable& ready,
                                             std::span<const std::int64_t> problem) const {
  std::vector<detail::PlannedMap> maps = detail::planned_maps(definition_, ready.config, problem);
  for (const detail::PlannedMap& planned : maps)
    if (const std::string why = planned.map.obstacle(); !why.empty())
      refuse(definition_, ready.config, problem,
             format("argument {} as a tensor map with {}", planned.argument, why));
  return {device_of(ready), std::move(maps), definition_.arguments.size()};
}

template <class F>
auto KernelLoader::named(const F& use) const try {
  return use();
} catch (const CaptureError& error) {
  throw engine_->captures().counted(format("kernel {}: {}", definition_.name, error.what()));
} catch (const UserError& error) {
  throw UserError(format("kernel {}: {}", definition_.name, error.what()));
} catch (const OutOfMemory& error) {  // regions and choices tell these two by their types
  throw OutOfMemory(format("kernel {}: {}", definition_.name, error.what()));
} catch (const DeviceLost& error) {
  throw DeviceLost(format("kernel {}: {}", definition_.name, error.what()));
} catch (const EnvironmentError& error) {
  throw EnvironmentError(format("kernel {}: {}", definition_.name, error.what()));
}

Workspaces::Turn KernelLoader::turn(Stream stream, const WorkspaceSize& size) {
  // Another launch between an entry and its steps would overwrite what they read.
  const bool alone = !definition_.steps.empty();
  return named([&] { return workspaces_.turn(stream, size, alone); });
}

std::pair<Workspace, std::shared_ptr<const void>> KernelLoader::graph_workspace(
    const StreamOrder& order, const WorkspaceSize& size) {
  return named([&] { return workspaces_.for_graph(order, size); });
}

void KernelLoader::reserve_workspace(Stream stream, const WorkspaceSize& size) {
  named([&] { workspaces_.reserve(stream, size); });
}

void KernelLoader::use_workspace(Stream stream, void* memory, const WorkspaceSize& size) {
  named([&] { workspaces_.use(stream, memory, size); });
}

void KernelLoader::release_workspace(Stream stream) {
  named([&] { workspaces_.release(stream); });
}

std::size_t KernelLoader::clear_semaphores(const Launchable& ready, Stream stream) {
  return ready.whole ? loader_of(ready).workspaces_.clear_semaphores(stream) : 0;
}

std::shared_ptr<const detail::BoundLaunch> KernelLoader::bound_launch(
    const Launchable& ready, std::span<const std::int64_t> problem) {
  if (!ready.whole) return nullptr;
  const DeviceLimits& limits = device_of(ready).info().limits;
  // The launch of an empty problem does nothing, and its maps would have no elements.
  const Launch launch = loader_of(ready).definition().launch(ready.config, problem, limits);
  if (empty(launch)) return nullptr;
  if (ready.provisional) return std::make_shared<const BoundProvisional>(ready, launch, problem);
  return bound_whole(ready, launch, problem);
}

std::shared_ptr<const Module> KernelLoader::filled(std::shared_ptr<const Module> kernel,
                                                   std::span<const std::int64_t> problem,
                                                   const detail::LaunchPlan& plan) {
  std::lock_guard lock(mutex_);
  for (const auto& [name, data] : symbols_) fill(*kernel, name, data);
  return modules_.add(std::move(kernel), problem, plan);
}

void KernelLoader::set_symbol(std::string name, std::span<const std::byte> data) {
  std::lock_guard lock(mutex_);
  const auto kernels = modules_.all();
  for (const auto& kernel : kernels) check(*kernel, name, data);  // all or none are written
  for (const auto& kernel : kernels) fill(*kernel, name, data);
  symbols_.insert_or_assign(std::move(name), std::vector<std::byte>(data.begin(), data.end()));
}

void KernelLoader::add_to(Pins& pins) const {
  for (auto& kernel : modules_.all()) pins.push_back(std::move(kernel));
  for (auto& memory : workspaces_.memory()) pins.push_back(std::move(memory));
}

void KernelLoader::take_symbols(const KernelLoader& other) {
  std::scoped_lock lock(mutex_, other.mutex_);
  symbols_ = other.symbols_;
}

Symbol KernelLoader::symbol(const Launchable& ready, std::string_view name) const try {
  if (!ready.loaded)  // mode collect launches nothing in its place
    throw UserError(format("its binary is missing, so `{}` cannot be reached", name));
  const ModuleVariable found = find_variable(*engine_->device(), *loaded(ready), name);
  using Owner = std::pair<std::shared_ptr<Device>, std::shared_ptr<const void>>;
  return detail::Access::symbol(found.name, found.address, found.bytes, engine_->device().get(),
                                std::make_shared<const Owner>(engine_->device(), ready.owner));
} catch (const UserError& error) {
  throw UserError(format("kernel {}: {}", definition_.name, error.what()));
}

void KernelLoader::check(const Module& kernel, const std::string& name,
                         std::span<const std::byte> data) const try {
  check_size(find_variable(*engine_->device(), kernel, name), data);
} catch (const UserError& error) {
  throw WrongSymbol(format("kernel {}: {}", definition_.name, error.what()));
}

void KernelLoader::fill(const Module& kernel, const std::string& name,
                        std::span<const std::byte> data) const try {
  Device& device = *engine_->device();
  write_variable(device, find_variable(device, kernel, name), data);
} catch (const UserError& error) {
  throw WrongSymbol(format("kernel {}: {}", definition_.name, error.what()));
}

}  // namespace kiln::runtime
