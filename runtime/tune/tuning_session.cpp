#include "runtime/tune/tuning_session.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/support/trace.hpp"
#include "runtime/tune/best_guess.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Winners of other problems and devices that a search tries first.
constexpr std::size_t kStarts = 3;
/// Tunings of other problems and devices that a search learns from.
constexpr std::size_t kTasks = 5;
/// The least that a search gets when waiting used up its budget: enough for the default.
constexpr double kLeastSeconds = 1e-3;
/// The part of a launch's budget that may be spent waiting. A search that begins later would find
/// little, and launches are content with what was found.
constexpr double kMostWaiting = 0.5;

bool has_winner(const TuneResult& result) {
  return result.winner().status == CandidateStatus::measured;
}

/// One call of tune_alone().
class Session {
 public:
  Session(Workshop& workshop, TrialMaker& maker, const TuneOptions& options, bool for_launch)
      : workshop_(workshop),
        maker_(maker),
        subject_(maker.subject()),
        problem_(maker.problem()),
        options_(options),
        for_launch_(for_launch),
        waits_(!for_launch || workshop.options().while_busy == WhileBusy::wait),
        start_(Clock::now()),
        deadline_(waits_
                      ? TimeLimit(options.max_seconds.value_or(0) * (for_launch ? kMostWaiting : 1),
                                  start_)
                      : TimeLimit::already_passed()) {}

  TuneOutcome run(const RecordRead& known) {
    known_ = known.done ? known.recall : recall();
    if (known_ && (answered() || !workshop_.may_measure(for_launch_))) return {known_->result};
    if (!workshop_.may_measure(for_launch_))
      throw UserError(format(
          "{} {}: there is no record, and the modes lookup_only, frozen and collect do not tune",
          subject_.describe(), subject_.describe_problem(problem_)));
    const TuningTurn::Hold turn = take_turn();
    if (!turn) return after_waiting();
    // Another thread may have tuned it meanwhile, or another process may be at it: two searches
    // would disturb each other's clocks. What the other has saved so far is no answer yet, but it
    // renews the wait: only a search that saves nothing for LockTimes::longest is waited for no
    // more.
    cache::WorkLock alone;
    const auto give_up = [&] { return options_.stop.stop_requested() || deadline_.passed(); };
    key_ = workshop_.records().key(subject_, problem_);
    for (;;) {
      known_ = recall();
      const bool may_do = known_ && answered();
      if (may_do && (known_->result.complete || alone.held())) return {known_->result};
      if (alone.held()) break;
      const auto outcome = workshop_.store()->lock(EntryKind::record, key_, alone, give_up);
      left_ = left_ || alone.was_left();
      if (outcome == cache::WorkLock::Outcome::given_up) return after_waiting();
      if (outcome == cache::WorkLock::Outcome::unusable) {
        if (may_do) return {known_->result};
        break;
      }
    }
    return search_on();
  }

 private:
  /// Searches in this process until a candidate has faulted, then in a worker, where the mode says
  /// so. A process that died over this problem has left its lock; a fault that a process survived
  /// is on record.
  TuneOutcome search_on() {
    const bool may_isolate = workshop_.isolation() == Isolation::after_fault;
    faulted_ = left_ || faulted_before() || workshop_.faults().contains(key_.digest);
    const bool isolated = may_isolate && faulted_ && maker_.isolate();
    try {
      return search();
    } catch (const DeviceLost& lost) {
      if (!may_isolate || isolated || !maker_.isolate()) throw;
      // The background may measure on a device that launches nothing.
      const bool own = workshop_.device()->lost();
      workshop_.log(
          LogLevel::warning,
          format("{}; the tuning goes on in a worker{}", lost.what(),
                 own ? ", but this process must be restarted before it launches anything" : ""));
      faulted_ = true;
      known_ = recall();
      try {
        TuneOutcome outcome = search();
        outcome.result.warnings.push_back(
            format("this process has lost {}: {}",
                   own ? "its device and must be restarted" : maker_.device().id, lost.what()));
        return outcome;
      } catch (const EnvironmentError&) {
        throw lost;  // no worker could be used, either
      }
    }
  }

  bool faulted_before() const { return known_ && has_faulted(*known_); }

  std::optional<Recall> recall() const {
    return workshop_.records().recall(subject_, problem_, options_, for_launch_);
  }
  bool answered() const { return answers(*known_, options_, for_launch_); }

  /// Empty if the turn did not come in time.
  TuningTurn::Hold take_turn() {
    auto turn = workshop_.turn_alone().try_take(workshop_.turn_kind());
    if (turn || !waits_) return turn;
    // What is launched if the turn does not come in time is compiled during the wait.
    if (for_launch_) maker_.build(untuned_config(subject_, problem_, workshop_.device()->info()));
    turn = workshop_.turn_alone().take(deadline_, options_.stop, workshop_.turn_kind());
    if (for_launch_ && deadline_.passed()) return {};
    return turn;
  }

