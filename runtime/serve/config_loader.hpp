// Which configs of a handle's kernel are loaded where nothing is measured, and what is said when
// another one has to serve.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kiln/detail/handle_core.hpp"
#include "runtime/serve/kernel_loader.hpp"
#include "runtime/serve/problems.hpp"

namespace kiln::runtime {

/// The same kernel, of which it is known now that its config is the problem's winner.
inline detail::Launchable as_tuned(detail::Launchable ready) {
  ready.untuned = false;
  return ready;
}

/// Thread-safe. Refers to what it is made of.
class ConfigLoader {
 public:
  using Access = Builder::Access;
  using Loaded = Problems::Loaded;

  /// What a launchable becomes that is put in use before a final winner is known.
  using MarkProvisional = std::function<detail::Launchable(detail::Launchable)>;

  /// `fixed`: the program gave the one config of the kernel's space.
  ConfigLoader(detail::Engine& engine, KernelLoader& loader, bool fixed,
               MarkProvisional mark_provisional)
      : engine_(engine),
        kernel_(loader.definition()),
        loader_(loader),
        fixed_(fixed),
        mark_provisional_(std::move(mark_provisional)) {}

  /// The default config of a problem (KernelDefinition::default_for).
  Values default_config(std::span<const std::int64_t> problem) const;
  /// Whether the default config's grid is empty.
  bool launches_nothing(std::span<const std::int64_t> problem) const;

  /// Launches that do nothing, in place of what is missing in mode collect.
  detail::Ready no_launch() const;

  KernelLoader& loader() const noexcept { return loader_; }

  /// As KernelLoader::load. @throws also NotForProblem when a fixed config breaks a
  /// constraint
  Loaded load(std::span<const std::int64_t> problem, std::span<const std::int64_t> config,
              Access access = Access::compile);
  /// Why a config that should run does not.
  struct Obstacle {
    std::string why{};                 ///< its error
    std::optional<Missing> missing{};  ///< its binary, if that is missing
  };
  /// The untuned config: `guess`, if there is one; else the cost model's choice where the kernel
  /// trusts it, else the default. The default also stands in for what is missing or does not work:
  /// `obstacle` says why, if it is given.
  Loaded untuned(std::span<const std::int64_t> problem, Access access = Access::compile,
                 const std::optional<Values>& guess = {}, Obstacle* obstacle = nullptr);
  /// The winner on record; nothing, and why, where it cannot be used.
  std::optional<Loaded> winner(std::span<const std::int64_t> problem, const Values& config,
                               Access access = Access::compile, std::string* why = nullptr);
  /// Launches fail from now on if the binary is missing; a warning says so.
  Problems::Made ready_or_warn(std::span<const std::int64_t> problem, Loaded made);
  /// The same before a final winner is known: the launchable is marked.
  Problems::Made to_publish_provisional(std::span<const std::int64_t> problem, Loaded made);

  /// What runs where nothing is measured.
  struct BestKnown {
    Loaded made;
    bool provisional = false;          ///< no final winner is known, or it cannot be used
    std::string why{};                 ///< the error of the config that should run, if that is why
    std::optional<Missing> missing{};  ///< the binary that should run, if that is missing
  };
  /// The winner (nothing: none is known), else the untuned config, with a warning where the
  /// winner's binary is missing. A fixed config has no other in its place.
  BestKnown best_known(std::span<const std::int64_t> problem, const std::optional<Values>& winner,
                       Access access = Access::compile, const std::optional<Values>& guess = {});
  /// What to publish, so that launches of the problem get it.
  Problems::Made to_publish(std::span<const std::int64_t> problem, BestKnown best);

 private:
  Loaded load_untuned(std::span<const std::int64_t> problem, Access access,
                      const std::optional<Values>& guess, Obstacle* obstacle);
  /// Warns that the config that should run is missing, and says which one runs instead, if any
  /// does.
  void warn_of(const char* what, std::span<const std::int64_t> problem, const Missing& missing,
               const Loaded& instead);

  detail::Engine& engine_;
  const KernelDefinition& kernel_;
  KernelLoader& loader_;
  const bool fixed_;
  const MarkProvisional mark_provisional_;
};

}  // namespace kiln::runtime
