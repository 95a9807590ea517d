#include "kiln/choice.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/choice/choice_tuner.hpp"
#include "runtime/choice/not_captured.hpp"
#include "runtime/choice/switches.hpp"
#include "runtime/ranks/messages.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/not_for_problem.hpp"
#include "runtime/serve/problems.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/together/measuring_together.hpp"

namespace kiln::detail {

using runtime::ChoiceCall;
using runtime::ChoiceTuner;
using runtime::Contender;
using runtime::Decision;
using runtime::lacks_something_now;
using runtime::NotCaptured;
using runtime::NotForProblem;

namespace {

/// What launches of a problem use, behind its Launchable.
struct InUse {
  std::shared_ptr<const ChoiceCall> call;
  std::string name, text;  ///< as ChosenAlternative
  /// It is used because another one could not be made ready, which may be possible later.
  bool provisional = false;
};

class Core final : public ChoiceCore {
 public:
  Core(const Runtime& runtime, ChoiceDescription choice, ChoiceOptions options)
      : engine_(Access::engine(runtime)),
        choice_(std::move(choice)),
        options_(std::move(options)),
        switches_(runtime::read_switches(choice_, options_,
                                         engine_->options().deterministic.value_or(false))),
        workspaces_(engine_->device()),
        tuner_(*engine_, choice_, contenders_, switches_, tuning_options(nullptr).ranks),
        unprepared_(engine_->workshop().telemetry().counters, choice_.name),
        problems_(engine_->workshop().telemetry().counters.problems.of(choice_.name), bound()) {
    if (!switches_.warning.empty()) engine_->log(LogLevel::warning, switches_.warning);
    for (std::size_t i = 0; i < choice_.alternatives.size(); ++i)
      if (switches_.on[i])
        contenders_.push_back(runtime::make_contender(runtime, choice_.operation,
                                                      choice_.alternatives[i], workspaces_));
  }

  void launch(Span problem, Stream stream, void** args) override {
    {
      ReadSection section;
      if (const Launchable* known = find(problem, section))
        return call(*known, problem, stream, args);
    }
    refuse_if_sealed(problem, stream);
    const Ready made = obtain(problem, stream, true);
    call(*made, problem, stream, args);
  }

  void prepare(Span problem) override {
    problems_.pin(problem);  // before it is held, so that it cannot leave in between
    const Ready known = in_use(problem);
    if (!known || static_cast<const InUse*>(known->loaded)->provisional) obtain(problem, {}, false);
    stay(problem);
  }

  TuneResult tune(Span problem, const TuneOptions* given) override {
    const TuneOptions options = tuning_options(given);
    const auto bucket =
        runtime::tell_if_it_throws(options, [&] { return choice_.operation.bucketed(problem); });
    if (options.ranks) return tune_together(problem, bucket, options);
    Decision decision = tuner_.first_of(bucket);
    runtime::TuneOutcome tuned =
        switches_.forced
            ? runtime::TuneOutcome{time_forced(decision, bucket, options)}
            : tuner_.measure(decision.field, bucket, options, given ? given : &options, false);
    if (runtime::taken_of(tuned.ending, false) != runtime::Taken::chosen)
      return std::move(tuned.result);
    decision.config = tuned.result.winner().config;
    decision.failed = runtime::failed_configs(tuned.result);
    use(problem, bucket, std::move(decision));
    return std::move(tuned.result);
  }

  const ChoiceDescription& description() const noexcept override { return choice_; }
  const Engine& engine() const noexcept override { return *engine_; }
  std::vector<KernelProblem> kernels(Span problem) override {
    return tuner_.kernels(choice_.operation.bucketed(problem));
  }

