#include "kiln/choice.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/choice/maker.hpp"
#include "runtime/choice/switches.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/overdue_calls.hpp"
#include "runtime/serve/problems.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/tune/tuning_session.hpp"
#include "runtime/worker/isolation.hpp"

namespace kiln::detail {

using runtime::ChoiceCall;
using runtime::Contender;
using runtime::Field;

namespace {

/// Of a time limit, for what is tuned by itself. The rest is for the meeting of all alternatives.
constexpr double kShareAlone = 0.8;
constexpr double kLeastSeconds = 0.1;

/// A call of an alternative that may not be captured.
class NotCaptured final : public ChoiceCall {
 public:
  NotCaptured(std::shared_ptr<const ChoiceCall> call, Engine& engine, std::string what)
      : call_(std::move(call)), engine_(engine), what_(std::move(what)) {}

  void operator()(Stream stream, void** args) const override {
    if (engine_.device()->capturing(stream)) throw engine_.captures().counted(what_);
    (*call_)(stream, args);
  }

 private:
  const std::shared_ptr<const ChoiceCall> call_;
  Engine& engine_;
  const std::string what_;
};

class Core final : public ChoiceCore {
 public:
  Core(const Runtime& runtime, ChoiceDescription choice, ChoiceOptions options)
      : engine_(Access::engine(runtime)),
        choice_(std::move(choice)),
        options_(std::move(options)),
        switches_(runtime::read_switches(choice_, options_)),
        workshop_(engine_->workshop(), runtime::Workshop::OwnTurn{}),
        workspaces_(engine_->device()) {
    if (tuning_options(nullptr).ranks)
      throw UserError(
          format("choice {}: ranks cannot agree on a choice; tune it without ranks, or "
                 "have them agree on the kernel alone",
                 choice_.name));
    for (std::size_t i = 0; i < choice_.alternatives.size(); ++i)
      if (switches_.on[i])
        contenders_.push_back(runtime::make_contender(runtime, choice_.operation,
                                                      choice_.alternatives[i], workspaces_));
    if (deterministic_ && contenders_.size() > 1)
      throw UserError(
          format("choice {}: the runtime is deterministic, and {} alternatives take part, whose "
                 "results may differ: leave one, by KILN_CHOOSE_<NAME> or ChoiceOptions",
                 choice_.name, contenders_.size()));
  }

  void launch(Span problem, Stream stream, void** args) override {
    if (const Launchable* known = find(problem)) return call(*known, problem, stream, args);
    refuse_if_sealed(problem, stream);
    const Ready made = obtain(problem, stream);
    call(*made, problem, stream, args);
  }

  void prepare(Span problem) override { obtain(problem, {}); }

  TuneResult tune(Span problem, const TuneOptions* given) override {
    const ProblemValues bucket = choice_.operation.bucketed(problem);
    const Field field = make_field(bucket);
    TuneOptions options = tuning_options(given);
    if (options.ranks)
      throw UserError(format("choice {}: ranks cannot agree on a choice", choice_.name));
    if (switches_.forced) {
      tune_alone_each(field, bucket, &options);
      auto maker = this->maker(field, bucket, options, no_failures());
      TuneResult result = runtime::time_default(workshop_, maker, options);
      result.warnings.push_back(forced_text());
      choose(problem, field, result.winner().config);
      return result;
    }
    TuneResult result = measure(field, bucket, options, given ? given : &options, false);
    decide(bucket, result);
    choose(problem, field, result.winner().config);
    for (const Values& other : known_problems(bucket)) choose(other, field, result.winner().config);
    return result;
  }

  std::optional<TuneResult> known(Span problem) override {
    const ProblemValues bucket = choice_.operation.bucketed(problem);
    const Field field = make_field(bucket);
    auto recall = workshop_.records().recall(field.subject, bucket);
    if (!recall || !recall->same_space) return {};
    return std::move(recall->result);
  }

  ChosenAlternative chosen(Span problem) override {
    const Launchable* known = find(problem);
    const Values config = known ? known->config : obtain(problem, {})->config;
    const ProblemValues bucket = choice_.operation.bucketed(problem);
    const Field field = make_field(bucket);
    const std::lock_guard lock(mutex_);
    const auto text = texts_.find(config);
    return {contenders_[field.place(config).contender]->what().name,
            text == texts_.end() ? std::string() : text->second, switches_.forced};
  }

