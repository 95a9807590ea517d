#include "runtime/together/tune_together.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <map>
#include <type_traits>
#include <utility>

#include "kiln/communicators.hpp"
#include "kiln/detail/format.hpp"
#include "runtime/ranks/drive.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/together/counted_agreement.hpp"
#include "runtime/together/held_places.hpp"
#include "runtime/together/identity.hpp"
#include "runtime/together/likely_costs.hpp"
#include "runtime/together/measuring_together.hpp"
#include "runtime/together/rank_records.hpp"
#include "runtime/together/rank_work.hpp"
#include "runtime/together/rank_workers.hpp"
#include "runtime/together/texts.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln::runtime {

using kiln::detail::format;
using kiln::detail::Tunable;
using ranks::Conclusion;
using ranks::HeldMessage;
using ranks::is_time;
using ranks::kFailed;
using ranks::kUntried;
using ranks::Work;

namespace {

/// Of the time that ranks wait for each other, what finding out the cost of tuning may take.
constexpr double kEstimatePart = 0.25;
constexpr const char* kUnreached = "at least one rank did not get to it";

/// One agreement: what it is about, what it starts from, and what this rank saw meanwhile.
class TogetherRun {
 public:
  TogetherRun(Workshop& workshop, std::span<const TunableProblem> problems,
              const TuneOptions& options, Trials& trials, Communicator& communicator,
              bool for_launch, bool may_measure)
      : workshop_(workshop),
        problems_(problems),
        options_(options),
        trials_(trials),
        communicator_(communicator),
        for_launch_(for_launch),
        may_measure_(may_measure && workshop.may_measure(for_launch)),
        known_(problems.size()),
        recorded_(problems.size()),
        book_(workshop, problems, options),
        lists_(problems.size()),
        records_(problems.size()),
        work_(workshop, problems, lists_, options, trials, communicator.size(), may_measure_),
        workers_(trials, workshop.isolation(), may_measure_ && options.together.lockstep) {}

  std::vector<TuneResult> run() {
    const auto start = std::chrono::steady_clock::now();
    attempt([&] {
      for (std::size_t s = 0; s < problems_.size(); ++s) recall(s);
    });
    Conclusion conclusion;
    const Communicator::Failure failure = ask_which_ranks_have_it();
    if (failure) communicator_.abort(*failure);
    if (failure || refused_) {
      others_wait_ = false;
      if (thrown_) std::rethrow_exception(thrown_);
      conclusion.why = failure ? *failure : *refused_;
      conclusion.broken = failure.has_value();
      warn("uses default configs: " + conclusion.why.describe());
      for (std::size_t s = 0; s < problems_.size(); ++s) list_default(s);
    } else {
      attempt([&] {
        workers_.begin();
        bool all_same = true;
        for (std::size_t s = 0; s < problems_.size(); ++s) {
          list(s);
          all_same = all_same && same(s);
        }
        if (may_measure_ && !all_same)
          turn_ = options_.ranks->size() == 1
                      ? take_turn(workshop_.turn_alone(), options_, workshop_.turn_kind())
                      : take_turn(workshop_.turn(), options_);
      });
      conclusion = agree();
      others_wait_ = false;
      if (thrown_) std::rethrow_exception(thrown_);
    }
    std::vector<TuneResult> results;
    for (std::size_t s = 0; s < problems_.size(); ++s) {
      TuneResult result = same(s) && conclusion.kind != Conclusion::Kind::defaults
                              ? known_[s]->result
                              : compose(s, conclusion);
      result.wall_seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      results.push_back(std::move(result));
    }
    const RankReport report = this->report(conclusion, results);
    for (TuneResult& result : results) result.agreed = report;
    return results;
  }

  /// Whether the other ranks still expect an exchange with this one.
  bool others_wait() const noexcept { return others_wait_; }

  const RankWork& work() const noexcept { return work_; }

