// Contextual tuning: several kernels tuned where they run, among each other.
//
//   const auto step = [&](kiln::Region& region) {      // any code; launches go through `region`
//     region(add, stream, x.data(), residual.data(), n);
//     region(norm, stream, y.data(), x.data(), weight.data(), rows, hidden, 1e-5f);
//   };
//   kiln::tune_region(runtime, step);                  // runs it again and again, and chooses
//   kiln::Region region;
//   step(region);                                      // in production: the same, as tuned
//
// For kernels that cannot be timed alone because of their side effects (in-place updates,
// communication), or whose times depend on what runs before them. Such kernels need neither
// workload nor reference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kiln/detail/region_core.hpp"
#include "kiln/handle.hpp"
#include "kiln/runtime.hpp"

namespace kiln {

template <Reflected Knobs, Reflected Problem, class Signature>
class TunedFunction;

/// What a region launches through. One made by default is for production: it launches each kernel
/// with the config that is in use for its problem, untuned where there is no record
/// (Mode::untuned), and never measures. Ranks call tune_region first, which then runs the region
/// once: it alone checks that all ranks have the same on record. For one thread at a time, with any
/// number of streams.
class Region {
 public:
  Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  /// True in the runs of tune_region.
  bool tuning() const noexcept { return core_ != nullptr; }

  /// @throws UserError, EnvironmentError (MissingError) when the kernel cannot be made ready with
  /// the config in use, or when the device refuses that launch; CaptureError as Tuned's launches.
  template <Reflected Config, Reflected Problem, class... Args, class... Actual>
  void operator()(const Tuned<Config, Problem, void(Args...)>& handle, Stream stream,
                  Actual&&... args) {
    detail::Arguments<Args...>::template check<Actual...>();
    if constexpr (detail::Arguments<Args...>::template kMatch<Actual...>)
      typed(handle, stream, static_cast<Args>(args)...);
  }

  /// As above. @throws also UserError naming the argument whose type differs from the definition's.
  template <class... Args>
  void operator()(const DynamicTuned& handle, Stream stream, const Values& problem, Args... args) {
    handle.core_->check(detail::argument_types<Args...>());
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
    dynamic(handle, stream, problem, pointers);
  }

  /// A function with knobs (function.hpp). A region calls neither its `snapshot` nor its `verify`,
  /// but RegionOptions::before and check, and the function may communicate. What a region found is
  /// remembered apart from what tuning it alone found.
  template <Reflected Knobs, Reflected Problem, class... Args>
  void operator()(const TunedFunction<Knobs, Problem, void(Args...)>& function, Stream stream,
                  std::type_identity_t<Args>... args) {
    const Problem problem = function.function_->problem(args...);
    call(function.core_, function.values_of(problem), stream, function.bound(stream, args...).run);
  }

 private:
  friend detail::Access;
  using Call = std::function<void(std::span<const std::int64_t> knobs, Stream)>;

  /// For a run of tune_region.
  Region(detail::RegionCore& core, std::shared_ptr<detail::FunctionHandles> functions)
      : core_(&core), functions_(std::move(functions)) {}

  template <class Config, class Problem, class... Args>
  void typed(const Tuned<Config, Problem, void(Args...)>& handle, Stream stream, Args... args) {
    const Problem problem = handle.problem_(args...);
    const auto values = to_values(problem);
    const auto bucket = handle.values_of(problem);
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))..., nullptr};
    handle.core_->check(values, pointers);
    launch({*handle.core_, bucket, values, stream, pointers});
  }
  void dynamic(const DynamicTuned& handle, Stream stream, const Values& problem, void** args);
  void call(const std::shared_ptr<detail::FunctionCore>& function,
            std::span<const std::int64_t> problem, Stream stream, const Call& call);
  void launch(const detail::RegionLaunch& launch);

  detail::RegionCore* core_ = nullptr;
  std::shared_ptr<detail::FunctionHandles> functions_;  ///< those that were called; or null
};

struct RegionProgress {
  std::size_t runs = 0;             ///< of the region, so far
  std::size_t done = 0, total = 0;  ///< candidates, over all sites
  /// Set while a candidate's launch takes longer than it may (RegionOptions::candidate_seconds):
  /// the site and the config, as text, and how long it has taken so far; `done` and `total` are
  /// then 0. Otherwise empty and 0.
  std::string overdue{};
  double overdue_seconds = 0;
};