  std::vector<AlternativeInfo> alternatives(Span problem) override {
    const ProblemValues bucket = choice_.operation.bucketed(problem);
    std::vector<AlternativeInfo> all;
    for (std::size_t i = 0, on = 0; i < choice_.alternatives.size(); ++i) {
      const AlternativeDescription& a = choice_.alternatives[i];
      AlternativeInfo& info =
          all.emplace_back(a.name, a.version, a.numerics, a.capturable, switches_.why_not[i]);
      if (!switches_.on[i]) continue;
      info.version = contenders_[on]->version();
      info.why_not = contenders_[on++]->enter(bucket).why_not;
    }
    return all;
  }

 private:
  /// Valid as long as this object: its problems have no bound.
  const Launchable* find(Span problem) const noexcept {
    ReadSection section;
    return problems_.find(problem, section);
  }

  static void call(const Launchable& known, Span problem, Stream stream, void** args) {
    known.start(known, {}, problem, stream, args);
  }

  TuneOptions tuning_options(const TuneOptions* given) const {
    return engine_->completed(given             ? *given
                              : options_.tuning ? *options_.tuning
                                                : engine_->options().tuning);
  }

  std::string forced_text() const {
    return format("{} forces this alternative: nothing is recorded",
                  switches_.forced_by.empty() ? "ChoiceOptions::choose" : switches_.forced_by);
  }
  std::vector<runtime::CannotRun> no_failures() const {
    return std::vector<runtime::CannotRun>(contenders_.size());
  }
  Field make_field(Span problem) const {
    return runtime::make_field(choice_, contenders_, problem, deterministic_);
  }
  /// Those of a bucket that launches have used.
  std::set<Values> known_problems(const ProblemValues& bucket) const {
    std::set<Values> known;
    for (const Ready& ready : problems_.loaded())
      if (Values problem(ready->problem.begin(), ready->problem.end());
          choice_.operation.bucketed(problem) == bucket)
        known.insert(std::move(problem));
    return known;
  }

  void refuse_if_sealed(Span problem, Stream stream) {
    if (!engine_->serving().sealed() || engine_->device()->capturing(stream)) return;
    if (problems_.find(problem)) return;
    engine_->serving().count_unprepared(false);
    throw UnpreparedError(
        format("choice {} for {}: it was not prepared before the runtime was sealed; a choice has "
               "no stand-in for other problems",
               choice_.name, choice_.operation.describe_problem(problem)),
        engine_->wanted().instance(choice_.operation, problem, {}));
  }

  /// What launches of a new problem use from now on.
  Ready obtain(Span problem, Stream stream) {
    if (engine_->device()->capturing(stream))
      throw engine_->captures().counted(format(
          "choice {} for {}: it cannot be found while the stream is being captured; launch or "
          "prepare it before the capture",
          choice_.name, choice_.operation.describe_problem(problem)));
    const auto outcome = problems_.make(problem, [&]() -> Problems::Made {
      const ProblemValues bucket = choice_.operation.bucketed(problem);
      const Field field = make_field(bucket);
      Values config = settle(field, bucket);
      for (;;) {
        Launchable made = ready(problem, field, config);
        // A tuning may have decided otherwise meanwhile, when this problem was not yet among the
        // known ones.
        const auto now = decided(bucket);
        if (switches_.forced || !now || *now == config) return made;
        config = *now;
      }
    });
    return std::get<Ready>(outcome);
  }

  /// The config of a bucket: what was decided, is on record, or is found now.
  Values settle(const Field& field, const ProblemValues& bucket) {
    const Values& first = field.subject.configs.front();
    if (switches_.forced) return first;
    if (auto known = decided(bucket)) return std::move(*known);
    const TuneOptions options = tuning_options(nullptr);
    const auto recall = workshop_.records().recall(field.subject, bucket);
    const bool answered = recall && runtime::answers(*recall, options, true);
    if (answered || !workshop_.may_measure(true)) {
      if (!recall) return first;  // not decided: another process may tune it
      decide(bucket, recall->result);
      return recall->result.winner().config;
    }
    const TuneOptions* const own = options_.tuning ? &options : nullptr;
    if (field.subject.configs.size() == 1 && is_kernel(field, first)) {
      // It has been verified by its own tuning, and an empty problem has nothing to time.
      const std::lock_guard lock(tuning_);
      tune_alone_each(field, bucket, own);
      return first;
    }
    const TuneResult result = measure(field, bucket, options, own, true);
    const Values winner = result.winner().config;
    if (result.winner().status == CandidateStatus::measured)
      decide(bucket, result);
    else
      note_wrong(bucket, result);
    return winner;
  }