 private:
  /// Calls `work`, which may fail on this rank alone: the others hear of it in the next exchange,
  /// and all use defaults. What is the program's own mistake, or a rank's that has no others, is
  /// thrown after that.
  template <class F>
  void attempt(const F& work) {
    const bool alone = communicator_.size() == 1;
    try {
      work();
    } catch (const UserError& error) {
      fail(error.what(), true);
    } catch (const std::exception& error) {
      fail(*error.what() ? error.what() : "it failed", alone);
    } catch (...) {
      fail(kForeignException, alone);
    }
  }
  void fail(const char* why, bool is_thrown) {
    trouble_ = why;
    if (is_thrown) thrown_ = std::current_exception();
  }

  const Tunable& what(std::size_t s) const { return problems_[s].what; }
  Values default_config(std::size_t s) const {
    return workshop_.default_config(what(s), problems_[s].problem);
  }

  // --- what this rank has -----------------------------------------------------------------------

  void recall(std::size_t s) {
    auto known = book_.read(s, for_launch_);
    if (known) work_.heed(s, known->result);
    if (book_.has_faulted(s, known)) workers_.note_fault();
    if (known && known->same_space) recorded_[s] = known->result.winner().config;
    if (!known || (may_measure_ && !answers(*known, options_, for_launch_))) return;
    if (const auto refusal = trials_.make_ready(s, known->result.winner().config, false))
      warn(format("{} {}: the winner on record cannot be used: {}", what(s).name(),
                  what(s).describe_problem(problems_[s].problem), refusal->reason));
    else
      known_[s] = std::move(known);
  }

  /// Ranks that hold the same winners need no list of candidates that has them: records may come
  /// from a search that went further than the list.
  Communicator::Failure ask_which_ranks_have_it() {
    HeldMessage mine;
    mine.retune = may_measure_ && options_.retune;
    mine.refusal.set(trouble_);
    mine.isolation = workers_.wish();
    mine.places = places_of(problems_.size(), [&](std::size_t s) {
      return known_[s] ? line_of(s, known_[s]->result.winner().config) : "";
    });
    mine.recorded = places_of(problems_.size(), [&](std::size_t s) {
      return recorded_[s].empty() ? "" : line_of(s, recorded_[s]);
    });
    std::vector<HeldMessage> all;
    if (auto failure = exchange_held(communicator_, options_.together, mine, all)) return failure;
    workers_.decide(all);
    same_ = held_by_all(all, &HeldMessage::places);
    const auto recorded_by_all = held_by_all(all, &HeldMessage::recorded);
    for (std::size_t s = 0; s < problems_.size(); ++s)
      if (!recorded_by_all[s % HeldMessage::kPlaces]) recorded_[s].clear();
    for (std::size_t r = 0; r < all.size(); ++r) {
      const HeldMessage& theirs = all[r];
      retune_ = retune_ || theirs.retune != 0;
      if (std::string why = theirs.refusal.get(); !why.empty() && !refused_)
        refused_ = {RankFailure::Kind::aborted, {static_cast<int>(r)}, std::move(why)};
      if (std::ranges::find(theirs.places, 0U) != theirs.places.end())
        lacking_ += (lacking_.empty() ? "" : ", ") + std::to_string(r);
    }
    if (retune_) {  // a rank that is asked to measure again needs the others for it
      same_.fill(false);
      for (auto& known : known_) known.reset();
      work_.heed_nothing();
    }
    return {};
  }

  // --- what is asked of all ---------------------------------------------------------------------

  void list_default(std::size_t s) { lists_[s].configs = {default_config(s)}; }

  /// Whether all ranks hold the same winner.
  bool same(std::size_t s) const { return same_[s % HeldMessage::kPlaces]; }

  void list(std::size_t s) {
    if (same(s)) {
      list_default(s);
      const Values& winner = known_[s]->result.winner().config;
      if (winner != default_config(s)) lists_[s].configs.push_back(winner);
      // Ranks need not have the same times.
      const std::size_t count = lists_[s].configs.size();
      records_[s] = {ranks::Times(count, 1.0F), count - 1};
    } else if (may_measure_) {
      lists_[s] = candidate_list(what(s), problems_[s].problem, workshop_.device()->info(),
                                 options_.max_evaluations.value_or(0), options_.seed, recorded_[s]);
      if (known_[s]) records_[s] = record_of(s, known_[s]->result);
    } else {
      list_default(s);
    }
  }

