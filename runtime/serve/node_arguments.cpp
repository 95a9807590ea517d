#include "runtime/serve/node_arguments.hpp"

#include <algorithm>
#include <cstring>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/device/workspaces.hpp"
#include "runtime/serve/kernel_loader.hpp"

namespace kiln::runtime {

using detail::Launchable;

namespace {

const KernelLoader& loader_of(const Launchable& ready) {
  return *static_cast<const KernelLoader*>(ready.loader);
}

bool has_steps(const Launchable& ready) {
  return ready.whole &&
         std::ranges::any_of(loader_of(ready).definition().steps,
                             [&](const KernelStep& step) { return step.applies(ready.config); });
}

}  // namespace

MappedPointers mapped_pointers(const Launchable& launched, void* const* args) {
  MappedPointers mapped;
  if (!launched.whole) return mapped;
  for (const MapRule& rule : loader_of(launched).definition().maps)
    if (rule.applies(launched.config)) {
      void* pointer;
      std::memcpy(&pointer, args[rule.argument], sizeof pointer);
      mapped.emplace_back(rule.argument, pointer);
    }
  return mapped;
}

std::optional<WorkspaceSize> workspace_of(const Launchable& ready,
                                          std::span<const std::int64_t> problem) {
  if (!ready.whole) return {};
  return detail::planned_workspace(loader_of(ready).definition(), ready.config, problem,
                                   static_cast<const Device*>(ready.device)->info().limits);
}

std::string node_obstacle(const Launchable& captured, const Launchable& now) {
  return has_steps(captured) || has_steps(now)
             ? "the config in use has steps, or the captured one has"
             : std::string();
}

std::pair<Workspace, std::shared_ptr<const void>> NodeWorkspaces::of(
    const std::shared_ptr<Device>& device, const void* exec, const void* loader,
    const StreamOrder& order, const WorkspaceSize& size) {
  auto found = std::ranges::find_if(all_, [&](const Owned& own) {
    return own.exec == exec && own.loader == loader && own.order == order;
  });
  if (found == all_.end() || !found->size.covers(size)) {
    const WorkspaceSize all = found == all_.end() ? size : max(found->size, size);
    if (const std::string why = workspace_obstacle(all, device->info().limits); !why.empty())
      throw UserError(why);
    auto memory = std::make_shared<const DeviceMemory>(device, all.total());
    // Launches of the graph may still use the one before, which the graph keeps.
    if (const std::vector<std::byte> zeros(all.semaphore_bytes()); !zeros.empty())
      device->copy_to_device(memory->data(), zeros.data(), zeros.size());
    Owned made{exec, loader, order, all, std::move(memory)};
    if (found == all_.end())
      found = all_.insert(all_.end(), std::move(made));
    else
      *found = std::move(made);
  }
  return {workspace_at(found->memory->data(), found->size), found->memory};
}

NodeArguments::NodeArguments(const Launchable& now, std::span<const std::int64_t> problem,
                             MappedPointers mapped, std::optional<Workspace> workspace)
    : count_(loader_of(now).definition().arguments.size()),
      mapped_(std::move(mapped)),
      workspace_(workspace),
      entry_(std::make_shared<const EntryArguments>(loader_of(now).entry_arguments(now, problem))) {
}

void NodeArguments::operator()(void* const* captured,
                               const std::function<void(void**)>& use) const {
  std::vector<void*> args(captured, captured + count_);
  for (const auto& [argument, pointer] : mapped_) args[argument] = const_cast<void**>(&pointer);
  entry_->with(args.data(), workspace_ ? &*workspace_ : nullptr, use);
}

}  // namespace kiln::runtime