  std::optional<Values> decided(const ProblemValues& bucket) {
    const std::lock_guard lock(mutex_);
    const auto known = decided_.find(bucket);
    return known == decided_.end() ? std::nullopt : std::optional(known->second);
  }
  void decide(const ProblemValues& bucket, const TuneResult& result) {
    note_wrong(bucket, result);
    const std::lock_guard lock(mutex_);
    decided_.insert_or_assign(Values(bucket), result.winner().config);
  }
  void note_wrong(const ProblemValues& bucket, const TuneResult& result) {
    std::set<Values> wrong;
    for (const Candidate& c : result.candidates)
      if (c.status == CandidateStatus::wrong_result || c.status == CandidateStatus::crashed ||
          c.status == CandidateStatus::hung)
        wrong.insert(c.config);
    const std::lock_guard lock(mutex_);
    wrong_.insert_or_assign(Values(bucket), std::move(wrong));
  }

  bool is_kernel(const Field& field, const Values& config) const {
    return contenders_[field.place(config).contender]->what().kernel != nullptr;
  }

  struct Alone {
    std::vector<runtime::CannotRun> failed;  ///< by contender
    runtime::TunedAlone all;                 ///< of all together
  };
  /// Tunes each alternative that is tuned by itself.
  Alone tune_alone_each(const Field& field, const ProblemValues& bucket,
                        const TuneOptions* options) {
    Alone alone{no_failures(), {}};
    for (std::size_t i = 0; i < contenders_.size(); ++i) try {
        if (field.entrances[i].candidates.empty()) continue;
        const runtime::TunedAlone one = contenders_[i]->tune(bucket, options);
        alone.all.complete = alone.all.complete && one.complete;
        alone.all.changed = alone.all.changed || one.changed;
      } catch (const runtime::DeviceLost&) {
        throw;
      } catch (const EnvironmentError& error) {
        alone.failed[i] = {error.what(), true};
      } catch (const Error& error) {
        alone.failed[i] = {error.what(), false};
      }
    return alone;
  }

  runtime::ChoiceMaker maker(const Field& field, const ProblemValues& bucket,
                             const TuneOptions& options, std::vector<runtime::CannotRun> failed) {
    return {field,
            contenders_,
            std::move(failed),
            runtime::KernelMaker(choice_.operation, bucket, engine_->device(), engine_->builder(),
                                 options.seed, workshop_.trusted_references()),
            runtime::candidate_seconds(options.candidate_seconds),
            runtime::tell_of_calls(*engine_, format("choice {} for {}", choice_.name,
                                                    choice_.operation.describe_problem(bucket)))};
  }

  /// First what is tuned by itself, then all candidates in one search, with one final.
  /// @param alone options of the former; null: as launches do
  TuneResult measure(const Field& field, const ProblemValues& bucket, TuneOptions options,
                     const TuneOptions* alone, bool for_launch) {
    const std::lock_guard lock(tuning_);
    const auto start = runtime::Clock::now();
    const double all = options.max_seconds.value_or(0);
    runtime::RecordBook& records = workshop_.records();
    const Key key = records.key(field.subject, bucket);
    const auto versions = records.versions(field.subject);
    const auto recall = records.recall(field.subject, bucket);
    if (!workshop_.may_measure(for_launch)) {
      if (recall) return recall->result;
      throw UserError(format("choice {} for {}: there is no record, and this mode does not tune",
                             choice_.name, choice_.operation.describe_problem(bucket)));
    }
    Alone parts{no_failures(), {}};
    if (!for_launch || !recall || !runtime::answers(*recall, options, for_launch)) {
      TuneOptions part = alone ? *alone : options;
      if (all > 0) part.max_seconds = all * kShareAlone;
      parts = tune_alone_each(field, bucket, alone || all > 0 ? &part : nullptr);
      // What is on record was measured with another config of a kernel.
      if (recall && parts.all.changed) options.retune = true;
    }
    if (all > 0) options.max_seconds = std::max(all - runtime::seconds_since(start), kLeastSeconds);
    auto maker = this->maker(field, bucket, options, std::move(parts.failed));
    TuneResult result = runtime::tune_alone(workshop_, maker, options, for_launch).result;
    if (result.complete && !parts.all.complete) {
      // A kernel that is tuned further may win yet.
      result.complete = false;
      const auto latest = records.recall(field.subject, bucket);
      records.remember(key, field.subject, result, versions, runtime::policy_of(options),
                       latest && latest->faulted);
    }
    for (std::size_t i = 0; i < contenders_.size(); ++i)
      if (const std::string& why = field.entrances[i].why_not; !why.empty())
        result.warnings.push_back(format("{} takes no part: {}", contenders_[i]->what().name, why));
    return result;
  }

