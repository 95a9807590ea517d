// A kernel held for one problem: launches without any look-up.
//
//   auto bound = add_tuned.at(Elementwise{n});
//   bound(stream, out, a, b, n);
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "kiln/detail/arguments.hpp"
#include "kiln/detail/handle_core.hpp"
#include "kiln/problem_values.hpp"
#include "kiln/reflect.hpp"
#include "kiln/symbol.hpp"

namespace kiln {

namespace detail {

/// What bound kernels have in common, whether their arguments are typed or not.
class BoundKernel {
 public:
  const Launch& description() const noexcept { return launch_; }

  /// A global variable of the source, in this kernel's module alone: a kernel that is tuned again
  /// later has its own copy, which the handle's `symbol` fills as well. @throws UserError that
  /// lists the variables there are
  Symbol symbol(std::string_view name) const { return core_->symbol(*ready_, name); }

  /// The workspace that launches of this problem need; zero for a config without one.
  WorkspaceSize workspace_size() const { return core_->workspace_size(*ready_, problem_); }
  /// Allocates the workspace for launches on this stream now, so that they may be captured, and
  /// waits for the stream if the memory is new. On the host device, it is that of the calling
  /// thread's launches. Earlier memory stays valid for graphs that were captured with it. A graph
  /// shares the workspace of the stream that it was captured on: graphs and launches of one handle
  /// that share that stream must not run at the same time. @throws CaptureError while the stream is
  /// being captured, UserError where the program has supplied less; EnvironmentError naming the
  /// bytes when they cannot be allocated
  void reserve_workspace(Stream stream) const {
    core_->reserve_workspace(stream, workspace_size());
  }

 protected:
  BoundKernel(std::shared_ptr<HandleCore> core, Ready ready, Launch launch,
              const ProblemValues& problem)
      : core_(std::move(core)),
        bound_(core_->bound_launch(*ready, problem)),
        ready_(std::move(ready)),
        launch_(launch),
        problem_(problem) {}

  /// As start(), with an array that nobody reads afterwards.
  void take(Stream stream, void** args) const {
    core_->check(problem_, args);
    if (bound_)
      bound_->take(launch_, stream, args);
    else
      ready_->launch(launch_, problem_, stream, args);
  }
  void start(Stream stream, void** args) const {
    core_->check(problem_, args);
    if (bound_)
      (*bound_)(launch_, stream, args);
    else
      ready_->launch(launch_, problem_, stream, args);
  }

  std::shared_ptr<HandleCore> core_;

 private:
  // What launches read comes first: behind a driver's call every cache line costs.
  /// Null: a launch passes the caller's arguments to the entry as they are.
  std::shared_ptr<const BoundLaunch> bound_;
  Ready ready_;
  Launch launch_;
  ProblemValues problem_;
};

}  // namespace detail

/// A kernel for one problem: config, launch and code are fixed.
template <class... Args>
class Bound : public detail::BoundKernel {
 public:
  /// @throws UserError when an argument contradicts the problem (KernelDefinition::relations),
  /// EnvironmentError when the device refuses the launch.
  template <class... Actual>
  void operator()(Stream stream, Actual&&... args) const {
    detail::Arguments<Args...>::template check<Actual...>();
    if constexpr (detail::Arguments<Args...>::template kMatch<Actual...>)
      launch(stream, static_cast<Args>(args)...);
  }

 private:
  template <Reflected, Reflected, class>
  friend class Tuned;

  Bound(std::shared_ptr<detail::HandleCore> core, detail::Ready ready, Launch launch,
        const ProblemValues& problem)
      : BoundKernel(std::move(core), std::move(ready), launch, problem) {}

  void launch(Stream stream, Args... args) const {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))...};
    take(stream, pointers);
  }
};

/// As Bound, for a kernel described at run time.
class DynamicBound : public detail::BoundKernel {
 public:
  /// @throws UserError as DynamicTuned::operator(), EnvironmentError when the device refuses the
  /// launch.
  template <class... Args>
  void operator()(Stream stream, Args... args) const {
    core_->check(detail::argument_types<Args...>());
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
    take(stream, pointers);
  }
  /// As DynamicTuned::launch.
  void launch(Stream stream, void** args) const { start(stream, args); }

 private:
  friend class DynamicTuned;

  DynamicBound(std::shared_ptr<detail::HandleCore> core, detail::Ready ready, Launch launch,
               const ProblemValues& problem)
      : BoundKernel(std::move(core), std::move(ready), launch, problem) {}
};

}  // namespace kiln
