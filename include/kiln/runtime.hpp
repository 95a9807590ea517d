// The entry to Kiln: one device, one store, and the handles made from them.
//
//   kiln::Runtime runtime;  // the CUDA device if there is one, else the host
//   auto add_tuned = runtime.tuned(add);
//   auto out = runtime.array<float>(n);
//   add_tuned({}, out.data(), a.data(), b.data(), n);
//   runtime.synchronize();
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kiln/background.hpp"
#include "kiln/capture.hpp"
#include "kiln/detail/buffer.hpp"
#include "kiln/device.hpp"
#include "kiln/dynamic_choice.hpp"
#include "kiln/handle.hpp"
#include "kiln/manifest.hpp"
#include "kiln/prepare.hpp"
#include "kiln/runtime_metrics.hpp"
#include "kiln/runtime_options.hpp"
#include "kiln/store.hpp"
#include "kiln/tune.hpp"

namespace kiln {

/// One of several problems that are tuned in one go.
struct TuneJob {
  std::variant<DynamicTuned, DynamicChoice> what;  ///< a TunedChoice converts
  Values problem;
  /// How often it is launched, against the other jobs: what a shared budget saves is counted in
  /// launches x seconds. If all are 0, that is not known, and all problems are worth the same.
  double weight = 0;
};

class Runtime;

namespace detail {
struct Access;
}

/// Device memory for `count` elements of T. Move-only; keeps its device alive.
template <class T>
class Array {
 public:
  Array(Array&&) noexcept = default;
  Array& operator=(Array&&) noexcept = default;

  T* data() const noexcept { return static_cast<T*>(buffer_.data()); }
  std::size_t size() const noexcept { return count_; }
  /// Copies the first `from.size()` elements in; waits until they are there.
  void upload(std::span<const T> from) { buffer_.upload(from.data(), from.size_bytes()); }
  /// Copies all elements out, after waiting for the device's default stream.
  std::vector<T> download() const {
    std::vector<T> out(count_);
    buffer_.download(out.data(), count_ * sizeof(T));
    return out;
  }

 private:
  friend Runtime;
  Array(std::shared_ptr<detail::Engine> engine, std::size_t count)
      : buffer_(std::move(engine), count * sizeof(T)), count_(count) {}

  detail::Buffer buffer_;
  std::size_t count_;
};

/// Counts since the runtime was made.
struct RuntimeStatistics {
  std::size_t compiled = 0;  ///< instances that a compiler was asked for
  std::size_t tuned = 0;     ///< problems that were measured
  /// Launches of unprepared problems on the sealed runtime: those that got something else, and
  /// those that were refused.
  std::size_t unprepared_served = 0, unprepared_refused = 0;
  std::size_t provisional = 0;     ///< captured launches that refresh() can exchange
  std::size_t capture_errors = 0;  ///< CaptureErrors that were thrown
  StoreStatistics store;
};

/// Thread-safe. Handles and arrays keep what they need alive, so they may outlive it.
class Runtime {
 public:
  /// Options that were left open are taken from the environment (docs/reference.md).
  /// @throws UserError on an unknown device name, a variable's value that makes no sense, or for
  /// mode frozen without roots; EnvironmentError when that device is not there, a frozen runtime's
  /// root cannot be used, or $KILN_LOG_FILE or $KILN_TRACE cannot be written.
  Runtime();
  explicit Runtime(RuntimeOptions options);

  const DeviceInfo& device() const noexcept;

  /// Makes a handle. Cheap: nothing is compiled or measured before a problem is known.
  template <Reflected Config, Reflected Problem, class... Args>
  Tuned<Config, Problem, void(Args...)> tuned(
      const Kernel<Config, Problem, void(Args...)>& kernel) const {
    if (!kernel.problem) throw UserError("kernel " + kernel.name + ": `problem` is missing");
    return {core(kernel.definition()), kernel};
  }
  DynamicTuned tuned(const KernelDefinition& definition) const;

  /// As DynamicTuned::tune, for each. `max_seconds`, if given, is one budget for all of them. First
  /// each problem gets something to launch: what is on record, else its untuned config, compiled on
  /// all cores. Then each is tuned a little, and after that, again and again, the one that is
  /// expected to gain most per second. Whatever was measured is kept, so the next call goes on from
  /// there. A problem that the budget did not reach has a winner that is `not_tried`, its untuned
  /// config or a neighbour's winner, and stays on it: its launches do not tune. Problems of one
  /// bucket are tuned once if they are of one kernel, and binaries that problems share are compiled
  /// once. The kernels of a choice are problems of the budget as any other; a part of the time is
  /// kept for the meetings of kernels with the other alternatives. Without `max_seconds` each is
  /// tuned in turn, with the limit of the runtime's environment for each. With ranks there is one
  /// agreement on all problems: sharding spreads their candidates over all ranks, and weights have
  /// no effect; choices cannot be among them. The jobs' handles must be this runtime's.
  /// Within a budget, a problem that fails has a result with the reason (TuneResult::failure).
  /// @throws what DynamicTuned::tune throws: with a budget if all problems fail, with ranks when all
  /// else is done; UserError on a weight that is negative or no number, and on a choice with ranks
  std::vector<TuneResult> tune(std::span<const TuneJob> jobs, const TuneOptions& options) const;

  template <class T>
  Array<T> array(std::size_t count) const {
    return Array<T>(engine_, count);
  }
  template <class T>
  Array<T> array(std::span<const T> elements) const {
    Array<T> result(engine_, elements.size());
    result.upload(elements);
    return result;
  }
  template <class T>
  Array<T> array(const std::vector<T>& elements) const {
    return array(std::span<const T>(elements));
  }