  TuneResult meet(Span problem, const TuneOptions& options) override {
    const ProblemValues bucket = choice_.operation.bucketed(problem);
    Decision decision = tuner_.first_of(bucket);
    const bool stopped = options.stop.stop_requested();
    TuneResult result =
        stopped ? runtime::not_tuned(decision.field.subject, bucket, engine_->device()->info(),
                                     SearchEnd::stopped, "the run was stopped before it was tried")
        : switches_.forced ? time_forced(decision, bucket, options, ChoiceTuner::Kernels::as_in_use)
                           : tuner_
                                 .measure(decision.field, bucket, options, nullptr, false,
                                          ChoiceTuner::Kernels::as_in_use)
                                 .result;
    decision.failed = runtime::failed_configs(result);
    if (result.winner().status == CandidateStatus::measured) {
      decision.config = result.winner().config;
    } else if (auto recall = tuner_.recall(decision.field, bucket)) {
      decision.config = recall->result.winner().config;
      decision.failed.merge(runtime::failed_configs(recall->result));
      if (recall->same_space) result = std::move(recall->result);
    }
    // Else, as of a kernel that the budget did not reach, launches find what they use.
    if (tuner_.can_launch_at_once(decision, bucket)) use(problem, bucket, std::move(decision));
    return result;
  }

  std::optional<TuneResult> known(Span problem) override {
    const ProblemValues bucket = choice_.operation.bucketed(problem);
    const auto decided = tuner_.decided(bucket);
    Decision first = decided ? *decided : tuner_.first_of(bucket);
    auto recall = tuner_.recall(first.field, bucket);
    if (!recall || !recall->same_space) return {};
    return std::move(recall->result);
  }

  ChosenAlternative chosen(Span problem) override {
    Ready ready = in_use(problem);
    if (!ready) ready = obtain(problem, {}, true);
    const auto& used = *static_cast<const InUse*>(ready->loaded);
    return {used.name, used.text, switches_.forced};
  }

  std::vector<AlternativeInfo> alternatives(Span problem) override {
    const ProblemValues bucket = choice_.operation.bucketed(problem);
    const auto decided = tuner_.decided(bucket);
    std::vector<AlternativeInfo> all;
    for (std::size_t i = 0, on = 0; i < choice_.alternatives.size(); ++i) {
      const AlternativeDescription& a = choice_.alternatives[i];
      AlternativeInfo& info =
          all.emplace_back(a.name, a.version, a.numerics, a.capturable, switches_.why_not[i]);
      if (!switches_.on[i]) continue;
      info.version = contenders_[on]->version();
      info.why_not = decided && decided->by_ranks ? decided->field.entrances[on].why_not
                                                  : contenders_[on]->enter(bucket).why_not;
      ++on;
    }
    return all;
  }

 private:
  using Decided = ChoiceTuner::Decided;
  using Problems = runtime::Problems;

  /// Null also where what was decided could not be made ready.
  const Launchable* find(Span problem, ReadSection& section) const noexcept {
    const Launchable* const known = problems_.find(problem, section);
    return known && known->loaded ? known : nullptr;
  }
  Ready in_use(Span problem) const noexcept {
    Ready known = problems_.find(problem);
    return known && known->loaded ? known : nullptr;
  }

  runtime::ProblemBound bound() {
    const auto release = [this](std::vector<Values>& leaving) {
      if (engine_->serving().sealed()) leaving.clear();
    };
    return {.most = engine_->bounds().max_problems(),
            .may_be_evicted = engine_->bounds().max_module_bytes() != 0,  // with its kernels' pins
            .release = release,
            .counters = &engine_->workshop().telemetry().counters};
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
  /// The problems of a bucket that launches have used.
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
    if (in_use(problem)) return;
    unprepared_.add(false);
    throw UnpreparedError(
        format("choice {} for {}: it was not prepared before the runtime was sealed; a choice has "
               "no stand-in for other problems",
               choice_.name, choice_.operation.describe_problem(problem)),
        engine_->wanted().instance(choice_.operation, problem, {}));
  }

  /// What launches of a new problem use from now on.
  Ready obtain(Span problem, Stream stream, bool by_launch) {
    if (engine_->device()->capturing(stream))
      throw engine_->captures().counted(format(
          "choice {} for {}: it cannot be found while the stream is being captured; launch or "
          "prepare it before the capture",
          choice_.name, choice_.operation.describe_problem(problem)));
    if (may_not_ask(tuning_options(nullptr))) return obtain_decided(problem);
    for (;;) {
      Decided used;
      const auto make = [&]() -> Problems::Made {
        used = settle(choice_.operation.bucketed(problem), tuning_options(nullptr), by_launch);
        if (!used) return Problems::Unmade{};
        return ready(problem, *used);
      };
      const auto when = problems_.find(problem) ? Problems::If::always : Problems::If::not_in_use;
      const Problems::Outcome outcome = make_here_or_wait(problem, make, when);
      if (std::holds_alternative<Problems::Unmade>(outcome)) return best_known(problem);
      Ready made = std::get<Ready>(outcome);
      // A tuning may have decided otherwise meanwhile, when this problem was not yet among the
      // known ones.
      const auto now = used ? tuner_.decided(choice_.operation.bucketed(problem)) : nullptr;
      if (made->loaded && (!now || now == used)) return made;
    }
  }

