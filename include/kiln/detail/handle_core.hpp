// What stands behind a handle: kernels by problem, and what each launch is held to. Implemented by
// the runtime.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kiln/definition.hpp"
#include "kiln/detail/arguments.hpp"
#include "kiln/detail/bound_launch.hpp"
#include "kiln/detail/read_section.hpp"
#include "kiln/missing.hpp"
#include "kiln/symbol.hpp"
#include "kiln/tune.hpp"
#include "kiln/workspace.hpp"

namespace kiln::detail {

class Engine;
class Tunable;

/// One bucket's kernel, loaded. Published once and never changed.
struct Launchable {
  Values problem;  ///< bucketed
  Values config;
  const void* device = nullptr;
  const void* loaded = nullptr;
  std::shared_ptr<const void> owner;  ///< keeps both alive
  bool provisional = false;           ///< something better is looked for behind the launches
  bool untuned = false;               ///< nothing is known of the problem
  void* loader = nullptr;             ///< of a kernel
  /// The config has tensor maps, a workspace or steps: the loader turns the caller's arguments into
  /// those of the entries.
  bool whole = false;
  void* known = nullptr;  ///< with tensor maps: what was encoded, by exact problem; `owner` has it
  void (*start)(const Launchable&, const Launch&, std::span<const std::int64_t> problem, Stream,
                void** args) = nullptr;

  /// `exact` is the problem that `launch` was made for, which need not be the bucket.
  void launch(const Launch& launch, std::span<const std::int64_t> exact, Stream stream,
              void** args) const {
    if (launch.grid.x != 0 && launch.grid.y != 0 && launch.grid.z != 0)
      start(*this, launch, exact, stream, args);
  }
};

/// A launchable that stays loaded as long as this has an owner.
using Ready = std::shared_ptr<const Launchable>;

/// A tunable that can be launched: a kernel's handle or, in a region, a function with knobs.
/// Problems are bucketed.
class TunableHandle : public std::enable_shared_from_this<TunableHandle> {
 public:
  virtual ~TunableHandle() = default;
  virtual Tunable what() const noexcept = 0;
  virtual const Engine& engine() const noexcept = 0;
  /// The launchable in use, valid within the section, which begins; null: there is none. Lock-free,
  /// allocation-free.
  virtual const Launchable* find(std::span<const std::int64_t> problem,
                                 ReadSection& section) const noexcept = 0;
  /// The launchable in use, or null.
  virtual Ready find(std::span<const std::int64_t> problem) const = 0;
  /// One config, built and loaded, but not in use. @throws CompileError, UserError,
  /// EnvironmentError when that fails
  virtual std::variant<Launchable, Missing> load(std::span<const std::int64_t> problem,
                                                 std::span<const std::int64_t> config) = 0;
  /// What a launch that may not wait gets: the launchable in use, else the winner on record, else
  /// what runs untuned (Mode::untuned). Measures nothing.
  /// @throws MissingError where nothing may be compiled.
  virtual Ready current(std::span<const std::int64_t> problem) = 0;
  /// What a launch on a stream that is being captured gets: the launchable in use, else a stand-in
  /// that is loaded, whose launches are then refreshable. Loads nothing, and waits for no other
  /// thread.
  /// @throws CaptureError where there is neither
  virtual Ready captured(std::span<const std::int64_t> problem, Stream stream) = 0;
  /// Launches from now on use this config. @throws as `current`.
  virtual void use(std::span<const std::int64_t> problem, const Values& config) = 0;
  /// Whether the program has fixed its config (with_config): nothing is left to be tuned.
  virtual bool fixed() const noexcept { return false; }
};

/// What a launch uses, valid as long as this object. Used by one thread.
class Held {
 public:
  /// The launchable in use, else what `make` returns.
  template <class Make>
  Held(const TunableHandle& handle, std::span<const std::int64_t> problem, const Make& make)
      : ready_(handle.find(problem, section_)) {
    if (ready_) return;
    made_ = make();
    ready_ = made_.get();
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  const Launchable& operator*() const noexcept { return *ready_; }
  const Launchable* operator->() const noexcept { return ready_; }

 private:
  ReadSection section_;
  Ready made_;  ///< of a problem that was not ready
  const Launchable* ready_;
};

/// The part of a handle that does not depend on types. Implemented by the runtime.
class HandleCore : public TunableHandle {
 public:
  Tunable what() const noexcept final;
  /// Makes it ready (store, compile, tune) and returns it. It must not be launched when the core
  /// has ended. @throws MissingError where nothing may be compiled.
  virtual Ready make_ready(std::span<const std::int64_t> problem) = 0;
  /// The same for a launch on this stream. While that is being captured, only what is loaded
  /// already is returned. @throws also CaptureError
  virtual Ready make_ready(std::span<const std::int64_t> problem, Stream stream) = 0;
  /// The same, with what is missing as a value, and looked for anew.
  virtual std::optional<Missing> prepare(std::span<const std::int64_t> problem) = 0;
  /// A handle of the same kernel that never tunes: every problem has this config.
  virtual std::shared_ptr<HandleCore> with_config(std::span<const std::int64_t> config) const = 0;
  virtual const KernelDefinition& definition() const noexcept = 0;
  /// The bucket of an exact problem. Null: with the runtime's options. The other ranks are told
  /// before it throws.
  virtual TuneResult tune(std::span<const std::int64_t> exact, const TuneOptions* options) = 0;
  virtual std::optional<TuneResult> known(std::span<const std::int64_t> problem) = 0;
  virtual Verification verify(std::span<const std::int64_t> problem, std::uint64_t seed) = 0;
  /// Null: a launch of the problem is its entry with the caller's arguments, or nothing.
  virtual std::shared_ptr<const BoundLaunch> bound_launch(
      const Launchable& ready, std::span<const std::int64_t> problem) const = 0;
  /// What a launch of the problem takes; nothing of a config without a workspace.
  virtual WorkspaceSize workspace_size(const Launchable& ready,
                                       std::span<const std::int64_t> problem) const = 0;
  /// As Bound::reserve_workspace, for any launch that this size covers.
  virtual void reserve_workspace(Stream stream, const WorkspaceSize& size) const = 0;
  /// As Tuned::use_workspace.
  virtual void use_workspace(Stream stream, void* memory, const WorkspaceSize& size) const = 0;
  /// As Tuned::release_workspace.
  virtual void release_workspace(Stream stream) const = 0;
  /// What launch rules are given.
  virtual const DeviceLimits& limits() const noexcept = 0;
  /// A global variable of a kernel of this handle's. @throws UserError when there is none
  virtual Symbol symbol(const Launchable& ready, std::string_view name) const = 0;
  /// What a global variable holds in all kernels of this handle, those to come included.
  virtual void set_symbol(std::string name, std::span<const std::byte> data) = 0;

