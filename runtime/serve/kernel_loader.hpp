// From a config to a kernel that can be launched: built, loaded, its variables filled.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "kiln/detail/handle_core.hpp"
#include "kiln/error.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/entry_arguments.hpp"
#include "runtime/device/workspaces.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/handle_modules.hpp"

namespace kiln::runtime {

/// A program's data do not fit a variable. Another config would not help.
class WrongSymbol : public UserError {
 public:
  using UserError::UserError;
};

/// Loads the kernels of one handle, and has the workspaces of their launches. Thread-safe. What it
/// loaded must not be launched after it has ended.
class KernelLoader final : private PinSource {
 public:
  /// `definition` must outlive the loader.
  KernelLoader(std::shared_ptr<detail::Engine> engine, const KernelDefinition& definition)
      : engine_(std::move(engine)),
        definition_(definition),
        workspaces_(engine_->device(),
                    [this](const WorkspaceSize& size) {
                      engine_->note_allocation("kernel " + definition_.name, size);
                    }),
        modules_(engine_->bounds().keep_modules(),
                 engine_->workshop().telemetry().counters.modules_unloaded) {
    engine_->captures().add(*this);
  }
  ~KernelLoader() override { engine_->captures().remove(*this); }
  KernelLoader(const KernelLoader&) = delete;
  KernelLoader& operator=(const KernelLoader&) = delete;

  /// Builds and loads one config, or says what is missing, which is noted as wanted. No other
  /// launches use this load of it, and its variables hold what the source says.
  /// @throws CompileError when its template does not compile, UserError when the device could not
  /// launch it
  std::variant<detail::Launchable, Missing> load_fresh(
      std::span<const std::int64_t> problem, std::span<const std::int64_t> config,
      Builder::Access access = Builder::Access::compile);
  /// The same for launches: its variables hold the data that set_symbol() was given, and it is
  /// loaded only where nothing that is loaded serves the problem. @throws also WrongSymbol
  std::variant<detail::Launchable, Missing> load(std::span<const std::int64_t> problem,
                                                 std::span<const std::int64_t> config,
                                                 Builder::Access access = Builder::Access::compile);
  /// Those that load this config take this binary, without looking for it, until it is forgotten.
  void keep_built(std::span<const std::int64_t> config,
                  std::shared_ptr<const codegen::Binary> binary);
  void forget_built();
  /// As load(), with a kernel that a tuning has loaded, and whose variables are untouched, instead
  /// of loading.
  detail::Launchable adopt(std::span<const std::int64_t> problem,
                           std::span<const std::int64_t> config,
                           std::shared_ptr<const Module> kernel);
  /// As DynamicTuned::symbol.
  void set_symbol(std::string name, std::span<const std::byte> data);
  /// Takes over the data that another loader was given so far, for kernels to come.
  void take_symbols(const KernelLoader& other);

  /// @throws UserError when the kernel has no such variable
  Symbol symbol(const detail::Launchable& ready, std::string_view name) const;

  /// As HandleCore::bound_launch. @throws UserError when a map breaks a rule of the hardware
  static std::shared_ptr<const detail::BoundLaunch> bound_launch(
      const detail::Launchable& ready, std::span<const std::int64_t> problem);

  const KernelDefinition& definition() const noexcept { return definition_; }
  /// @throws UserError when a map breaks a rule of the hardware
  EntryArguments entry_arguments(const detail::Launchable& ready,
                                 std::span<const std::int64_t> problem) const;
  /// Of this handle's workspaces, for the launches of one call. @throws as Workspaces::turn
  Workspaces::Turn turn(Stream stream, const WorkspaceSize& size);
  /// The same for the launches of a graph. @throws as Workspaces::for_graph
  std::pair<Workspace, std::shared_ptr<const void>> graph_workspace(const StreamOrder& order,
                                                                    const WorkspaceSize& size);
  /// As Bound::reserve_workspace.
  void reserve_workspace(Stream stream, const WorkspaceSize& size);
  /// As Tuned::use_workspace.
  void use_workspace(Stream stream, void* memory, const WorkspaceSize& size);
  /// As Tuned::release_workspace.
  void release_workspace(Stream stream);

  /// As Workspaces::clear_semaphores, for the handle that has loaded this kernel. 0: the kernel has
  /// no workspace.
  static std::size_t clear_semaphores(const detail::Launchable& ready, Stream stream);

  /// The kernel on its device, which keeps its module.
  static std::shared_ptr<const Module> loaded(const detail::Launchable& ready) {
    return {ready.owner, static_cast<const Module*>(ready.loaded)};
  }

 private:
  /// What is loaded for a launch.
  struct Loadable {
    std::shared_ptr<const codegen::Binary> binary;
    detail::LaunchPlan plan;
  };
  std::variant<Loadable, Missing> loadable(std::span<const std::int64_t> problem,
                                           std::span<const std::int64_t> config,
                                           Builder::Access access);
  std::shared_ptr<const Module> load_apart(std::span<const std::int64_t> config,
                                           const Loadable& what);
  void add_to(Pins& pins) const override;
  std::shared_ptr<const codegen::Binary> built(std::span<const std::int64_t> config);
  detail::Launchable launchable(std::span<const std::int64_t> problem,
                                std::span<const std::int64_t> config,
                                std::shared_ptr<const Module> kernel);
  /// Calls `use`, whose errors then name the kernel.
  template <class F>
  auto named(const F& use) const;
  /// With the data that set_symbol() was given.
  std::shared_ptr<const Module> filled(std::shared_ptr<const Module> kernel,
                                       std::span<const std::int64_t> problem,
                                       const detail::LaunchPlan& plan);
  void check(const Module& kernel, const std::string& name, std::span<const std::byte> data) const;
  void fill(const Module& kernel, const std::string& name, std::span<const std::byte> data) const;

  std::shared_ptr<detail::Engine> engine_;
  const KernelDefinition& definition_;
  Workspaces workspaces_;
  mutable std::mutex mutex_;  ///< of `symbols_`, and held while variables are filled
  std::map<std::string, std::vector<std::byte>> symbols_;
  HandleModules modules_;
  std::mutex built_mutex_;
  std::map<Values, std::shared_ptr<const codegen::Binary>> built_;
};

}  // namespace kiln::runtime