  /// The thread whose turn it is to tune does not wait for another thread that makes the problem,
  /// because that one may wait for the turn.
  Problems::Outcome make_here_or_wait(Span problem, const Problems::Work& make, Problems::If when) {
    runtime::Workshop& workshop = tuner_.workshop();
    if (!workshop.turn().mine() && !workshop.turn_alone().mine())
      return problems_.make(problem, make, when);
    return problems_.try_make(problem, make, when).value_or(Problems::Unmade{});
  }

  /// Whether this thread is inside a measurement. It may then neither ask the ranks nor wait for a
  /// thread that asks them, because both would wait for this measurement to end.
  static bool may_not_ask(const TuneOptions& options) {
    return options.ranks && options.ranks->size() > 1 && runtime::MeasuringTogether::here();
  }
  UserError cannot_decide(const ProblemValues& bucket) const {
    return UserError(
        format("choice {} for {}: ranks cannot decide on it inside of a measurement: not all of "
               "them are in it",
               choice_.name, choice_.operation.describe_problem(bucket)));
  }

  /// The same without waiting for another thread that makes it.
  Ready obtain_decided(Span problem) {
    const ProblemValues bucket = choice_.operation.bucketed(problem);
    for (;;) {
      const Decided used = tuner_.decided(bucket);
      if (!used) throw cannot_decide(bucket);
      Ready made = problems_.choose(ready(problem, *used));
      stay(problem);
      if (tuner_.decided(bucket) == used) return made;
    }
  }

  /// What launches use until one of them finds an answer: waiting for another process has left this
  /// one no time to tune.
  Ready best_known(Span problem) {
    return std::get<Ready>(
        problems_.stand_in(problem, runtime::Standing::best_known, [&]() -> Problems::Loaded {
          const ProblemValues bucket = choice_.operation.bucketed(problem);
          Decision decision = tuner_.first_of(bucket);
          if (const auto recall = tuner_.recall(decision.field, bucket)) {
            decision.config = recall->result.winner().config;
            decision.failed = runtime::failed_configs(recall->result);
          }
          return ready(problem, decision);
        }));
  }

  bool in_background() const { return engine_->options().mode == Mode::background; }

  /// What was decided for a bucket, is on record, or is found now. Null: the time for that was
  /// spent waiting.
  Decided settle(const ProblemValues& bucket, const TuneOptions& options, bool by_launch) {
    if (auto known = tuner_.decided(bucket)) return known;
    if (options.ranks) return settle_together(bucket, options, by_launch);
    auto decision = std::make_shared<Decision>(tuner_.first_of(bucket));
    if (switches_.forced) return decision;
    runtime::Field& field = decision->field;
    const auto recall = tuner_.workshop().records().recall(field.subject, bucket, options, true);
    const bool answered = recall && runtime::answers(*recall, options, true);
    const TuneOptions* const own = options_.tuning ? &options : nullptr;
    const auto take = [&](const TuneResult& result) {
      decision->config = result.winner().config;
      decision->failed = runtime::failed_configs(result);
    };
    if (answered || !tuner_.workshop().may_measure(true)) {
      const auto known = recall ? recall : tuner_.recall(field, bucket);
      if (!known) return decision;  // not decided: another process may tune it
      take(known->result);
    } else if (tuner_.tuned_by_itself(field, bucket, own)) {
      return decision;
    } else {
      const runtime::TuneOutcome tuned = tuner_.measure(field, bucket, options, own, true);
      if (tuned.ending == runtime::Ending::undecided) return nullptr;
      take(tuned.result);
      if (tuned.ending == runtime::Ending::unusable) return decision;
    }
    // With an alternative that is lacking just now, the next problem may find something else.
    if (lacks_something_now(*decision)) return decision;
    return tuner_.decide(bucket, std::move(*decision));
  }

