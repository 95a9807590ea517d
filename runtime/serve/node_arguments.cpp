#include "runtime/serve/node_arguments.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "kiln/workspace.cuh"
#include "runtime/device/entry_arguments.hpp"
#include "runtime/serve/kernel_loader.hpp"

namespace kiln::runtime {

using detail::Launchable;

namespace {

KernelLoader& loader_of(const Launchable& ready) {
  return *static_cast<KernelLoader*>(ready.loader);
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

std::string node_obstacle(const Launchable& captured, const Launchable& now) {
  return has_steps(captured) || has_steps(now)
             ? "the config in use has steps, or the captured one has"
             : std::string();
}

NodeArguments node_arguments(const Launchable& captured, const Launchable& now,
                             std::span<const std::int64_t> problem, const MappedPointers& mapped,
                             const StreamOrder& order) {
  NodeArguments made;
  if (!captured.whole && !now.whole) return made;
  KernelLoader& loader = loader_of(now);
  // Shared, because a std::function copies what it holds.
  const auto entry = std::make_shared<const EntryArguments>(loader.entry_arguments(now, problem));
  std::optional<Workspace> workspace;
  if (const auto size =
          detail::planned_workspace(loader.definition(), now.config, problem,
                                    static_cast<const Device*>(now.device)->info().limits)) {
    auto [given, owner] = loader.graph_workspace(order, *size);
    workspace = given;
    made.workspace_owner = std::move(owner);
  }
  made.arguments = [entry, mapped, workspace, count = loader.definition().arguments.size()](
                       void* const* node, const std::function<void(void**)>& use) {
    std::vector<void*> args(node, node + count);
    for (const auto& [argument, pointer] : mapped) args[argument] = const_cast<void**>(&pointer);
    entry->with(args.data(), workspace ? &*workspace : nullptr, use);
  };
  return made;
}

}  // namespace kiln::runtime
