// What a program launches: a kernel whose config is chosen per problem, once, and then only looked
// up.
//
//   auto add_tuned = runtime.tuned(add);
//   add_tuned(stream, out, a, b, n);            // tunes this problem's bucket if it is new
//   auto bound = add_tuned.at(Elementwise{n});  // no look-up at all
//   bound(stream, out, a, b, n);
//
// Handles are values, safe to launch from several threads. A launch of a known problem takes no
// lock and allocates nothing, with two exceptions: a kernel with a workspace and steps holds a lock
// of its stream while its launches are enqueued, and launches that do not go through `at` make more
// than 8 steps anew, and tensor maps where the exact problem is none of a config's last ones (about
// a hundred). On a CUDA device it is asynchronous on the stream; on the host it has finished.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "kiln/bound.hpp"
#include "kiln/detail/arguments.hpp"
#include "kiln/detail/handle_core.hpp"
#include "kiln/kernel.hpp"
#include "kiln/missing.hpp"
#include "kiln/problem_values.hpp"
#include "kiln/symbol.hpp"
#include "kiln/tune.hpp"

namespace kiln {

template <Reflected Config, Reflected Problem, class Signature>
class Tuned;

class Region;
class Runtime;

/// A typed kernel, tuned per problem. Copies share everything.
template <Reflected Config, Reflected Problem, class... Args>
class Tuned<Config, Problem, void(Args...)> {
 public:
  /// Launches with the best known config for the problem that the arguments describe. Pointers are
  /// not compared with each other: which arrays may overlap is for the kernel to say.
  /// @throws UserError, TuningFailedError, EnvironmentError (MissingError) when a new problem
  /// cannot be made ready, or when the device refuses the launch; CaptureError, before the stream
  /// is touched, when a new problem would have to be made ready while the stream is being captured.
  template <class... Actual>
  void operator()(Stream stream, Actual&&... args) const {
    detail::Arguments<Args...>::template check<Actual...>();
    if constexpr (detail::Arguments<Args...>::template kMatch<Actual...>)
      launch(stream, static_cast<Args>(args)...);
  }

  /// Makes a problem ready without launching it. In the modes lookup_only, frozen and collect it
  /// returns what is missing if no binary can serve the problem: neither the winner's, nor that of
  /// the untuned config (Mode::untuned), nor the default's.
  /// @throws what a launch throws, except MissingError.
  std::optional<Missing> prepare(const Problem& problem) const {
    return core_->prepare(values_of(problem));
  }

  /// The kernel for one problem, ready to launch without any look-up. Call it before a capture,
  /// which it cannot detect: it makes a new problem ready on streams of Kiln's own, which takes
  /// time and, with ranks, communicates. A stand-in (WhileBusy::use_default) is held as well, and
  /// Runtime::refresh does not know of its launches.
  Bound<Args...> at(const Problem& problem) const {
    detail::Ready ready = core_->at(values_of(problem));
    const Launch launch = launch_(from_values<Config>(ready->config), problem, core_->limits());
    return {core_, std::move(ready), launch, to_values(problem)};
  }

  /// The config in use for a problem, which is made ready if it is not.
  Config config(const Problem& problem) const {
    return from_values<Config>(core_->at(values_of(problem))->config);
  }

  /// Tunes now (or reads the store) and says what was found; later launches use it.
  TuneResult tune(const Problem& problem) const { return core_->tune(to_values(problem), nullptr); }
  TuneResult tune(const Problem& problem, const TuneOptions& options) const {
    return core_->tune(to_values(problem), &options);
  }
  /// As DynamicTuned::known.
  std::optional<TuneResult> known(const Problem& problem) const {
    return core_->known(values_of(problem));
  }

  /// As DynamicTuned::verify.
  Verification verify(const Problem& problem, std::uint64_t seed = 2) const {
    return core_->verify(to_values(problem), seed);
  }

  /// As DynamicTuned::with_config.
  Tuned with_config(const Config& config) const {
    Tuned fixed = *this;
    fixed.core_ = core_->with_config(to_values(config));
    return fixed;
  }

  /// As DynamicTuned::symbol.
  template <class T>
  void symbol(std::string name, const T& data) const {
    core_->set_symbol(std::move(name), detail::bytes_of(data));
  }

  /// The workspace that launches of a problem need. Makes the problem ready.
  WorkspaceSize workspace_size(const Problem& problem) const {
    return core_->workspace_size(*core_->at(values_of(problem)), to_values(problem));
  }
  /// As DynamicTuned::use_workspace.
  void use_workspace(Stream stream, void* memory, const WorkspaceSize& size) const {
    core_->use_workspace(stream, memory, size);
  }
  /// As DynamicTuned::release_workspace.
  void release_workspace(Stream stream) const { core_->release_workspace(stream); }

 private:
  friend Region;
  friend Runtime;

  Tuned(std::shared_ptr<detail::HandleCore> core,
        const Kernel<Config, Problem, void(Args...)>& kernel)
      : core_(std::move(core)),
        launch_(kernel.launch),
        problem_(kernel.problem),
        bucket_(kernel.bucket) {}

  auto values_of(const Problem& problem) const {
    return to_values(bucket_ ? bucket_(problem) : problem);
  }