  /// The record in terms of the list; nothing if its winner is not in the list.
  std::optional<ranks::Record> record_of(std::size_t s, const TuneResult& result) const {
    const std::vector<Values>& configs = lists_[s].configs;
    std::map<Values, float> times;
    for (const Candidate& c : result.candidates)
      if (c.status != CandidateStatus::not_tried)
        times[c.config] =
            c.status == CandidateStatus::measured ? static_cast<float>(c.seconds) : kFailed;
    ranks::Record record{ranks::Times(configs.size(), kUntried), configs.size()};
    for (std::size_t i = 0; i < configs.size(); ++i) {
      const auto found = times.find(configs[i]);
      if (found != times.end()) record.times[i] = ranks::sanitized(found->second);
      if (configs[i] == result.winner().config) record.winner = i;
    }
    if (record.answers(configs.size()) && is_time(record.times[record.winner])) return record;
    return {};
  }

  Conclusion agree() {
    ranks::AgreementInput input;
    input.options = options_.together;
    input.compile_threads = static_cast<int>(std::max(1U, workshop_.builder().threads()));
    input.overlap = !workshop_.device()->shares_cpu();
    attempt([&] {
      input.identity = ranks_identity(workshop_, problems_, lists_, options_);
      if (may_measure_) input.store = workshop_.store()->identity().value_or(unseen_store());
      // Other ranks, which have records, wait meanwhile.
      const Deadline enough = deadline_in(kEstimatePart * options_.together.first_seconds);
      for (std::size_t s = 0; s < problems_.size(); ++s)
        input.problems.push_back({lists_[s].configs.size(), records_[s],
                                  costs_of(s, static_cast<unsigned>(input.compile_threads), enough),
                                  lists_[s].launches});
    });
    input.trouble = trouble_;
    if (!trouble_.empty()) {
      warn("uses default configs: " + trouble_);
      input.problems.assign(problems_.size(), {});
      for (std::size_t s = 0; s < problems_.size(); ++s) try {
          list_default(s);
        } catch (...) {  // there is no answer, either
          if (!thrown_) thrown_ = std::current_exception();
        }
    }
    ranks::Tasks tasks;
    tasks.work = [this](const Work& work, Deadline deadline) {
      return keeping_faults([&] { return work_.perform(work, deadline); });
    };
    tasks.save = [this](std::span<const std::size_t> problems, const ranks::Plan& plan) {
      for (const std::size_t s : problems) save(s, plan);
    };
    tasks.log = workshop_.options().log;
    return ranks::agree(communicator_, std::move(input), tasks);
  }

  /// What candidates cost is found by measuring the default: worth it for a large share. Where
  /// there are problems for all ranks most are one rank's as a whole, and other ranks make no data
  /// for them.
  std::vector<ranks::Cost> costs_of(std::size_t s, unsigned compile_threads, Deadline enough) {
    const auto size = static_cast<std::size_t>(communicator_.size());
    const bool sharded = options_.together.strategy == RankStrategy::shard && size > 1;
    const std::size_t candidates = lists_[s].configs.size();
    if (sharded && problems_.size() >= size) return likely_costs(problems_[s], candidates);
    if (!sharded || records_[s] || std::chrono::steady_clock::now() >= enough ||
        candidates < ranks::kShareToEstimate * size * compile_threads)
      return {};
    const MeasuringTogether measuring;
    return told(keeping_faults([&] { return trials_.costs(s, lists_[s].configs, enough); }));
  }

  // --- what came of it --------------------------------------------------------------------------

