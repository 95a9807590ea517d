#include "runtime/tune/tuner.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/build/build_queue.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/search/strategy.hpp"
#include "runtime/support/infinity.hpp"
#include "runtime/support/logged_span.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/tune/best_guess.hpp"
#include "runtime/tune/candidate_space.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/cost_model.hpp"
#include "runtime/tune/finalists.hpp"
#include "runtime/tune/given.hpp"
#include "runtime/tune/measuring_lane.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Candidates that are measured together. Small, so that a strategy soon hears of its proposals.
constexpr std::size_t kLeastGroup = 4;
/// Seconds between two calls of `save`, and how many times as long as the last one took, since
/// records of many candidates are large.
constexpr double kSaveEvery = 0.25, kSaveShare = 20;
constexpr double kFinalsShare = 0.15;  ///< of a time limit, kept for the final

class TuningRun {
 public:
  TuningRun(TrialMaker& maker, const TuneOptions& options, const TuneContext& context)
      : maker_(maker),
        subject_(maker.subject()),
        problem_(maker.problem()),
        limits_(maker.device().limits),
        default_(subject_.default_config(problem_, maker.device().target, limits_)),
        untuned_(untuned_config(subject_, problem_, maker.device())),
        options_(options),
        context_(context),
        result_(empty_result(subject_, problem_, maker.device())),
        candidates_(result_, subject_.space(), max_seconds_),
        group_(options.max_seconds.value_or(0) > 0
                   ? maker.threads()
                   : std::max<std::size_t>(kLeastGroup, maker.threads())) {}

  TuneOutcome run() {
    check(options_);
    maker_.check();
    const SearchSpace space =
        candidate_space(subject_, problem_, limits_, subject_.configs(problem_, limits_));
    const CostModel model(subject_, problem_, maker_.device());
    candidates_.prefer_by([&model](auto config) { return model.seconds(config); });
    start_search(space, model);
    open_lane();
    try {
      const AtEnd at_end{*this};
      maker_.when_overdue([this](const Overdue& late) { note_overdue(late); });
      search();
      do hold_finals();
      while (winner_is_wrong());
    } catch (const BenchLost& lost) {
      if (!candidates_.decide()) throw;
      end_early(lost.what());
    } catch (const SourceEdited& edited) {
      if (!candidates_.decide()) throw;
      end_early(edited.what());
    } catch (const DeviceLost&) {
      // The next run continues from here, without the config that lost the device.
      result_.complete = false;
      if (context_.save) save_with(candidates_.decide().value_or(0));
      throw;
    }
    conclude();
    return {.result = std::move(result_),
            .module = winner_ && lane_ ? lane_->module_of(*winner_) : nullptr,
            .compiled = std::move(compiled_),
            .finals_begun = lane_ && lane_->finals_have_begun()};
  }

 private:
  /// Whatever ends the search, its candidates are counted, and it is told nothing more.
  struct AtEnd {
    const TuningRun& run;
    ~AtEnd() {
      run.maker_.when_overdue({});
      if (run.context_.counters)
        count_outcomes(run.result_, run.built_before_, *run.context_.counters);
    }
  };

  /// On another thread, while this run's waits in the call: nothing here changes meanwhile. What
  /// may never return is on record before the process is ended.
  void note_overdue(const Overdue& late) {
    if (late.returned) return;
    if (const auto index = candidates_.find(late.config); late.rejected && index) {
      candidates_.reject(*index, CandidateStatus::hung,
                         format("it had not ended after {:.3g} s, and {:.3g} s is the limit",
                                late.seconds, late.limit));
      if (const auto winner = candidates_.decide(); winner && context_.save) save_with(*winner);
    }
    tell({.evaluated = evaluated_, .overdue = late.text, .overdue_seconds = late.seconds});
  }

  /// The result is what was found so far; a later run continues from there.
  void end_early(const char* why) {
    result_.end = SearchEnd::stopped;
    result_.complete = false;
    result_.warnings.insert(result_.warnings.begin(),
                            format("the tuning ended before all was tried: {}", why));
  }