  std::set<Values> wrong_of(const ProblemValues& bucket) {
    const std::lock_guard lock(mutex_);
    const auto known = wrong_.find(bucket);
    return known == wrong_.end() ? std::set<Values>() : known->second;
  }

  /// A config of the bucket for launches of an exact problem. Where it cannot do that one, the
  /// first candidate that can, of those that were not wrong.
  Launchable ready(Span problem, const Field& field, const Values& config) {
    std::string why;
    std::optional<Missing> missing;
    const auto tried = [&](const Field& from,
                           const Values& candidate) -> std::optional<Launchable> {
      try {
        return launchable(problem, from, candidate);
      } catch (const runtime::DeviceLost&) {
        throw;
      } catch (const MissingError& error) {
        if (!missing) missing = error.missing();
        if (why.empty()) why = error.what();
      } catch (const Error& error) {
        if (why.empty()) why = error.what();
      }
      return {};
    };
    if (switches_.forced) return launchable(problem, field, config);
    if (auto made = tried(field, config)) return std::move(*made);
    engine_->log(LogLevel::warning,
                 format("choice {} for {}: {} cannot be used, so another candidate is: {}",
                        choice_.name, choice_.operation.describe_problem(problem),
                        field.subject.space.describe(config), why));
    const Field exact = make_field(problem);
    // Those of the winning alternative first: it may call the same thing otherwise here.
    std::vector<Values> candidates = exact.subject.configs;
    std::ranges::stable_partition(candidates, [&](const Values& c) { return c[0] == config[0]; });
    const std::set<Values> wrong = wrong_of(choice_.operation.bucketed(problem));
    for (const Values& candidate : candidates)
      if (!wrong.contains(candidate))
        if (auto made = tried(exact, candidate)) return std::move(*made);
    if (missing) throw MissingError(*missing);
    throw UserError(format("choice {} for {}: no candidate can be used: {}", choice_.name,
                           choice_.operation.describe_problem(problem), why));
  }

  Launchable launchable(Span problem, const Field& field, const Values& config) {
    const auto [index, candidate] = field.place(config);
    Contender& contender = *contenders_[index];
    if (const std::string why = contender.unsupported(problem, engine_->device()->info());
        !why.empty())
      throw UserError(format("alternative {}: {}", contender.what().name, why));
    std::shared_ptr<const ChoiceCall> call = contender.ready(problem, candidate);
    if (!contender.what().capturable)
      call = std::make_shared<const NotCaptured>(
          std::move(call), *engine_,
          format("choice {} for {}: the alternative {} cannot be captured", choice_.name,
                 choice_.operation.describe_problem(problem), contender.what().name));
    {
      const std::lock_guard lock(mutex_);
      texts_.emplace(config, field.subject.space.describe(config));
    }
    Launchable made;
    made.problem.assign(problem.begin(), problem.end());
    made.config = config;
    made.loaded = call.get();
    made.owner = std::move(call);
    made.start = [](const Launchable& self, const Launch&, Span, Stream stream, void** args) {
      (*static_cast<const ChoiceCall*>(self.loaded))(stream, args);
    };
    return made;
  }

  void choose(Span problem, const Field& field, const Values& config) {
    problems_.choose(ready(problem, field, config));
  }

  using Problems = runtime::Problems;

  const std::shared_ptr<Engine> engine_;  ///< the runtime's
  const ChoiceDescription choice_;
  const ChoiceOptions options_;
  const runtime::Switches switches_;
  const bool deterministic_ = engine_->options().deterministic.value_or(false);
  /// The runtime's, but for the turn: a candidate may be a kernel that is tuned when it is tried.
  runtime::Workshop workshop_;
  runtime::Workspaces workspaces_;
  std::vector<std::unique_ptr<Contender>> contenders_;  ///< those that are switched on
  std::mutex tuning_;  ///< one problem at a time: two would disturb each other's clocks
  std::mutex mutex_;   ///< of those below
  std::map<Values, std::set<Values>> wrong_;  ///< configs by bucket, which no launch may have
  std::map<Values, Values> decided_;          ///< configs by bucket
  std::map<Values, std::string> texts_;       ///< of configs in use
  Problems problems_;  ///< exact ones; last, since what it holds uses what is above
};

}  // namespace

std::shared_ptr<ChoiceCore> make_choice_core(const Runtime& runtime, ChoiceDescription description,
                                             ChoiceOptions options) {
  return std::make_shared<Core>(runtime, std::move(description), std::move(options));
}

}  // namespace kiln::detail