  /// What this rank remembers is no choice yet: the others may remember something else. A decision
  /// holds: the other ranks do not ask about the bucket again.
  Decided settle_together(const ProblemValues& bucket, const TuneOptions& options, bool by_launch) {
    if (by_launch && in_background() && options.ranks->size() > 1)
      throw UserError(format(
          "choice {} for {}: its ranks have not decided on it, and in the mode background launches "
          "ask no other rank: prepare or tune it on all ranks first",
          choice_.name, choice_.operation.describe_problem(bucket)));
    const auto turn = options.ranks->turn();
    if (auto known = tuner_.decided(bucket)) return known;
    tuner_.throw_if_undecidable(bucket);
    return tuner_.decide(bucket, tuner_.agree(bucket, options, true).decision);
  }

  TuneResult tune_together(Span problem, const ProblemValues& bucket, const TuneOptions& options) {
    if (may_not_ask(options)) throw cannot_decide(bucket);
    const auto turn = options.ranks->turn();
    ChoiceTuner::Agreed agreed = tuner_.agree(bucket, options, false);
    if (!agreed.tuned) {
      // Before it is timed, which may fail on this rank alone.
      use(problem, bucket, agreed.decision);
      const runtime::MeasuringTogether measuring;  // it is not the other ranks' business
      return time_forced(agreed.decision, bucket, options);
    }
    const auto held = tuner_.decided(bucket);
    if (runtime::taken_of(agreed.tuned->ending, held && held->by_ranks) == runtime::Taken::chosen)
      use(problem, bucket, std::move(agreed.decision));
    return std::move(agreed.tuned->result);
  }

  TuneResult time_forced(const Decision& decision, const ProblemValues& bucket,
                         const TuneOptions& options,
                         ChoiceTuner::Kernels kernels = ChoiceTuner::Kernels::tuned) {
    TuneResult result = tuner_.time_first(decision, bucket, options, kernels);
    result.warnings.push_back(forced_text());
    return result;
  }

  /// Launches of a problem, and of all known ones of its bucket, use this from now on. One that
  /// cannot be made ready stays as it was, unless ranks have decided, since others may launch it as
  /// decided: then its next launch tries again. @throws what the first of these threw
  void use(Span problem, const ProblemValues& bucket, Decision decision) {
    const auto decided = std::make_shared<const Decision>(std::move(decision));
    if ((!switches_.forced && !lacks_something_now(*decided)) || decided->by_ranks)
      tuner_.decide(bucket, decided);
    std::set<Values> problems = known_problems(bucket);
    problems.emplace(problem.begin(), problem.end());
    std::exception_ptr failed;
    for (const Values& each : problems) try {
        problems_.choose(ready(each, *decided));
        stay(each);
      } catch (...) {
        if (!failed) failed = std::current_exception();
        if (!decided->by_ranks) continue;
        Launchable not_ready;
        not_ready.problem = each;
        problems_.choose(std::move(not_ready));
      }
    if (failed) std::rethrow_exception(failed);
  }

  /// Keeps what is in use for a pinned problem loaded. It is called after a problem is pinned and
  /// after a launchable is published, so that of two threads at least one sees both.
  void stay(Span problem) const {
    if (!problems_.pinned(problem)) return;
    if (const Ready known = in_use(problem); known && known->loaded)
      static_cast<const InUse*>(known->loaded)->call->stay();
  }