  /// The data, and where they are used.
  void open_lane() {
    LoggedSpan span(trace_, "data");
    lane_.emplace(
        maker_, options_, result_, candidates_, trace_,
        [this](auto phase, std::size_t done, std::size_t total) { progress(phase, done, total); });
    if (earlier_leader_) lane_->set_leader(*earlier_leader_);
    result_.verify_seconds += span.end();
  }

  /// Runs while the first candidates compile. Data that a failed reference left half written are
  /// not used again.
  void expect() {
    if (std::exchange(expects_, true)) return;
    LoggedSpan span(trace_, "reference");
    try {
      maker_.expect();
    } catch (...) {
      lane_.reset();
      maker_.drop_bench();
      throw;
    }
    take_warnings();
    result_.verify_seconds += span.end();
  }

  void take_warnings() {
    for (std::string& text : maker_.take_warnings()) result_.warnings.push_back(std::move(text));
  }

  void start_search(const SearchSpace& space, const CostModel& model) {
    LoggedSpan span(trace_, "search", "detail", "start");
    adopt_prior(space);
    if (!context_.only.empty()) {
      result_.strategy = "given";
      strategy_ = std::make_unique<Given>(context_.only);
      const bool wanted =
          std::find(context_.only.begin(), context_.only.end(), default_) != context_.only.end();
      if (wanted || !maker_.has_reference()) first_.push_back(default_);
      return;
    }
    result_.strategy = options_.strategy.empty() ? default_strategy() : options_.strategy;
    const auto predicted = [&model](auto config) { return model.seconds(config); };
    const std::size_t budget = max_evaluations_ - std::min(max_evaluations_, evaluated_);
    strategy_ = make_strategy(result_.strategy,
                              {space, options_.seed, budget, predicted, context_.evidence});
    for (std::size_t i = 0; i < candidates_.size(); ++i)
      if (is_kept(candidates_[i])) strategy_->observe(candidates_[i].config, score(i));
    result_.space = space.count();
    choose_starts(space, model);
    result_.search_seconds += span.end();
  }

