#include "kiln/region.hpp"

#include <chrono>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/region/runner.hpp"
#include "runtime/region/trials.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/served_handle.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/together/rank_log.hpp"
#include "runtime/together/tune_together.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln {

using detail::Engine;
using detail::format;
using runtime::GuardedLaunches;
using runtime::RankLog;
using runtime::RegionExchange;
using runtime::RegionRunner;
using runtime::RegionTrials;
using runtime::Site;

void Region::launch(const detail::RegionLaunch& launch) {
  if (core_) return core_->launch(launch);
  runtime::Device& device = *launch.handle.engine().device();
  const detail::Held ready(launch.handle, launch.bucket, [&] {
    return device.capturing(launch.stream) ? launch.handle.captured(launch.bucket, launch.stream)
                                           : launch.handle.current(launch.bucket);
  });
  const detail::Tunable what = launch.handle.what();
  const DeviceLimits& limits = device.info().limits;
  ready->launch(what.launch(ready->config, launch.problem, limits).value_or(Launch{}),
                launch.problem, launch.stream, launch.args);
}

void Region::dynamic(const DynamicTuned& handle, Stream stream, const Values& problem,
                     void** args) {
  const ProblemValues bucket = handle.core_->definition().bucketed(problem);
  handle.core_->check(problem, args);
  launch({*handle.core_, bucket, problem, stream, args});
}

void Region::call(const std::shared_ptr<detail::FunctionCore>& function,
                  std::span<const std::int64_t> problem, Stream stream, const Call& call) {
  if (!functions_) functions_ = std::make_shared<detail::FunctionHandles>();
  void* args[] = {const_cast<Call*>(&call)};
  launch({functions_->of(function), problem, problem, stream, args});
}

namespace {

void check(const RegionOptions& options, const RankOptions& together) {
  const auto refuse = [](const std::string& what) { throw UserError("tune_region: " + what); };
  if (options.repeats < 1) refuse(format("`repeats` is {}; at least 1 is needed", options.repeats));
  if (options.calls < 1) refuse(format("`calls` is {}; at least 1 is needed", options.calls));
  if (options.warmup < 0) refuse(format("`warmup` is {}; it must not be negative", options.warmup));
  if (!(options.max_seconds >= 0) || std::isinf(options.max_seconds))
    refuse(format("`max_seconds` is {}; it must be finite and not negative", options.max_seconds));
  if (!(options.candidate_seconds >= 0) || std::isinf(options.candidate_seconds))
    refuse(format("`candidate_seconds` is {}; it must be finite and not negative",
                  options.candidate_seconds));
  if (together.strategy != RankStrategy::replicate)
    refuse(
        format("the strategy `{}` cannot be used for regions, which all ranks run: use replicate",
               to_string(together.strategy)));
}

/// The runs of a region are in step by themselves.
RegionOptions completed(const Engine& engine, RegionOptions options) {
  if (!options.ranks) {
    options.ranks = engine.options().tuning.ranks;
    if (options.ranks) options.together = engine.options().tuning.together;
  }
  options.together.lockstep = false;
  return options;
}

/// One tune_region.
class RegionTuning {
 public:
  RegionTuning(Engine& engine, const std::function<void(Region&)>& region,
               const RegionOptions& options)  // completed
      : engine_(engine),
        options_(options),
        exchange_(options_.ranks.get(), options_.together),
        runner_(engine, region, options_, options_.ranks != nullptr),
        log_(options_.log_folder, options_.name, options_.ranks ? options_.ranks->rank() : 0,
             options_.ranks ? options_.ranks->size() : 1) {
    if (options_.ranks) {
      result_.agreed.rank = options_.ranks->rank();
      result_.agreed.size = options_.ranks->size();
    }
  }