  /// What launches of an exact problem do. If the decided config has failed, or cannot do this
  /// problem, the first candidate that can is used. Ranks switch for no other reason. Without
  /// ranks, what is lacking just now is a reason, too, until the problem is prepared again.
  Launchable ready(Span problem, const Decision& decision) {
    if (switches_.forced) return launchable(problem, decision);
    std::string why = "it has failed";
    bool may_pass = false;
    std::optional<Missing> missing;
    const auto tried = [&](const Decision& candidate) -> std::optional<Launchable> {
      if (decision.failed.contains(candidate.config)) return {};
      const bool first = &candidate == &decision;
      try {
        return launchable(problem, candidate, may_pass);
      } catch (const NotForProblem& error) {
        if (first) why = error.what();
      } catch (const runtime::DeviceLost&) {
        throw;
      } catch (const Error& error) {
        if (decision.by_ranks) throw;
        if (const auto* lacking = dynamic_cast<const MissingError*>(&error); lacking && !missing)
          missing = lacking->missing();
        if (first) why = error.what();
        may_pass = may_pass || first;
      }
      return {};
    };
    if (auto made = tried(decision)) return std::move(*made);
    engine_->log(LogLevel::warning,
                 format("choice {} for {}: {} cannot be used, so another candidate is: {}",
                        choice_.name, choice_.operation.describe_problem(problem),
                        decision.field.subject.space.describe(decision.config), why));
    Decision exact = tuner_.first_of(problem, decision);
    // The winning alternative's come first: it may describe the same candidate differently here.
    std::vector<Values> candidates = exact.field.subject.configs;
    std::ranges::stable_partition(candidates,
                                  [&](const Values& c) { return c[0] == decision.config[0]; });
    for (Values& candidate : candidates) {
      exact.config = std::move(candidate);
      if (auto made = tried(exact)) return std::move(*made);
    }
    if (missing) throw MissingError(*missing);
    throw UserError(format("choice {} for {}: no candidate can be used: {}", choice_.name,
                           choice_.operation.describe_problem(problem), why));
  }

  Launchable launchable(Span problem, const Decision& decision, bool provisional = false) {
    const auto [index, candidate] = decision.field.place(decision.config);
    Contender& contender = *contenders_[index];
    const AlternativeDescription& what = contender.what();
    const std::optional<Values>& kernel = decision.kernels[index];
    if (const std::string why = contender.unsupported(problem, engine_->device()->info());
        !why.empty())
      throw NotForProblem(format("alternative {}: {}", what.name, why));
    // Read before the kernel is loaded, so it is of the source that is loaded or of an earlier one.
    const std::string identity = kernel ? contender.identity(problem) : std::string();
    if (decision.by_ranks && what.kernel && !kernel)
      throw EnvironmentError(
          format("alternative {}: this rank has no config of it to launch", what.name));
    const auto in_use =
        std::make_shared<InUse>(contender.ready(problem, candidate, kernel), what.name,
                                decision.field.subject.space.describe(decision.config),
                                provisional || lacks_something_now(decision));
    if (!what.capturable)
      in_use->call = std::make_shared<const NotCaptured>(
          std::move(in_use->call), *engine_,
          format("choice {} for {}: the alternative {} cannot be captured", choice_.name,
                 choice_.operation.describe_problem(problem), what.name));
    if (problems_.pinned(problem)) in_use->call->stay();
    Launchable made;
    made.problem.assign(problem.begin(), problem.end());
    // What is launched: other fields have other parameters.
    made.config = {decision.config[0]};
    made.config.insert(made.config.end(), candidate.begin(), candidate.end());
    if (kernel) {
      made.config.insert(made.config.end(), kernel->begin(), kernel->end());
      made.config.push_back(static_cast<std::int64_t>(runtime::ranks::short_digest(identity)));
    }
    made.loaded = in_use.get();
    made.owner = in_use;
    made.start = [](const Launchable& self, const Launch&, Span, Stream stream, void** args) {
      (*static_cast<const InUse*>(self.loaded)->call)(stream, args);
    };
    return made;
  }

  const std::shared_ptr<Engine> engine_;  ///< the runtime's
  const ChoiceDescription choice_;
  const ChoiceOptions options_;
  const runtime::Switches switches_;
  runtime::Workspaces workspaces_;
  std::vector<std::unique_ptr<Contender>> contenders_;  ///< those that are switched on
  runtime::ChoiceTuner tuner_;
  const runtime::UnpreparedLaunches unprepared_;
  Problems problems_;  ///< exact ones; last, since what it holds uses what is above
};

}  // namespace

std::shared_ptr<ChoiceCore> make_choice_core(const Runtime& runtime, ChoiceDescription description,
                                             ChoiceOptions options) {
  return std::make_shared<Core>(runtime, std::move(description), std::move(options));
}

}  // namespace kiln::detail