  /// Makes a result from this rank's own candidates and the times that the ranks agreed on, which
  /// where nothing is measured say only what is ready. `untried_for`: why candidates are untried.
  TuneResult result_of(std::size_t s, const ranks::Record& agreed,
                       const std::string& untried_for) const {
    TuneResult result = empty_result(what(s), problems_[s].problem, workshop_.device()->info());
    result.space = lists_[s].space;
    result.strategy = to_string(options_.together.strategy);
    result.winner_index = agreed.winner;
    bool untried = false;
    for (std::size_t c = 0; c < lists_[s].configs.size(); ++c) {
      Candidate candidate;
      if (const Candidate* seen = work_.seen(s, c)) candidate = *seen;
      candidate.config = lists_[s].configs[c];
      if (may_measure_ && is_time(agreed.times[c])) {
        if (candidate.samples.empty()) candidate.samples = {agreed.times[c]};
        candidate.status = CandidateStatus::measured;
        candidate.seconds = agreed.times[c];
        candidate.reason.clear();
      } else if (std::isfinite(agreed.times[c])) {
        untried = true;
        if (candidate.status == CandidateStatus::measured || candidate.reason.empty()) {
          candidate.status = CandidateStatus::not_tried;
          candidate.reason = untried_for;
        }
      } else if (candidate.status == CandidateStatus::measured ||
                 candidate.status == CandidateStatus::not_tried || candidate.reason.empty()) {
        candidate.status = CandidateStatus::launch_failed;
        candidate.reason = "it failed on another rank";
      }
      result.candidates.push_back(std::move(candidate));
    }
    for (const Version& v : workshop_.records().versions(what(s)))
      result.versions.push_back({v.name, v.value});
    const bool cut = options_.max_evaluations.value_or(0) != 0 && !lists_[s].whole;
    result.complete = !untried && !cut;
    result.end = options_.stop.stop_requested() || !may_measure_ ? SearchEnd::stopped
                 : untried                                       ? SearchEnd::seconds
                 : cut                                           ? SearchEnd::evaluations
                                                                 : SearchEnd::finished;
    trials_.annotate(s, result);
    workers_.warn(result);
    return result;
  }

  TuneResult compose(std::size_t s, const Conclusion& conclusion) const {
    if (conclusion.kind != Conclusion::Kind::defaults) {
      const ranks::Record& agreed = conclusion.plan.records[s];
      if (records_[s] && *records_[s] == agreed) {
        TuneResult result = known_[s]->result;
        result.from_store = true;
        return result;
      }
      return result_of(s, agreed, may_measure_ ? kUnreached : "this mode does not measure");
    }
    TuneResult result = result_of(s, {ranks::Times(lists_[s].configs.size(), kUntried), 0},
                                  "ranks use the defaults: " + conclusion.why.describe());
    result.complete = false;
    result.end = SearchEnd::stopped;
    return result;
  }

  void save(std::size_t s, const ranks::Plan& plan) {
    if (may_measure_ && is_time(plan.picks[s].seconds))
      book_.save(s, result_of(s, plan.records[s], kUnreached), retune_);
  }

  /// The others hear of `work`'s failure, and will all use defaults: so this is kept at once.
  template <class F>
  std::invoke_result_t<const F&> keeping_faults(const F& work) {
    try {
      return work();
    } catch (const TrialLostDevice& lost) {
      try {
        const std::size_t s = lost.problem();
        work_.keep(lost);
        book_.save_fault(s, result_of(s, work_.own(s), "this rank lost its device before"));
      } catch (const std::exception& error) {
        warn(format("what has cost the device is not saved: {}", error.what()));
      }
      throw;
    }
  }

  /// The digest covers what is launched from now on, so that the same plan has the same digest at
  /// any time.
  Digest winners_digest(std::span<const TuneResult> results) const {
    std::string text;
    for (std::size_t s = 0; s < results.size(); ++s) text += line_of(s, results[s].winner().config);
    return sha256(text);
  }

  std::string line_of(std::size_t s, const Values& winner) const {
    return format("{} {} {} {};", text_of({what(s).name()}), text_of(what(s).types()),
                  text_of(problems_[s].problem), text_of(winner));
  }

  RankReport report(const Conclusion& conclusion, std::span<const TuneResult> results) const {
    RankReport report;
    report.rank = communicator_.rank();
    report.size = communicator_.size();
    report.broken = conclusion.broken;
    report.measured = conclusion.measured;
    if (conclusion.kind == Conclusion::Kind::defaults) {
      report.outcome = RankReport::Outcome::defaults;
      report.why = conclusion.why.describe();
      return report;
    }
    report.outcome = RankReport::Outcome::plan;
    report.plan_digest = to_hex(winners_digest(results));
    const auto& picks = conclusion.plan.picks;
    if (std::none_of(picks.begin(), picks.end(),
                     [](const auto& pick) { return is_time(pick.seconds); })) {
      report.outcome = RankReport::Outcome::defaults;
      report.plan_digest.clear();
      report.why = options_.stop.stop_requested()
                       ? format("tuning was stopped on rank {}", report.rank)
                       : "no candidate was measured on every rank: all failed, or the time ran "
                         "out, or another rank was stopped";
      return report;
    }
    if (may_measure_) return report;
    // Nothing was measured, so without a record the plan is the defaults.
    if (std::none_of(records_.begin(), records_.end(), [](const auto& r) { return r; })) {
      report.outcome = RankReport::Outcome::defaults;
      report.why = lacking_.empty() ? "ranks have different records"
                                    : format("no usable record on rank {}", lacking_);
    }
    return report;
  }

