// A handle as prepare, seal and the background see it.
#pragma once

#include <memory>
#include <span>

#include "kiln/detail/handle_core.hpp"
#include "runtime/device/device.hpp"
#include "runtime/serve/problems.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln::runtime {

class Provisions;

class ServedHandle : public detail::HandleCore {
 public:
  virtual Provisions& provisions() noexcept = 0;
  virtual Problems& problems() noexcept = 0;
  /// As HandleCore::tune, of a problem that is bucketed already, with options that are complete
  /// (Engine::completed). The outcome's module is in use, and not in the outcome.
  virtual TuneOutcome tune_bucket(std::span<const std::int64_t> bucket,
                                  const TuneOptions& tuning) = 0;
  /// Launches get what came of a tuning that was asked for, as take_outcome() says. The outcome's
  /// module is in use, and not in the outcome. @throws what a launch throws
  virtual void use_outcome(TuneOutcome& tuned, const TuneOptions& tuning) = 0;
  /// A config for launches of a problem; `module`: its kernel, if that is loaded already.
  /// @throws what a launch throws, except MissingError
  virtual Problems::Loaded load_config(std::span<const std::int64_t> problem, const Values& config,
                                       std::shared_ptr<Module> module) = 0;
  /// Launches get this config from now on. `module`: its kernel, if that is loaded already.
  /// @throws MissingError where it cannot be had
  virtual void put_in_use(std::span<const std::int64_t> problem, const Values& config,
                          std::shared_ptr<Module> module) = 0;
  /// The definition, for work that may outlast the handle.
  virtual std::shared_ptr<const KernelDefinition> kept_definition() const = 0;
};

/// As DynamicTuned::launch.
void launch(detail::HandleCore& handle, Stream stream, const ProblemValues& problem, void** args);

}  // namespace kiln::runtime