  RegionResult run() {
    const auto start = std::chrono::steady_clock::now();
    // A guard's seconds are for the run, not for waiting for the last rank.
    std::string failure;
    if (options_.together.guard && !exchange_.alone()) failure = all_have_come();
    if (!failure.empty())
      thrown_ = std::make_exception_ptr(EnvironmentError("tune_region: " + failure));
    else
      run_first();
    // Everything from here to the end is one agreement.
    std::unique_lock<std::recursive_mutex> turn;
    if (options_.ranks) turn = options_.ranks->turn();
    if (!failure.empty())
      break_off(failure);
    else if (all_can_go_on())
      choose();
    if (turn) turn.unlock();
    if (!thrown_ || !exchange_.alone()) put_in_use();
    if (thrown_) std::rethrow_exception(thrown_);
    result_.runs = runner_.runs();
    result_.late = runner_.late();
    result_.wall_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(result_);
  }

 private:
  void run_first() {
    try {
      GuardedLaunches launches(options_.together.guard);
      if (const std::string wrong = runner_.discover(launches); !wrong.empty())
        throw UserError(format(
            "tune_region: `check` rejected the first run, before anything was tried: {}", wrong));
    } catch (...) {
      thrown_ = std::current_exception();
    }
    for (const Site& site : runner_.sites())
      log_.line(format("{} is launched {} times in a run", site.describe(), site.launches));
  }

  /// Empty, or why the first run, which has a guard on this rank, cannot begin.
  std::string all_have_come() {
    const auto turn = options_.ranks->turn();
    // A rank without a guard is in all_can_go_on() already, and reads that this rank has failed.
    std::vector<float> told{1, 0, 0};
    if (std::string why = share(told); !why.empty()) return why;
    if (told[0] > 1) return "the call was refused on another rank";
    return told[1] == 0 && told[2] == 0 ? "" : "not all ranks have a guard";
  }

  /// The first run has ended on all ranks, and there is the same number of kernels to choose for on
  /// each.
  bool all_can_go_on() {
    const auto count = static_cast<float>(runner_.sites().size());
    std::vector<float> told{thrown_ ? 1.0F : 0.0F, count, -count};
    if (const std::string failure = share(told); !failure.empty()) {
      break_off(failure);
      return false;
    }
    const float least = -told[2], most = told[1];
    if (told[0] != 0)
      use_defaults(thrown_ ? "the region failed here" : "the region failed on another rank");
    else if (least != most)
      use_defaults(
          format("the region launches {} tunable kernels here, but {} to {} on other ranks", count,
                 least, most));
    return told[0] == 0 && least == most && count > 0;
  }

  void break_off(const std::string& failure) {
    use_defaults(failure);
    result_.agreed.broken = true;
    // Otherwise the other ranks might finish the exchange and wait for this one again.
    options_.ranks->abort({RankFailure::Kind::aborted, {options_.ranks->rank()}, failure});
  }

  /// Empty, or why not all have taken part: a communicator of the caller's may also throw.
  std::string share(std::vector<float>& told) const {
    try {
      exchange_.share(told, 0, deadline_in(options_.together.first_seconds));
    } catch (const std::exception& error) {
      return *error.what() != '\0' ? error.what() : "the communicator failed";
    } catch (...) {
      return "the communicator failed";
    }
    return {};
  }

  void choose() {
    std::vector<runtime::TunableProblem> problems;
    for (const Site& site : runner_.sites()) problems.push_back({site.what(), site.problem});
    TuneOptions tuning;
    tuning.ranks = options_.ranks;
    tuning.together = options_.together;
    tuning.max_evaluations = options_.max_evaluations;
    tuning.seed = options_.seed;
    tuning.retune = options_.retune;
    tuning.stop = options_.stop;
    RegionTrials trials(engine_, runner_, options_, exchange_, log_);
    std::vector<TuneResult> results;
    try {
      results = runtime::tune_together(engine_.workshop(), problems, tuning, trials);
    } catch (...) {  // the others go on without this rank
      thrown_ = std::current_exception();
      use_defaults("the region failed here");
      return;
    }
    thrown_ = trials.thrown();
    result_.end = trials.end();
    if (!trials.default_seconds().empty())
      result_.default_seconds = runtime::median(trials.default_seconds());
    if (!trials.chosen_seconds().empty())
      result_.seconds = runtime::median(trials.chosen_seconds());
    if (results.front().agreed) result_.agreed = *results.front().agreed;
    for (std::size_t s = 0; s < results.size(); ++s) {
      log_.line(runner_.sites()[s].describe());
      log_.result(results[s]);
      result_.sites.push_back({std::move(results[s]), runner_.sites()[s].launches});
    }
  }