  /// Where the turn did not come in time. What was waited for may have been this problem's tuning.
  TuneOutcome after_waiting() {
    if (waits_) known_ = recall();
    if (known_ && answered()) return {known_->result};
    const bool stopped = options_.stop.stop_requested();
    const SearchEnd end = stopped ? SearchEnd::stopped : SearchEnd::seconds;
    TuneResult result =
        known_ ? known_->result
               : not_tuned(subject_, problem_, workshop_.device()->info(), end,
                           stopped ? "the run was stopped before it was tried"
                                   : "the budget was spent waiting for another tuning");
    result.end = end;
    result.wall_seconds = seconds_since(start_);
    return {.result = std::move(result), .ending = Ending::undecided};
  }

  TuneOutcome search() {
    TuneOptions left = options_;  // the wait is a part of the budget
    if (const double all = left.max_seconds.value_or(0); all > 0)
      left.max_seconds = std::max(all - seconds_since(start_), kLeastSeconds);
    versions_ = workshop_.records().versions(subject_);
    // Until it is known which candidate did it: later tunings of this process, if there will be no
    // record.
    if (faulted_) workshop_.faults().add(key_.digest);
    TuneContext context;
    std::optional<TuneResult> prior;
    if (known_ && !options_.retune) context.prior = &prior.emplace(comparable(*known_, options_));
    if (known_) context.incumbent = known_->result.winner().config;
    context.starts = workshop_.records().starting_points(subject_, problem_, kStarts);
    context.evidence = workshop_.records().evidence(subject_, problem_, kTasks);
    context.save = [&](const TuneResult& unfinished) {
      if (!has_winner(unfinished)) return;
      save(completed(unfinished), Of::interim);
      interim_ = unfinished;
    };
    TuneOutcome outcome = tune_or_take_back(left, context);
    TuneResult& result = outcome.result;
    if (!has_winner(result) && known_) {  // stopped too early
      TuneResult stays = known_->result;
      stays.end = SearchEnd::stopped;
      stays.evaluated = result.evaluated;
      return {.result = std::move(stays),
              .ending = Ending::undecided,
              .finals_begun = outcome.finals_begun};
    }
    result.wall_seconds = seconds_since(start_);
    for (const Version& v : versions_) result.versions.push_back({v.name, v.value});
    if (std::string why = workshop_.records().why_not_kept(subject_); !why.empty())
      result.warnings.push_back(std::move(why));
    outcome.ending = ending_of(result, true);
    if (!has_winner(result)) {
      if (interim_) take_back(result);
      return outcome;
    }
    result = completed(std::move(result));
    save(result, Of::whole_run);
    if (result.complete) workshop_.faults().remove(key_.digest);
    if (result.complete && !workshop_.options().store.keep_losers) drop_losers(outcome);
    workshop_.count_tuned();
    tell(result);
    return outcome;
  }

  /// What was saved on the way may turn out to be wrong later, and then answers no launch.
  TuneOutcome tune_or_take_back(const TuneOptions& options, TuneContext& context) try {
    return tune_counted(options, context);
  } catch (const NoneUsable& none) {
    if (interim_) take_back(none.result());
    throw;
  } catch (const OutOfMemory&) {
    take_back_winner();
    throw;
  } catch (const BenchLost&) {
    take_back_winner();
    throw;
  }

  void take_back(const TuneResult& result) const {
    workshop_.records().remember(key_, subject_, result, versions_, policy_of(options_), faulted_);
  }
  /// A search ends like this only where the best so far was rejected.
  void take_back_winner() const {
    if (!interim_) return;
    TuneResult result = *interim_;
    Candidate& winner = result.candidates[result.winner_index];
    winner.status = CandidateStatus::wrong_result;
    winner.reason = "it was rejected after it had been timed";
    winner.samples.clear();
    take_back(result);
  }

  TuneOutcome tune_counted(const TuneOptions& options, TuneContext& context) {
    Telemetry& telemetry = workshop_.telemetry();
    Counters& counters = telemetry.counters;
    context.counters = &counters;
    SpanScope span(&telemetry.spans, "kiln.tune",
                   {{"kernel", subject_.name()}, {"problem", subject_.describe_problem(problem_)}});
    const auto start = Clock::now();
    try {
      TuneOutcome outcome = tune(maker_, options, context);
      counters.tunings.add(to_string(outcome.result.end));
      counters.tuning_seconds.add(seconds_since(start));
      span.set("end", to_string(outcome.result.end));
      span.set("winner", outcome.result.describe(outcome.result.winner()));
      span.end();
      return outcome;
    } catch (...) {
      counters.tunings.add("failed");
      counters.tuning_seconds.add(seconds_since(start));
      throw;
    }
  }

