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
#include <vector>

#include "kiln/allocator.hpp"
#include "kiln/detail/buffer.hpp"
#include "kiln/device.hpp"
#include "kiln/handle.hpp"
#include "kiln/log.hpp"
#include "kiln/manifest.hpp"
#include "kiln/store.hpp"
#include "kiln/tune.hpp"

namespace kiln {

/// What a launch does for a problem without a record. A record is used in every mode.
enum class Mode {
  tune_now,     ///< tune it, then launch
  untuned,      ///< launch the untuned config: the cost model's choice where the kernel says so
                ///< (KernelDefinition::untuned_by_cost), else, or if that cannot be had, the
                ///< default; nothing is ever measured
  lookup_only,  ///< as `untuned`, but nothing is compiled either: a binary that no store and no
                ///< bundle has is reported as Missing
  frozen,       ///< as `lookup_only`, from StoreOptions::roots alone: the writable store is neither
                ///< read nor written
  collect  ///< as `lookup_only`, but a launch of what is missing does nothing, leaves its outputs
           ///< as they are, and is noted: after one run of a program Runtime::wanted() has all of
           ///< it
};

/// What a launch of a problem that is not ready does while another thread makes it ready, or while
/// another tuning (of this runtime or of another process on the same store) is going on. With ranks
/// it waits.
enum class WhileBusy {
  wait,  ///< waits for that thread, and launches what it found; waits for another tuning, but for
         ///< half of the budget `tuning.max_seconds` at most. If that ends first, it launches the
         ///< untuned config, compiled during the wait, and a later launch tunes the problem
  use_default  ///< never waits for a tuning: until the problem is ready, launches the untuned
               ///< config, or the winner on record if a region has loaded that
};

struct RuntimeOptions {
  std::string device = "auto";  ///< `auto`, `host`, `cuda`, `cuda:N`, `recorded:FILE`
  StoreOptions store;
  LogSink log;         ///< empty: silence
  TuneOptions tuning;  ///< of launches that tune; its `ranks` choose together in every mode
  Mode mode = Mode::tune_now;
  WhileBusy while_busy = WhileBusy::wait;
  /// 0: one per core that this process may use; with ranks, the ranks of this host share these, if
  /// a launcher says how many ranks there are.
  unsigned compile_threads = 0;
  /// Multiprocessors of a CUDA device that launches leave free, for communication kernels that run
  /// beside them: what launch rules see as DeviceLimits::reserved_multiprocessors. Records are kept
  /// apart by it. @throws UserError at the runtime's construction when the device has no more
  int reserved_multiprocessors = 0;
  /// The number of processes that compile, so that a compiler that crashes, exits or hangs fails
  /// one candidate only. Each compiles one instance at a time, starts when it is needed and ends
  /// when it has been idle. 0: this process compiles. Empty: `$KILN_COMPILE_PROCESSES`; if that is
  /// not set, one per core that this process may use, within the available memory, and 0 with two
  /// cores or fewer.
  std::optional<unsigned> compile_processes{};
  /// Compiling processes run only while a core has nothing else to do (SCHED_IDLE). For programs that
  /// serve while others of their kernels are tuned.
  bool background_compiles = false;
  /// Bytes of the device's memory that are the program's: data of tunings and of Runtime's
  /// measurements leave so many free. What does not fit is not tried; see docs/engine.md. Arrays
  /// and workspaces of launches are the program's own and may use them. Empty: $KILN_RESERVE
  /// (bytes, or with K, M, G, T), else 0.
  std::optional<std::uint64_t> reserve_bytes{};
  /// Where device memory comes from; empty: from the driver, on the host device from the system.
  Allocator allocator{};
};

/// One of several problems that are tuned in one go.
struct TuneJob {
  DynamicTuned kernel;
  Values problem;
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
  StoreStatistics store;
};

/// Thread-safe. Handles and arrays keep what they need alive, so they may outlive it.
class Runtime {
 public:
  /// @throws UserError on an unknown device name, or for mode frozen without roots;
  /// EnvironmentError when that device is not there, or a frozen runtime's root cannot be used.
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

  /// As DynamicTuned::tune, for each in turn; with ranks in one agreement for all, in which
  /// sharding spreads the candidates of all problems over all ranks. Problems of one bucket are
  /// tuned once. The jobs' handles must be this runtime's. @throws what DynamicTuned::tune throws.
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

  /// The instances that were Missing so far, each once, as `kiln precompile --manifest` takes them:
  /// also those in whose place another config was launched.
  Manifest wanted() const;

 private:
  friend detail::Access;
  explicit Runtime(std::shared_ptr<detail::Engine> engine);
  std::shared_ptr<detail::HandleCore> core(KernelDefinition definition) const;

  std::shared_ptr<detail::Engine> engine_;
};

}  // namespace kiln
