// What a Runtime is made with: its device and store, and what launches may do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kiln/allocator.hpp"
#include "kiln/background.hpp"
#include "kiln/log.hpp"
#include "kiln/prepare.hpp"
#include "kiln/spans.hpp"
#include "kiln/store.hpp"
#include "kiln/tune.hpp"

namespace kiln {

/// What a launch does for a problem without a record. A record is used in every mode; by ranks in
/// mode background, what they have agreed on, in a commit or a tuning, takes its place.
enum class Mode {
  tune_now,    ///< tune it, then launch
  background,  ///< launch the untuned config, and tune behind the launches while the program allows
               ///< it (kiln/background.hpp). Functions with knobs are not tuned by their calls
  untuned,     ///< launch the untuned config: the cost model's choice where the kernel says so
               ///< (KernelDefinition::untuned_by_cost), otherwise, or if that config
               ///< cannot be had, the default. No launch measures
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
  LogSink log;  ///< empty: to $KILN_LOG_FILE or, with $KILN_LOG_LEVEL, standard error; else silence
  TuneOptions tuning;            ///< of launches that tune; its `ranks` choose together
  std::optional<Mode> mode{};    ///< empty: $KILN_MODE, else by $KILN_TUNE, else tune_now
  BackgroundOptions background;  ///< in mode background
  WhileBusy while_busy = WhileBusy::wait;
  /// 0: $KILN_COMPILE_THREADS, else one per core that this process may use. The ranks of this host
  /// share these cores if a launcher says how many ranks there are.
  unsigned compile_threads = 0;
  /// Multiprocessors of a CUDA device that launches leave free, for communication kernels that run
  /// beside them: what launch rules see as DeviceLimits::reserved_multiprocessors. Records are kept
  /// apart by it. @throws UserError at the runtime's construction when the device has no more
  int reserved_multiprocessors = 0;
  /// The number of processes that compile for threads of one priority, so that a compiler that
  /// crashes, exits or hangs fails one candidate only. Each compiles one instance at a time, starts
  /// when it is needed and ends when it has been idle. 0: this process compiles. Empty:
  /// `$KILN_COMPILE_PROCESSES`; if that is not set, one per core that this process may use, within
  /// the available memory, and 0 with two cores or fewer.
  std::optional<unsigned> compile_processes{};
  /// Compiling processes run only while a core has nothing else to do (SCHED_IDLE). For programs
  /// that serve while others of their kernels are tuned.
  bool background_compiles = false;
  /// What Runtime::seal() without an argument does with launches of unprepared problems. Empty:
  /// `$KILN_ON_UNPREPARED`; if that is not set, `serve`.
  std::optional<OnUnprepared> on_unprepared{};
  /// Bytes of the device's memory that are the program's: data of tunings and of Runtime's
  /// measurements leave this many free. What does not fit is not tried; see docs/engine.md. Arrays
  /// and workspaces of launches are the program's own and may use them. Empty: $KILN_RESERVE
  /// (bytes, or with K, M, G, T), else 0.
  std::optional<std::uint64_t> reserve_bytes{};
  /// The most problems that the handle of a kernel or a choice holds. If launches bring in more, an
  /// eighth of them leaves: about those that have not been launched for the longest time. The next
  /// launch of one is that of a new problem. Problems that Runtime::prepare made ready, a region
  /// has chosen for or a Bound uses, or that are being made or measured stay, as do all when
  /// sealed. Kernels that no problem uses any more are unloaded; but on devices that capture graphs
  /// only where this or max_module_bytes is given: then a graph needs Runtime::retain for what it
  /// launches. 0: no bound. Empty: 65,536.
  std::optional<std::size_t> max_problems{};
  /// The most bytes of binaries that are loaded on the device at a time. If there are more when one
  /// is put in use, by whatever call, problems of all handles leave as above, and their kernels are
  /// unloaded; candidates of tunings count, too, but stay. 0: no bound. Empty: 4 GiB on the host
  /// device; none on devices that capture graphs.
  std::optional<std::uint64_t> max_module_bytes{};
  /// Where candidates run while they are tuned. Empty: `$KILN_ISOLATION`; if that is not set,
  /// `after_fault`.
  std::optional<Isolation> isolation{};
  /// Tuning changes no bit of a result: only those configs of a kernel are tried and used that
  /// compute, bit for bit, what its untuned config computes (KernelDefinition::numerics). With the
  /// same version of Kiln and a like device, results are the same on each rank, in each process,
  /// and before and after tuning. Records are kept apart from others. A kernel that does not say
  /// which of its configs these are runs untuned, and a tuned function with its default knobs. The
  /// untuned config depends on the bucketed problem, so that problems of two buckets may still
  /// differ. Empty: `$KILN_DETERMINISTIC` (1 or 0), else off.
  std::optional<bool> deterministic{};
  /// Where device memory comes from; empty: from the driver, on the host device from the system.
  Allocator allocator{};
  SpanSink spans{};  ///< hears of each piece of work; see spans.hpp
};

}  // namespace kiln