  /// The default leads the candidates, whatever is known of it.
  void adopt_prior(const SearchSpace& space) {
    candidates_.add(default_);
    if (!context_.prior || context_.prior->parameters != result_.parameters) return;
    for (const Candidate& c : context_.prior->candidates) {
      if (!is_kept(c) || rejection(c.config)) continue;
      if (c.config == default_ || !context_.only.empty() || space.allowed(c.config))
        candidates_.adopt(c);
      else
        unlisted_.push_back(c);
    }
    const auto winner = candidates_.find(context_.prior->winner().config);
    if (winner && score(*winner) < kInfinity && !candidates_.comes_last(*winner))
      earlier_leader_ = winner;
    const bool timed = context_.prior->count(CandidateStatus::measured) > 0;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_.comes_last(i) && candidates_.gets_more_time(i))
        last_.push_back(candidates_[i].config);
      built_before_.push_back(was_built(candidates_[i]));
      evaluated_ += timed && was_built(candidates_[i]);
      earlier_seconds_ = std::max(earlier_seconds_, candidates_[i].after_seconds);
    }
  }

  /// What runs untuned, so that the answer is never worse than that, however short the time; the
  /// default, then what others suggest. The strategy's own proposals follow.
  void choose_starts(const SearchSpace& space, const CostModel& model) {
    std::vector<Values> starts = context_.starts;
    if (!context_.incumbent.empty()) starts.insert(starts.begin(), context_.incumbent);
    starts.push_back(best_guess(space, model, options_.seed));
    if (untuned_ != default_) first_.push_back(untuned_);
    first_.push_back(default_);
    // A leader from an earlier run sets the pace by which this run's times are compared.
    if (earlier_leader_ && *earlier_leader_ != 0)
      first_.push_back(candidates_[*earlier_leader_].config);
    // The config in use, too, is not measured any more once the author's list has left it out.
    for (Values& config : starts)
      if (space.point(config) && !candidates_.known(config) && space.allowed(config) &&
          std::find(first_.begin(), first_.end(), config) == first_.end())
        first_.push_back(std::move(config));
  }

  void search() {
    const auto lasting = shares_cpu() ? std::nullopt : maker_.lasting_builds();
    BuildQueue queue(
        lasting ? &lasting->crew : nullptr, maker_.threads(),
        lasting
            ? lasting->job
            : [this](
                  const Values& config) { return [this, config] { return maker_.build(config); }; },
        [this](const Values& config) { return subject_.space().describe(config); }, trace_);
    result_.end = SearchEnd::stopped;
    // With a budget, the first build's time decides what else is built: nothing runs beside it.
    if (max_seconds_ > 0 && shares_cpu()) expect();
    while (!options_.stop.stop_requested()) {
      // Where compiling would disturb the clock, nothing compiles while something is measured.
      if (!shares_cpu() || queue.in_flight() == 0) refill(queue);
      if (queue.in_flight() == 0 && searched_) submit_last(queue);
      if (queue.in_flight() == 0) {
        result_.end = searched_ && last_.empty() ? SearchEnd::finished
                      : time_for_build(queue)    ? SearchEnd::evaluations
                                                 : SearchEnd::seconds;
        break;
      }
      progress(TuneProgress::Phase::compile, 0, queue.in_flight());
      expect();
      LoggedSpan span(trace_, "wait for compilers");
      const auto group = take(queue);
      result_.compile_seconds += span.end();
      measure_group(group);
      if (const auto end = limit_reached()) {
        result_.end = *end;
        break;
      }
      save();
    }
    result_.complete = result_.end == SearchEnd::finished && lane_->postponed().empty() &&
                       !candidates_.any_cut_off() && !maker_.may_improve();
    if (result_.end != SearchEnd::stopped) return;
    take_warnings();  // builds that have begun may still be waited for
    lane_->unload();
    maker_.leave_device();
  }

  /// The next to be measured.
  std::vector<BuildQueue::Finished> take(BuildQueue& queue) const {
    // One measured config, and whatever happens later, there is something to keep: without it there
    // is no deadline. A host kernel may end the process as well as a callable may, but after that
    // it runs in a worker.
    if (!lane_->leader())
      return queue.take(shares_cpu() && subject_.kernel() ? group_ : 1, options_.stop);
    if (max_seconds_ == 0 || shares_cpu())
      return queue.take(group_, options_.stop, search_deadline_);
    // What takes long to compile is not waited for, and half of what is left is for measuring.
    return queue.take_any(std::min(kLeastGroup, group_), group_, options_.stop,
                          search_deadline_.halfway());
  }

  void refill(BuildQueue& queue) {
    const std::size_t ahead = shares_cpu() ? group_ : 2 * group_;
    const auto has_room = [&] { return queue.in_flight() < ahead && !first_goes_alone(queue); };
    while (has_room() && !first_.empty()) {
      const Values config = std::move(first_.front());
      first_.pop_front();
      if (const auto index = candidates_.find(config); index && candidates_.comes_last(*index))
        continue;
      // These two run in any case, an earlier leader costs no evaluation.
      const bool leads = config == default_ || config == untuned_ ||
                         (earlier_leader_ && candidates_.known(config));
      if (leads ||
          (!candidates_.known(config) && left(queue.in_flight()) > 0 && time_for_build(queue)))
        submit(queue, config);
    }
    while (has_room() && !searched_) {
      if (!time_for_build(queue)) return;
      const std::size_t count = std::min(ahead - queue.in_flight(), left(queue.in_flight()));
      if (count == 0) {
        // Finds out whether anything is left to try, because a complete search is not repeated.
        if (queue.in_flight() == 0) searched_ = strategy_->propose(1).empty();
        return;
      }
      LoggedSpan span(trace_, "search");
      const std::vector<Values> proposals = strategy_->propose(count);
      result_.search_seconds += span.end();
      searched_ = proposals.empty();
      for (const Values& config : proposals)
        if (!candidates_.known(config)) submit(queue, config);  // else it will hear of it
    }
  }

  /// One at a time, so that none waits behind it.
  void submit_last(BuildQueue& queue) {
    if (last_.empty() || left(0) == 0 || !time_for_build(queue)) return;
    submit(queue, last_.front());
    last_.pop_front();
  }

  /// With a budget, where builds share the CPU with all else: the default must be there in time,
  /// and how long it takes tells which other builds there is time for.
  bool first_goes_alone(const BuildQueue& queue) const {
    return max_seconds_ > 0 && shares_cpu() && queue.in_flight() > 0 && queue.longest_build() == 0;
  }

  /// A build that would outlast the budget is not begun.
  bool time_for_build(const BuildQueue& queue) const {
    return search_deadline_.left() >= queue.longest_build();
  }

  /// A config that can be refused without compiling it is not compiled.
  void submit(BuildQueue& queue, const Values& config) {
    const std::size_t index = candidates_.add(config);
    if (auto refused = rejection(config)) {
      candidates_.reject(index, refused->first, std::move(refused->second));
      strategy_->observe(config, kInfinity);
    } else {
      queue.submit(index, config);
    }
  }

  void measure_group(std::span<const BuildQueue::Finished> group) {
    std::vector<std::size_t> fresh;
    for (const BuildQueue::Finished& finished : group) {
      if (!was_built(candidates_[finished.id])) fresh.push_back(finished.id);
      if (finished.build.compiled && finished.build.binary())
        compiled_.emplace_back(candidates_[finished.id].config, finished.build.key.digest);
    }
    lane_->measure_group(group, search_deadline_);
    const auto& postponed = lane_->postponed();
    for (const std::size_t index : fresh)
      if (std::find(postponed.begin(), postponed.end(), index) != postponed.end())
        strategy_->observe(candidates_[index].config, kInfinity);
    std::erase_if(fresh, [this](std::size_t index) { return !was_built(candidates_[index]); });
    for (const std::size_t index : fresh) {
      candidates_[index].after_seconds = earlier_seconds_ + seconds_since(start_);
      strategy_->observe(candidates_[index].config, score(index));
    }
    evaluated_ += fresh.size();
    result_.evaluated += fresh.size();
  }

  /// Evaluations that may still be planned.
  std::size_t left(std::size_t planned) const {
    if (max_evaluations_ == 0) return std::numeric_limits<std::size_t>::max();
    return max_evaluations_ - std::min(max_evaluations_, evaluated_ + planned);
  }

  std::optional<SearchEnd> limit_reached() const {
    if (options_.stop.stop_requested()) return SearchEnd::stopped;
    if (const auto best = lane_->leader();
        best && options_.target_seconds > 0 && score(*best) <= options_.target_seconds)
      return SearchEnd::target;
    if (search_deadline_.passed()) return SearchEnd::seconds;
    return {};
  }

  std::optional<std::pair<CandidateStatus, std::string>> rejection(const Values& config) const {
    if (const Constraint* broken = subject_.space().violated(config, problem_, limits_))
      return {{CandidateStatus::violates_constraint, broken->reason}};
    std::string impossible = subject_.launch_obstacle(config, problem_, limits_);
    if (!impossible.empty()) return {{CandidateStatus::exceeds_limits, std::move(impossible)}};
    return {};
  }

  /// Those near the best meet the untuned config, the default and the config in use.
  void hold_finals() {
    if (!context_.finals || candidates_.ranked().size() < 2 || result_.end == SearchEnd::stopped)
      return;
    const std::optional<std::size_t> leading[]{candidates_.find(untuned_), 0,
                                               candidates_.find(context_.incumbent)};
    const Finalists finalists = choose_finalists(candidates_, leading);
    const TimeLimit deadline(max_seconds_, start_);
    expect();
    winner_ = lane_->hold_finals(finalists.leading, finalists.others, deadline);
    if (!lane_->finals_were_stopped()) return;
    // The pick is the best so far; the next run holds the finals again.
    result_.end = SearchEnd::stopped;
    result_.complete = false;
  }

  bool winner_is_wrong() {
    const auto winner = winner_ ? winner_ : candidates_.decide();
    if (!winner || lane_->still_right(*winner, {max_seconds_, start_})) return false;
    winner_.reset();
    return true;
  }

  void conclude() {
    Candidate& base = candidates_[0];
    if (base.status == CandidateStatus::not_tried && base.reason.empty())
      base.reason = "the run was stopped before it was tried";
    else if (base.status != CandidateStatus::measured && base.status != CandidateStatus::not_tried)
      result_.warnings.push_back(
          format("the default config {} cannot be used: {}", result_.describe(base), base.reason));
    take_warnings();
    if (!winner_) winner_ = candidates_.decide();
    if (!winner_ && lane_ && !lane_->postponed().empty())
      throw OutOfMemory(format("{} for {}: there is no memory to try any of {} candidates: {}",
                               subject_.describe(), subject_.describe_problem(problem_),
                               candidates_.size(), candidates_[lane_->postponed().front()].reason));
    if (!winner_ && result_.end != SearchEnd::stopped) throw NoneUsable(subject_, result_);
    result_.winner_index = winner_.value_or(0);
    finish(result_);
    limit_warnings(result_);
    result_.spans = trace_.take();
    result_.wall_seconds = seconds_since(start_);
  }

  /// Candidates that the author's list has dropped are kept, because it may have them again.
  void finish(TuneResult& result) const {
    drop_untried(result, lane_ ? std::span(lane_->postponed()) : std::span<const std::size_t>());
    result.candidates.insert(result.candidates.end(), unlisted_.begin(), unlisted_.end());
  }

  void save() {
    if (!context_.save || seconds_since(saved_) < std::max(kSaveEvery, kSaveShare * save_seconds_))
      return;
    const auto winner = candidates_.decide();
    if (!winner) return;
    LoggedSpan span(trace_, "save");
    save_with(*winner);
    saved_ = Clock::now();
    save_seconds_ = span.end();
  }

  void save_with(std::size_t winner) const {
    TuneResult so_far = result_;
    so_far.winner_index = winner;
    so_far.end = SearchEnd::stopped;  // as far as the saved record can know
    so_far.complete = false;
    finish(so_far);
    context_.save(so_far);
  }

  bool shares_cpu() const noexcept { return maker_.bench().shares_cpu(); }
  double score(std::size_t index) const { return candidates_.score(index); }
  void progress(TuneProgress::Phase phase, std::size_t done, std::size_t total) const {
    const auto best = lane_ ? lane_->leader() : std::nullopt;
    const double seconds = best ? score(*best) : 0;
    tell({phase, done, total, evaluated_, seconds < kInfinity ? seconds : 0});
  }
  void tell(TuneProgress now) const {
    if (!options_.progress) return;
    now.kernel = subject_.name();
    now.types = subject_.types();
    now.problem_fields = subject_.problem_fields();
    now.problem = problem_;
    options_.progress(now);
  }

  const Clock::time_point start_ = Clock::now();
  TrialMaker& maker_;
  const detail::Tunable subject_;
  const std::span<const std::int64_t> problem_;
  const DeviceLimits& limits_;
  const Values default_;
  const Values untuned_;  ///< the default, where the kernel does not trust its cost model
  const TuneOptions& options_;
  const TuneContext& context_;
  const double max_seconds_ = options_.max_seconds.value_or(0);               ///< 0: no limit
  const std::size_t max_evaluations_ = options_.max_evaluations.value_or(0);  ///< 0: no limit

  TuneResult result_;
  Candidates candidates_;
  TraceLog trace_{subject_.name()};
  std::unique_ptr<Strategy> strategy_;
  std::vector<Candidate> unlisted_;  ///< of an earlier run: they can neither win nor be timed
  std::deque<Values> first_, last_;  ///< to be tried before and after the strategy's proposals
  std::optional<MeasuringLane> lane_;
  std::optional<std::size_t> earlier_leader_, winner_;
  const std::size_t group_;
  const TimeLimit search_deadline_{max_seconds_ * (context_.finals ? 1 - kFinalsShare : 1), start_};
  std::vector<bool> built_before_;  ///< candidates of earlier runs
  std::size_t evaluated_ = 0;       ///< earlier runs' included
  double earlier_seconds_ = 0;      ///< of earlier runs, as far as their candidates tell
  bool searched_ = false;           ///< the strategy has no more
  bool expects_ = false;            ///< what is right is known, as far as a reference tells it
  Clock::time_point saved_{};
  double save_seconds_ = 0;
  std::vector<std::pair<Values, Digest>> compiled_;
};

}  // namespace

TuneOutcome tune(TrialMaker& maker, const TuneOptions& options, const TuneContext& context) {
  return TuningRun(maker, options, context).run();
}

}  // namespace kiln::runtime