  void warn(const std::string& text) const {
    workshop_.log(LogLevel::warning,
                  format("rank {} of {}: {}", communicator_.rank(), communicator_.size(), text));
  }

  Workshop& workshop_;
  std::span<const TunableProblem> problems_;
  const TuneOptions& options_;
  Trials& trials_;
  Communicator& communicator_;
  const bool for_launch_, may_measure_;
  std::vector<std::optional<Recall>> known_;  ///< that answer the request and can be launched
  /// Winners on record, whether or not they answer; then those that all ranks have. Empty: none.
  std::vector<Values> recorded_;
  RankRecords book_;
  std::vector<CandidateList> lists_;
  std::vector<std::optional<ranks::Record>> records_;
  RankWork work_;
  RankWorkers workers_;
  TuningTurn::Hold turn_;
  std::array<bool, HeldMessage::kPlaces> same_{};
  bool retune_ = false;                 ///< some rank is asked to measure again
  std::optional<RankFailure> refused_;  ///< the first rank that takes no part, and why
  std::string lacking_;                 ///< ranks without a record of some subject
  std::string trouble_;                 ///< why this rank cannot take part; empty: it can
  std::exception_ptr thrown_;           ///< the same, where the caller is to get it
  bool others_wait_ = true;
};

}  // namespace

std::vector<TuneResult> tune_together(Workshop& workshop, std::span<const TunableProblem> problems,
                                      const TuneOptions& asked, Trials& trials, bool for_launch,
                                      bool may_measure) {
  if (problems.empty()) return {};
  TuneOptions options = asked;
  if (!options.ranks) options.ranks = std::move(thread_communicators(1).front());
  if (options.ranks->size() > 1 && MeasuringTogether::here())
    throw UserError(
        format("{} cannot be tuned by ranks inside of a measurement: the others are not in it",
               problems.front().what.describe()));
  const auto turn = options.ranks->turn();
  CountedAgreement counted(workshop.telemetry(), problems.front().what.name(), problems.size(),
                           options.ranks->rank());
  try {
    check(options);
    ranks::check(options.together, options.ranks->size());
    if (options.together.guard && !options.together.lockstep && !trials.always_in_step())
      throw UserError("`guard` is for kernels that communicate, which need `lockstep`, too");
  } catch (const UserError& error) {
    refuse(*options.ranks, options.together, error.what());
    throw;
  }
  TogetherRun run(workshop, problems, options, trials, *options.ranks, for_launch, may_measure);
  try {
    std::vector<TuneResult> results = run.run();
    counted.end(*results.front().agreed);
    run.work().count_candidates(workshop.telemetry().counters);
    for (std::size_t s = 0; s < results.size(); ++s) {
      const TuneResult& result = results[s];
      if (run.work().measured(s)) workshop.count_tuned();
      workshop.log(LogLevel::info,
                   format("{} {}: {} by {} of rank {} of {}", result.kernel,
                          problems[s].what.describe_problem(result.problem),
                          result.describe(result.winner()), to_string(result.agreed->outcome),
                          result.agreed->rank, result.agreed->size));
    }
    return results;
  } catch (const std::exception& error) {
    if (run.others_wait())
      options.ranks->abort({RankFailure::Kind::aborted, {options.ranks->rank()}, error.what()});
    throw;
  } catch (...) {
    if (run.others_wait())
      options.ranks->abort(
          {RankFailure::Kind::aborted, {options.ranks->rank()}, kForeignException});
    throw;
  }
}

}  // namespace kiln::runtime