  void launch(Stream stream, Args... args) const {
    const Problem problem = problem_(args...);
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))...};
    const auto values = to_values(problem);
    core_->check(values, pointers);
    const detail::Held ready = core_->at(values_of(problem), stream);
    ready->launch(launch_(from_values<Config>(ready->config), problem, core_->limits()), values,
                  stream, pointers);
  }

  std::shared_ptr<detail::HandleCore> core_;
  TypedLaunchRule<Config, Problem> launch_;
  Problem (*problem_)(Args...);
  Problem (*bucket_)(const Problem&);
};

/// A kernel described at run time. The problem is given with each launch; argument types are
/// compared with the definition's, and arguments with the problem where `relations` say so.
class DynamicTuned {
 public:
  /// @throws UserError naming the argument whose type differs from the definition's, the count, or
  /// the argument that contradicts the problem; and what Tuned's launches throw.
  template <class... Args>
  void operator()(Stream stream, const ProblemValues& problem, Args... args) const {
    core_->check(detail::argument_types<Args...>());
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
    launch(stream, problem, pointers);
  }

  /// `args[i]` points to the i-th argument; nothing is checked but the problem's length and
  /// `relations`.
  void launch(Stream stream, const ProblemValues& problem, void** args) const;
  /// As Tuned::at.
  DynamicBound at(const ProblemValues& problem) const;
  /// As Tuned::prepare.
  std::optional<Missing> prepare(const Values& problem) const;
  TuneResult tune(const Values& problem) const;
  TuneResult tune(const Values& problem, const TuneOptions& options) const;
  /// What the store remembers of this problem; nothing is compiled or measured. Nothing when it has
  /// no record, or one of another space.
  std::optional<TuneResult> known(const Values& problem) const;
  /// Launches, on data of exactly this problem, what is in use for its bucket, else the best that
  /// is known without measuring. Compares the outputs with the reference, or asks the kernel's
  /// check. A kernel that changes an input or writes outside its arrays is wrong. @throws UserError
  /// when the kernel has no workload, or neither reference nor check.
  Verification verify(const Values& problem, std::uint64_t seed = 2) const;
  /// The config in use for a problem, in parameter order.
  Values config(const Values& problem) const;

  /// This kernel with a config of the caller's choice, in parameter order (`space.config({{"block",
  /// 64}})`), for every problem; values outside the space's lists are allowed. Its launches compile
  /// that config if need be and never tune, whatever is on record; `tune` verifies and times it
  /// alone, on the workload's data; nothing is recorded, ranks are not asked. A region launches it,
  /// but does not tune it. It starts with the variables that this handle has been given so far, but
  /// not with memory that `use_workspace` supplied: its workspaces are its own.
  /// @throws UserError when `config` has another number of values; its launches, when it breaks a
  /// constraint for their problem; its `tune`, TuningFailedError when it cannot be used.
  DynamicTuned with_config(const Values& config) const;

  /// Fills a `__constant__` or `__device__` variable of the source (`filter`, `image::filter`) with
  /// `data`, elements in one piece or a value, in every kernel of this handle: those that are
  /// ready, whose launches must have ended, and those that will be. Candidates are measured with
  /// the workload's data. @throws UserError when a kernel has no such variable, or one of another
  /// size; where none is ready yet, when one is made ready.
  template <class T>
  void symbol(std::string name, const T& data) const {
    core_->set_symbol(std::move(name), detail::bytes_of(data));
  }

  /// As Tuned::workspace_size.
  WorkspaceSize workspace_size(const ProblemValues& problem) const;
  /// Launches of this handle on this stream take the program's memory as their workspace, in place
  /// of the handle's own: `size.total()` bytes, aligned to kWorkspaceAlignment, which must stay
  /// valid as long as launches or graphs use it. The semaphores are set to zero on the stream. The
  /// `max` of several problems' sizes covers all of them; a launch that needs more is a UserError.
  /// The place of the scratch depends on `size`, so graphs that were captured with the same memory
  /// and another size must not be launched any more. Null: the handle's own workspace again; call
  /// this before the stream is destroyed. On the host device it concerns the calling thread's
  /// launches.
  ///
  ///   const auto size = max(k.workspace_size(small), k.workspace_size(large));
  ///   k.use_workspace(stream, pool.allocate(size.total()), size);
  ///
  /// @throws UserError when the memory is not aligned or no device could have this size,
  /// CaptureError while the stream is being captured, EnvironmentError when the device cannot zero
  /// the semaphores
  void use_workspace(Stream stream, void* memory, const WorkspaceSize& size) const;
  /// Frees the workspace that launches of this handle on this stream have had; a program calls it
  /// before it destroys the stream, or before a thread ends that launched on a stream of its own
  /// (CU_STREAM_PER_THREAD). Waits for the stream. Memory that the program has supplied is its own
  /// again. Until it returns nothing else is launched on the stream, and graphs that have captured
  /// launches on it must not be launched any more, unless Runtime::retain keeps what they use. A
  /// later launch gets a new workspace. On the host device, a thread that begins takes over the
  /// workspaces of one that has ended. @throws CaptureError while the stream is being captured
  void release_workspace(Stream stream) const;

 private:
  friend Region;
  friend Runtime;

  explicit DynamicTuned(std::shared_ptr<detail::HandleCore> core) : core_(std::move(core)) {}

  std::shared_ptr<detail::HandleCore> core_;
};

}  // namespace kiln
