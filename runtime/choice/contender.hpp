// An alternative at work: its candidates for a problem, and what a launch of one of them does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/detail/choice_core.hpp"
#include "kiln/runtime.hpp"
#include "runtime/device/device.hpp"
#include "runtime/device/workspaces.hpp"
#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// What launches of one exact problem do. Safe to use from several threads; takes no lock and
/// allocates nothing by itself.
class ChoiceCall {
 public:
  virtual ~ChoiceCall() = default;
  /// As DynamicTuned::launch.
  virtual void operator()(Stream stream, void** args) const = 0;
  /// From now on what it launches is loaded and stays, whatever the runtime's bounds. May lock and
  /// allocate. @throws as Contender::ready
  virtual void stay() const {}
  /// Gets the workspace that launches on this stream need, where it is the choice's.
  /// @throws as Workspaces::reserve
  virtual void reserve(Stream /*stream*/) const {}
};

/// An alternative's part in one problem.
struct Entrance {
  std::vector<Values> candidates{};  ///< descriptions, best guess first
  std::string why_not{};             ///< if there are none
  bool passing = false;              ///< then: the next attempt may find some
  std::string why_not_first{};       ///< if its best guess is not among them
  std::string identity{};            ///< Contender::identity
  /// With ranks, some of which lack this alternative: what they agree on must not contain it.
  bool left_out = false;
};

/// Why an alternative cannot run; with an empty `why`, it can.
struct CannotRun {
  std::string why{};
  /// Caused by the environment (memory, compiler): a later attempt may succeed.
  bool passing = false;
};

/// The outcome of tuning an alternative by itself.
struct TunedAlone {
  bool complete = true;  ///< its search has ended, so that another one would find nothing else
  bool changed = false;  ///< something else is launched than before
  /// By ranks: the config that a kernel has been given by them, or its default.
  std::optional<Values> kernel{};
  bool empty = false;  ///< by ranks: the kernel launches nothing that could be timed
};

/// Thread-safe. What it was made of must outlive it.
class Contender {
 public:
  using Span = std::span<const std::int64_t>;

  explicit Contender(const detail::AlternativeDescription& what) : what_(what) {}
  virtual ~Contender() = default;

  const detail::AlternativeDescription& what() const noexcept { return what_; }
  /// Why the alternative's author says that it cannot do a problem; else empty. A bucket that it
  /// can do may hold problems that it cannot. @throws what `supports` throws
  std::string unsupported(Span problem, const DeviceInfo& device) const {
    return what_.supports ? what_.supports(problem, device) : std::string();
  }
  /// Includes the version of the library behind it, if there is one.
  virtual std::string version() const { return what_.version; }
  /// Names of a description's values.
  virtual std::vector<std::string> parameters() const { return {}; }
  /// What measurements of a bucket depend on, but for the version, the parameters and the problem.
  virtual std::string identity(Span /*problem*/) const { return {}; }
  /// The handle of a kernel; null: it is none.
  virtual std::shared_ptr<ServedHandle> kernel() const { return {}; }
  /// False of a kernel that the next launch of a bucket would tune.
  virtual bool is_in_use(Span /*bucket*/) const { return true; }
  /// `problem` is a bucket. @throws what `supports` throws
  virtual Entrance enter(Span problem) = 0;
  /// Tunes what is tuned by itself, before this alternative meets the others. With `options` null
  /// as a launch does. With ranks in them a collective of theirs, also where it throws.
  /// @throws as DynamicTuned::tune; with ranks NoneUsable where nothing can be launched, also in
  /// modes that measure nothing
  virtual void tune(Span /*problem*/, const TuneOptions* /*options*/, bool /*for_launch*/,
                    TunedAlone& /*tuned*/) {}
  /// A candidate of the bucket, ready for launches of an exact problem that `unsupported` has no
  /// objection to. Its owner keeps all that it needs, the contender apart. `kernel`: the config of
  /// a kernel; nothing: what the kernel's own handle finds. @throws NotForProblem; another
  /// Error where something is lacking here
  virtual std::shared_ptr<const ChoiceCall> ready(Span problem, Span candidate,
                                                  const std::optional<Values>& kernel) = 0;

 private:
  const detail::AlternativeDescription& what_;
};

/// What stands behind a description. `workspaces` are those of the choice.
std::unique_ptr<Contender> make_contender(const Runtime& runtime, const KernelDefinition& operation,
                                          const detail::AlternativeDescription& what,
                                          Workspaces& workspaces);

}  // namespace kiln::runtime