  /// For as long as a Bound lives.
  Ready at(std::span<const std::int64_t> problem) {
    if (Ready ready = find(problem)) return ready;
    return make_ready(problem);
  }
  /// For a launch on this stream.
  Held at(std::span<const std::int64_t> problem, Stream stream) {
    return {*this, problem, [&] { return make_ready(problem, stream); }};
  }

  /// @throws UserError naming the argument whose type differs from the definition's, or the count.
  void check(const ArgumentTypes& given) const {
    for (const auto& accepted : accepted_)
      if (accepted.load(std::memory_order_relaxed) == given.hash) return;
    compare(given);
  }
  /// `problem` has as many values as the definition has fields.
  /// @throws UserError naming the argument that is not the field that it has to be.
  void check(std::span<const std::int64_t> problem, void* const* args) const {
    for (const Relation& relation : relations_)
      if (relation.value(args) != problem[relation.field]) disagree(relation, problem, args);
  }

 protected:
  std::vector<Relation> relations_;  ///< of the definition

 private:
  void compare(const ArgumentTypes& given) const;
  [[noreturn]] void disagree(const Relation& relation, std::span<const std::int64_t> problem,
                             void* const* args) const;

  mutable std::array<std::atomic<std::uint64_t>, 4> accepted_{};  ///< hashes; 0: none yet
};

}  // namespace kiln::detail
