#include "runtime/serve/kernel_loader.hpp"

#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/module_data.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/serve/access.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;

namespace {

void start(const Launchable& ready, const Launch& launch, Stream stream, void** args) {
  static_cast<const Device*>(ready.device)
      ->launch(*static_cast<const Module*>(ready.loaded), launch, stream, args);
}

Launchable launchable(std::span<const std::int64_t> problem, std::span<const std::int64_t> config,
                      const Device& device, std::shared_ptr<const Module> kernel) {
  Launchable ready;
  ready.problem.assign(problem.begin(), problem.end());
  ready.config.assign(config.begin(), config.end());
  ready.device = &device;
  ready.loaded = kernel.get();
  ready.owner = std::move(kernel);
  ready.start = start;
  return ready;
}

}  // namespace

std::variant<Launchable, Missing> KernelLoader::load_fresh(std::span<const std::int64_t> problem,
                                                           std::span<const std::int64_t> config) {
  Device& device = *engine_->device();
  const Launch launch = definition_.launch(config, problem);
  const std::string impossible = launch_problem(launch, device.info().limits);
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
  return launchable(problem, config, device, device.load(*build.binary(), launch.shared_bytes));
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
  Launchable ready = launchable(problem, config, *engine_->device(), std::move(kernel));
  fill_symbols(ready);
  return ready;
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