  /// An earlier result is kept until it is measured again.
  TuneResult completed(TuneResult result) const {
    if (known_ && options_.retune) add_missing(result, comparable(*known_, options_));
    return result;
  }

  /// A process that took this search for dead, or went on without the lock, may have written
  /// meanwhile.
  enum class Of { interim, whole_run };
  void save(const TuneResult& found, Of run) const {
    const auto latest = workshop_.records().latest(key_, subject_, problem_, options_, for_launch_);
    // A search that measures anew does not replace an earlier winner before its end.
    const TuneResult result =
        joined(latest, found, options_, options_.retune && run == Of::whole_run);
    // A search that has tried everything in a worker has met the candidate that faulted, or there
    // is none any more.
    const bool faulted = !result.complete && (faulted_ || (latest && latest->faulted));
    workshop_.records().remember(key_, subject_, result, versions_, policy_of(options_), faulted);
  }

  /// Only what this run has compiled: what lay in the store before may be in use. What it has
  /// compiled may be in use, too, because another process has found it there meanwhile.
  void drop_losers(const TuneOutcome& outcome) const {
    std::vector<Values> kept = workshop_.records().in_use(subject_);
    kept.push_back(outcome.result.winner().config);
    kept.push_back(outcome.result.default_candidate().config);
    kept.push_back(untuned_config(subject_, problem_, workshop_.device()->info()));
    for (const auto& [config, digest] : outcome.compiled)
      if (std::find(kept.begin(), kept.end(), config) == kept.end())
        workshop_.store()->drop(EntryKind::binary, digest);
  }

  void tell(const TuneResult& result) const {
    // A caller that asked for a tuning reads the warnings in its result; a launch has no result.
    if (for_launch_)
      for (const std::string& text : result.warnings)
        workshop_.log(LogLevel::warning, subject_.name() + ": " + text);
    workshop_.log(LogLevel::info,
                  format("{} {}: {} ({:.3g} ms, {:.2f} times the default's speed)", subject_.name(),
                         subject_.describe_problem(problem_), result.describe(result.winner()),
                         result.winner().seconds * 1e3, result.speedup()));
  }

  Workshop& workshop_;
  TrialMaker& maker_;
  const detail::Tunable subject_;
  const std::span<const std::int64_t> problem_;
  const TuneOptions& options_;
  const bool for_launch_, waits_;
  const Clock::time_point start_;
  const TimeLimit deadline_;  ///< of waiting
  std::optional<Recall> known_;
  bool left_ = false;                  ///< a process died while it tuned this problem
  bool faulted_ = false;               ///< it died, or lost its device, now or in an earlier tuning
  std::optional<TuneResult> interim_;  ///< what this search has put on record last
  Key key_;                            ///< of the source as it was before the search
  std::vector<Version> versions_;      ///< likewise
};

}  // namespace

TuneOutcome tune_alone(Workshop& workshop, TrialMaker& maker, const TuneOptions& options,
                       bool for_launch, const RecordRead& known) {
  check(options);
  return Session(workshop, maker, options, for_launch).run(known);
}

TuneResult time_default(Workshop& workshop, TrialMaker& maker, const TuneOptions& options) {
  check(options);
  const detail::Tunable subject = maker.subject();
  if (!workshop.may_measure(false))
    throw UserError(format("{} {}: the modes lookup_only, frozen and collect do not time anything",
                           subject.describe(), subject.describe_problem(maker.problem())));
  const auto start = Clock::now();
  const auto turn = workshop.turn_alone().take(TimeLimit(options.max_seconds.value_or(0), start),
                                               options.stop, workshop.turn_kind());
  if (!turn)
    return not_tuned(subject, maker.problem(), workshop.device()->info(),
                     options.stop.stop_requested() ? SearchEnd::stopped : SearchEnd::seconds,
                     "another tuning used up the time");
  TuneOptions left;
  left.seed = options.seed;
  left.cold_cache = options.cold_cache;
  left.overlap_launches = options.overlap_launches;
  left.launching = options.launching;
  left.stop = options.stop;
  left.progress = options.progress;
  if (const double all = options.max_seconds.value_or(0); all > 0)
    left.max_seconds = std::max(all - seconds_since(start), kLeastSeconds);
  TuneContext context;
  const Values base = workshop.default_config(subject, maker.problem());
  context.only = {&base, 1};
  context.finals = false;
  TuneResult result = tune(maker, left, context).result;
  result.wall_seconds = seconds_since(start);
  return result;
}

}  // namespace kiln::runtime
