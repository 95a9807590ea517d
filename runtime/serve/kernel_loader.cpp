#include "runtime/serve/kernel_loader.hpp"

#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/module_data.hpp"

namespace kiln::runtime {

using detail::format;
using detail::ReadyKernel;

std::variant<ReadyKernel, Missing> KernelLoader::load(std::span<const std::int64_t> problem,
                                                      std::span<const std::int64_t> config) {
  auto made = engine_->make_ready(definition_, problem, config);
  if (const auto* ready = std::get_if<ReadyKernel>(&made)) fill_symbols(*ready);
  return made;
}

ReadyKernel KernelLoader::adopt(std::span<const std::int64_t> problem,
                                std::span<const std::int64_t> config,
                                std::shared_ptr<const LoadedKernel> kernel) {
  ReadyKernel ready = engine_->ready(problem, config, std::move(kernel));
  fill_symbols(ready);
  return ready;
}

void KernelLoader::fill_symbols(const ReadyKernel& ready) {
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

Symbol KernelLoader::symbol(const ReadyKernel& ready, std::string_view name) const try {
  if (!ready.loaded)  // mode collect launches nothing in its place
    throw UserError(format("its binary is missing, so `{}` cannot be reached", name));
  const ModuleVariable found = find_variable(*engine_->device(), *loaded(ready), name);
  using Owner = std::pair<std::shared_ptr<Device>, std::shared_ptr<const void>>;
  return {found.name, found.address, found.bytes, engine_->device().get(),
          std::make_shared<const Owner>(engine_->device(), ready.owner)};
} catch (const UserError& error) {
  throw UserError(format("kernel {}: {}", definition_.name, error.what()));
}

void KernelLoader::fill(const LoadedKernel& kernel, const std::string& name,
                        std::span<const std::byte> data) const try {
  Device& device = *engine_->device();
  write_variable(device, find_variable(device, kernel, name), data);
} catch (const UserError& error) {
  throw WrongSymbol(format("kernel {}: {}", definition_.name, error.what()));
}

}  // namespace kiln::runtime