  /// Waits for all work on `stream`. @throws EnvironmentError if that work failed.
  void synchronize(Stream stream = {}) const;

  RuntimeStatistics statistics() const;

  /// What has happened so far, under stable names; reads the sizes of the files in the store.
  RuntimeMetrics metrics() const;

  /// While the stream is being captured: what the handles of this runtime have loaded so far, and
  /// their workspaces, stay valid as long as the graph and whatever is instantiated of it, also
  /// when handles and runtime are gone. Call it when all launches of the capture have been made.
  /// With RuntimeOptions::max_problems or max_module_bytes call it right after the capture begins
  /// as well: without that, what the capture has launched may leave before its end. @throws
  /// UserError when the stream is not being captured, EnvironmentError when the driver refuses
  void retain(Stream stream) const;

  /// Makes refreshable launches, those that captured a stand-in or what was provisional, launch
  /// what is now in use for their problem; the graph's other nodes, its topology and all arguments
  /// stay. Later launches of `exec` are affected, so it must not be launched or changed meanwhile.
  /// Where a workspace has to grow, this calls the program's allocator and waits until it is zero,
  /// else it does not wait for the device. What cannot be exchanged is kept and told: a launch of a
  /// problem for which nothing final is in use yet, one with steps, and others that docs/engine.md
  /// lists. @throws UserError when `graph` or `exec` is null, EnvironmentError when the driver does
  /// not list the graph's nodes
  RefreshResult refresh(const InstantiatedGraph& graph) const;

  /// @throws UserError in modes other than background, EnvironmentError if no thread can close it
  TuningWindow window(const WindowOptions& options = {}) const;
  /// Puts in use what the background has found. With ranks collective: for each problem that any of
  /// them has tuned, all use the config that most of them found; what is in use for a problem that
  /// all have given up is final. Launches by other threads get either the old or the new one.
  /// @throws EnvironmentError when a rank fails; then nothing is published, if the communicator has
  /// `settle`, else possibly on some ranks
  CommitReport commit(const CommitOptions& options = {}) const;
  /// Whether all launches get what is final for their problem: none gets an untuned config that
  /// stands in for it (until the problem is launched again, prepared or tuned), nor, in mode
  /// background, what is still to be improved. In mode background with ranks it says what the last
  /// commit() has found, the same on all of them: whether any rank still looked for something then.
  /// So it is false before the first commit, and the next one tells of what was launched since.
  bool settled() const;

  /// The instances that were Missing so far, each once, as `kiln precompile --manifest` takes them:
  /// also those in whose place another config was launched. With $KILN_WANTED they are added to
  /// that file when the runtime and all that was made from it have ended. After them come the
  /// problems that were launched unprepared on the sealed runtime and are not ready yet, without a
  /// config: up to 1024 per handle; kiln_wanted_cut_total counts launches of others.
  Manifest wanted() const;

  /// Makes the manifest's problems ready on all living handles of this runtime: those with the
  /// entry's kernel and types, and of handles with a fixed config those with the entry's. Compiles
  /// distinct instances first, on all cores, then loads, then tunes, one problem after the other.
  /// An entry with a config asks for that instance as well: it is compiled, so that the store has
  /// it. Afterwards launches of problems that are ready neither compile, tune nor load; what is on
  /// a default stays so until the problem is tuned or prepared again. An entry that cannot be
  /// prepared is reported, not thrown. May be called at any time, also on a sealed runtime. With
  /// ranks it is a collective call: every rank makes it with the same manifest, on the same
  /// handles, and all problems are agreed on in one go; with PrepareWork::compile ranks that hold
  /// different records use the defaults.
  /// @throws UserError while another preparation of this runtime is going on, on a limit that is no
  /// number of seconds, or for look_up with ranks where the mode allows to compile;
  /// EnvironmentError when the device is lost
  PrepareReport prepare(const Manifest& manifest, const PrepareOptions& options = {}) const;
  /// The same on a thread of its own. @throws EnvironmentError where no thread can be started,
  /// UserError as prepare()
  Preparation prepare_async(Manifest manifest, PrepareOptions options = {}) const;

  /// From now on no launch compiles, tunes, loads, opens a file, asks other ranks or allocates
  /// device memory for what is not ready; launches of what is ready are as before. What a launch of
  /// any other problem gets depends on `unprepared`: what stands in for it, or a loaded config of
  /// its handle (that of the nearest problem first) whose constraints and limits hold for it, or
  /// UnpreparedError. Such a launch is counted, and wanted() lists its problem. It allocates
  /// nothing, except for kernels with tensor maps or steps, which take some host memory while they
  /// are launched. A function with knobs, called alone or in a region, stands for itself: it is
  /// called with its default knobs, counted, and warned of or refused likewise, but wanted() does
  /// not list it, because no manifest prepares it. Explicit calls (prepare, tune, verify, a
  /// region's tuning) work as before. A launch of what is ready still gets a workspace where its
  /// stream has none (PrepareOptions::streams); `warn` and `error` have the log say so. A launch
  /// that began before may still be at work. Sealing again replaces `unprepared`, and takes in what
  /// has been loaded since. Waits for what searches that have ended left compiling.
  void seal(OnUnprepared unprepared) const;
  /// The same with RuntimeOptions::on_unprepared.
  void seal() const;
  /// Undoes seal(): launches do again what the mode says.
  void unseal() const noexcept;
  bool sealed() const noexcept;

 private:
  friend detail::Access;
  explicit Runtime(std::shared_ptr<detail::Engine> engine);
  std::shared_ptr<detail::HandleCore> core(KernelDefinition definition) const;

  std::shared_ptr<detail::Engine> engine_;
};

}  // namespace kiln
