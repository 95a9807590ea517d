#include "runtime/serve/kernel_loader.hpp"

#include <algorithm>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/map_arguments.hpp"
#include "runtime/device/module_data.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/serve/access.hpp"

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

void start(const Launchable& ready, const Launch& launch, std::span<const std::int64_t>,
           Stream stream, void** args) {
  device_of(ready).launch(module_of(ready), launch, stream, args);
}

MapArguments map_arguments(const Launchable& ready, std::span<const std::int64_t> problem) {
  const KernelDefinition& kernel = *ready.definition;
  std::vector<detail::PlannedMap> maps = detail::planned_maps(kernel, ready.config, problem);
  for (const detail::PlannedMap& planned : maps)
    if (const std::string why = planned.map.problem(); !why.empty())
      throw UserError(format("kernel {} with {} for {}: argument {} as a tensor map with {}",
                             kernel.name, kernel.space.describe(ready.config),
                             kernel.describe_problem(problem), planned.argument, why));
  return {device_of(ready), std::move(maps), kernel.arguments.size()};
}

/// The maps are made for this launch alone; a Bound keeps them.
void start_mapped(const Launchable& ready, const Launch& launch,
                  std::span<const std::int64_t> problem, Stream stream, void** args) {
  map_arguments(ready, problem).with(args, [&](void** entry_args) {
    device_of(ready).launch(module_of(ready), launch, stream, entry_args);
  });
}

class BoundMaps final : public detail::MappedLaunch {
 public:
  BoundMaps(const Launchable& ready, std::span<const std::int64_t> problem)
      : device_(device_of(ready)),
        module_(module_of(ready)),
        owner_(ready.owner),
        arguments_(map_arguments(ready, problem)) {}

  void operator()(const Launch& launch, Stream stream, void** args) const override {
    if (empty(launch)) return;
    arguments_.with(
        args, [&](void** entry_args) { device_.launch(module_, launch, stream, entry_args); });
  }

 private:
  const Device& device_;
  const Module& module_;
  std::shared_ptr<const void> owner_;
  MapArguments arguments_;
};

Launchable launchable(const KernelDefinition& definition, std::span<const std::int64_t> problem,
                      std::span<const std::int64_t> config, const Device& device,
                      std::shared_ptr<const Module> kernel) {
  const bool mapped = std::any_of(definition.maps.begin(), definition.maps.end(),
                                  [&](const MapRule& rule) { return rule.applies(config); });
  Launchable ready;
  if (mapped) ready.definition = &definition;
  ready.problem.assign(problem.begin(), problem.end());
  ready.config.assign(config.begin(), config.end());
  ready.device = &device;
  ready.loaded = kernel.get();
  ready.owner = std::move(kernel);
  ready.start = mapped ? start_mapped : start;
  return ready;
}

}  // namespace

std::variant<Launchable, Missing> KernelLoader::load_fresh(std::span<const std::int64_t> problem,
                                                           std::span<const std::int64_t> config) {
  Device& device = *engine_->device();
  const DeviceLimits& limits = device.info().limits;
  const detail::LaunchPlan plan = detail::plan(definition_, config, problem, limits);
  const std::string impossible = plan.problem(limits);
  if (!impossible.empty())
    throw UserError(format("kernel {} with {} for {}: {}", definition_.name,
                           definition_.space.describe(config),
                           definition_.describe_problem(problem), impossible));
  Build build = engine_->builder().build(definition_, config, device.info().target);
  if (auto* failure = std::get_if<CompileFailure>(&build.outcome))
    throw CompileError(std::move(*failure));
  if (auto* missing = std::get_if<Missing>(&build.outcome)) {
    engine_->want(definition_, problem, config);
    return std::move(*missing);
  }
  return launchable(definition_, problem, config, device,
                    device.load(*build.binary(), plan.launch));
}

std::variant<Launchable, Missing> KernelLoader::load(std::span<const std::int64_t> problem,
                                                     std::span<const std::int64_t> config) {
  auto made = load_fresh(problem, config);
  if (const auto* ready = std::get_if<Launchable>(&made)) fill_symbols(*ready);
  return made;
}

Launchable KernelLoader::adopt(std::span<const std::int64_t> problem,
                               std::span<const std::int64_t> config,
                               std::shared_ptr<const Module> kernel) {
  Launchable ready =
      launchable(definition_, problem, config, *engine_->device(), std::move(kernel));
  fill_symbols(ready);
  return ready;
}

std::shared_ptr<const detail::MappedLaunch> KernelLoader::mapped(
    const Launchable& ready, std::span<const std::int64_t> problem) {
  if (!ready.definition) return nullptr;
  const DeviceLimits& limits = device_of(ready).info().limits;
  // The launch of an empty problem does nothing, and its maps would have no elements.
  if (empty(ready.definition->launch(ready.config, problem, limits))) return nullptr;
  return std::make_shared<const BoundMaps>(ready, problem);
}

void KernelLoader::fill_symbols(const Launchable& ready) {
  const auto kernel = loaded(ready);
  std::lock_guard lock(mutex_);
  for (const auto& [name, data] : symbols_) fill(*kernel, name, data);
  std::erase_if(modules_, [](const auto& module) { return module.expired(); });
  modules_.push_back(kernel);
}

void KernelLoader::set_symbol(std::string name, std::span<const std::byte> data) {
  std::lock_guard lock(mutex_);
  std::erase_if(modules_, [](const auto& module) { return module.expired(); });
  for (const auto& module : modules_)
    if (const auto kernel = module.lock()) fill(*kernel, name, data);
  symbols_.insert_or_assign(std::move(name), std::vector<std::byte>(data.begin(), data.end()));
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

void KernelLoader::fill(const Module& kernel, const std::string& name,
                        std::span<const std::byte> data) const try {
  Device& device = *engine_->device();
  write_variable(device, find_variable(device, kernel, name), data);
} catch (const UserError& error) {
  throw WrongSymbol(format("kernel {}: {}", definition_.name, error.what()));
}

}  // namespace kiln::runtime
