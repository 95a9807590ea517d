// A handle as prepare, seal and the background see it.
#pragma once

#include <memory>
#include <span>

#include "kiln/detail/handle_core.hpp"
#include "runtime/device/device.hpp"
#include "runtime/serve/problems.hpp"

namespace kiln::runtime {

class Provisions;

class ServedHandle : public detail::HandleCore {
 public:
  virtual Provisions& provisions() noexcept = 0;
  virtual Problems& problems() noexcept = 0;
  /// A config for launches of a problem; `module`: its kernel, if that is loaded already.
  /// @throws what a launch throws, except MissingError
  virtual Problems::Loaded load_config(std::span<const std::int64_t> problem, const Values& config,
                                       std::shared_ptr<Module> module) = 0;
  /// Launches of its problem get it from now on.
  virtual void publish(detail::Launchable launchable) = 0;
  /// The same, if `seen` is still what is in use for the problem. Whether it is.
  virtual bool publish_over(const detail::Ready& seen, detail::Launchable launchable) = 0;
  /// The definition, for work that may outlast the handle.
  virtual std::shared_ptr<const KernelDefinition> kept_definition() const = 0;
};

}  // namespace kiln::runtime