  void use_defaults(std::string why) {
    result_.agreed.outcome = RankReport::Outcome::defaults;
    result_.agreed.why = std::move(why);
    engine_.log(LogLevel::warning,
                format("{}: nothing was chosen: {}", options_.name, result_.agreed.why));
    log_.line("nothing was chosen: " + result_.agreed.why);
    for (const Site& site : runner_.sites()) {
      TuneResult tuned = runtime::not_tuned(site.what(), site.problem, engine_.device()->info(),
                                            SearchEnd::stopped, result_.agreed.why);
      tuned.agreed = result_.agreed;
      result_.sites.push_back({std::move(tuned), site.launches});
    }
  }

  /// What was chosen. Where ranks could not choose, what is in use stays, and the defaults are used
  /// where nothing is. What was not measured by one rank alone, or failed, replaces nothing.
  void put_in_use() {
    for (std::size_t s = 0; s < result_.sites.size(); ++s) {
      const Site& site = runner_.sites()[s];
      const TuneResult& tuned = result_.sites[s].tuned;
      const runtime::Ending ending = ending_of(tuned);
      for (const auto& handle : site.handles) try {
          if (runtime::taken_of(ending, is_held(*handle, site.problem)) == runtime::Taken::chosen)
            handle->use(site.problem, tuned.winner().config);
        } catch (const Error& error) {
          engine_.log(LogLevel::warning, format("{}: {}", site.describe(), error.what()));
          agree_anyway(*handle, site.problem, tuned.winner().config);
        }
    }
  }

  /// The other ranks use it, and are not asked again: a launch tries once more to load it.
  void agree_anyway(const detail::TunableHandle& handle, std::span<const std::int64_t> problem,
                    const Values& config) const {
    const auto served = engine_.serving().find(handle);
    if (served && engine_.options().tuning.ranks)
      served->problems().agree(problem, config, runtime::Problems::By::this_rank);
  }

  runtime::Ending ending_of(const TuneResult& tuned) const {
    if (result_.agreed.outcome == RankReport::Outcome::defaults)
      return exchange_.alone() ? runtime::Ending::undecided : runtime::Ending::defaults;
    return runtime::ending_of(tuned, true);
  }

  /// Functions are not served by the runtime: for them nothing is agreed on there.
  bool is_held(const detail::TunableHandle& handle, std::span<const std::int64_t> problem) const {
    const auto served = engine_.serving().find(handle);
    return handle.find(problem) || (served && served->problems().agreed(problem));
  }

  Engine& engine_;
  const RegionOptions options_;
  const RegionExchange exchange_;
  RegionRunner runner_;
  RankLog log_;
  RegionResult result_;
  std::exception_ptr thrown_;
};

/// Takes the place of the first exchange. Whatever the others ask there, they read that this rank
/// has failed, and need not wait for it.
void announce_absence(const RegionOptions& options) noexcept {
  const RegionExchange exchange(options.ranks.get(), options.together);
  if (exchange.alone()) return;
  try {
    const auto turn = options.ranks->turn();
    std::vector<float> told{2, 1, 1};
    exchange.share(told, 0, deadline_in(options.together.first_seconds));
  } catch (...) {  // the communicator has failed, which the others find, too
  }
}

}  // namespace

RegionResult tune_region(const Runtime& runtime, const std::function<void(Region&)>& region,
                         const RegionOptions& options) {
  if (!region) throw UserError("tune_region: the region is empty");
  Engine& engine = *detail::Access::engine(runtime);
  const RegionOptions all = completed(engine, options);
  std::optional<RegionTuning> tuning;
  try {
    check(all, all.together);
    tuning.emplace(engine, region, all);
  } catch (...) {
    announce_absence(all);
    throw;
  }
  return tuning->run();
}

}  // namespace kiln