struct RegionOptions {
  std::string name = "region";  ///< names log files
  int warmup = 1;               ///< runs of each candidate before it is timed
  int repeats = 3;              ///< timed runs of each candidate
  /// How many times a run calls the region, one call after the other, without waiting in between.
  /// More than 1 where the launches of one call take less time on the device than on the CPU, and
  /// the region is called in a row in production: otherwise each launch is timed on a device that
  /// waits for it. `before` and `check` are called once for all of them.
  int calls = 1;
  /// How many of the best candidates of each site are timed against the default again at the end,
  /// one site after the other, while all other sites are at their best. 0: the first times decide,
  /// which were taken while other sites were being tried as well.
  std::size_t finalists = 3;
  std::size_t max_evaluations = 64;  ///< candidates of each site; 0: as tuning with ranks does
  std::size_t max_runs = 0;          ///< of the region; 0: no limit
  double max_seconds = 0;            ///< wall time; 0: no limit but RankOptions::tune_seconds
  /// Seconds that a launch of a candidate may take, on the calling thread. Nothing can end one that
  /// takes longer; it is reported while it runs, in the log, in `progress` and in the metrics, and
  /// is `hung` if it returns. 0: $KILN_CANDIDATE_SECONDS; if that is not set, a launch is reported
  /// as one of TuneOptions::candidate_seconds is, and not rejected. Waiting for the streams at the
  /// end of a run is reported in the same way.
  double candidate_seconds = 0;
  std::uint64_t seed = 1;  ///< of the choice of candidates
  bool retune = false;     ///< measure again even if the store has an answer

  /// Called before each run, outside of what is timed: resets what the region changes.
  std::function<void()> before{};
  /// Called after each run, when its streams have finished. Returns an empty text if the results
  /// are right, else what is wrong; may throw instead. The candidates of a wrong run are tried
  /// again one by one, until it is known which of them to disqualify. None: nothing is verified.
  std::function<std::string()> check{};

  /// The ranks that choose together; null: those of the runtime, if it has any. Every rank calls
  /// tune_region with the same region, which is run as many times on all of them, so that it may
  /// communicate; a candidate that fails on one rank is skipped by all. Only with the strategy
  /// `replicate`.
  /// `step_seconds` must cover what one run may take longer on one rank than on another.
  std::shared_ptr<Communicator> ranks{};
  RankOptions together{};
  /// Where each rank writes `<name>.rank-<rank>.log`. Empty: $KILN_RANK_LOGS; if that is empty,
  /// too, no logs are written.
  std::filesystem::path log_folder{};
  std::stop_token stop{};  ///< ends it before the next run, from any thread
  /// Called after each run, on the calling thread; while that thread waits in an overdue launch, on
  /// another one.
  std::function<void(const RegionProgress&)> progress{};
};

/// A kernel and a bucketed problem that the region launches. Several launches of the same in one
/// run are one site: they get the same config, and its time is their mean.
struct RegionSite {
  TuneResult tuned;          ///< seconds per launch, in place
  std::size_t launches = 0;  ///< in the first run
};

struct RegionResult {
  std::vector<RegionSite> sites;  ///< in the order of their first launches
  std::size_t runs = 0;           ///< of the region, the first included
  /// Wall time of a run (of all its calls) until its streams are done, median: with all sites at
  /// their defaults, and as chosen. 0: there was no such run.
  double default_seconds = 0, seconds = 0;
  double wall_seconds = 0;
  SearchEnd end = SearchEnd::finished;
  /// Kernels and problems that a later run launched, but not the first: they ran with the config in
  /// use.
  std::vector<std::string> late;
  RankReport agreed;

  bool tuned() const noexcept { return agreed.outcome != RankReport::Outcome::defaults; }
};

/// Runs `region` once to see what it launches (with the configs in use; with ranks, the defaults);
/// chooses from the store if that has an answer for all of it; otherwise runs it again and again.
/// In each run every site that is not done tries one candidate, while the others run at their best
/// so far. The device's clock times the interval around each launch in place; launches on other
/// streams in that interval are part of it. Configs are saved, and used by the handles from then
/// on. If any rank fails, all ranks use the defaults, and RankReport says why.
///
/// Configs that were on record before, on all ranks, stay unless whole runs are faster with those
/// that were found: in the end both take turns, all sites at once.
///
/// A candidate that cannot be launched is replaced by the one in use (with ranks, the default) for
/// that launch, so that the run comes to its end. A site that a run does not launch waits for its
/// turn; after a few runs without it, the rest of its candidates are left out.
///
/// Nesting. When a region calls another one with the same Region, the sites of the inner one belong
/// to the outer one. A tune_region inside a region tunes in the outer one's first run, before
/// anything there is timed, and later finds its answer in the store (so do not ask it to `retune`).
/// Handles launched without the Region are not sites, and tune themselves as usual.
///
/// What the region launches must not be captured: a CaptureError ends the tuning. @throws UserError
/// on options that make no sense, or when `check` refuses the first run; what `region`, `before`,
/// `progress` throw, after all ranks have been told; DeviceLost when a candidate took the device
/// with it.
RegionResult tune_region(const Runtime& runtime, const std::function<void(Region&)>& region,
                         const RegionOptions& options = {});

}  // namespace kiln
