// How a choice decides what launches of a bucket use.
#include <exception>
#include <optional>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/choice/tuned_choice_core.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/together/measuring_together.hpp"

namespace kiln::detail {

using runtime::lacks_something_now;

namespace {

/// Whether this thread is inside a measurement. It may then neither ask the ranks nor wait for a
/// thread that asks them, because both would wait for this measurement to end.
bool may_not_ask(const TuneOptions& options) {
  return options.ranks && options.ranks->size() > 1 && runtime::MeasuringTogether::here();
}
UserError cannot_decide(const ChoiceDescription& choice, const ProblemValues& bucket) {
  return UserError(
      format("choice {} for {}: ranks cannot decide on it inside of a measurement: not all of "
             "them are in it",
             choice.name, choice.operation.describe_problem(bucket)));
}
std::string forced_text(const runtime::Switches& switches) {
  return format("{} forces this alternative: nothing is recorded",
                switches.forced_by.empty() ? "ChoiceOptions::choose" : switches.forced_by);
}

}  // namespace

Ready TunedChoiceCore::obtain(Span problem, Stream stream, bool by_launch) {
  if (engine_->device()->capturing(stream))
    throw engine_->captures().counted(
        format("choice {} for {}: it cannot be found while the stream is being captured; launch or "
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

TunedChoiceCore::Problems::Outcome TunedChoiceCore::make_here_or_wait(Span problem,
                                                                      const Problems::Work& make,
                                                                      Problems::If when) {
  runtime::Workshop& workshop = tuner_.workshop();
  if (!workshop.turn().mine() && !workshop.turn_alone().mine())
    return problems_.make(problem, make, when);
  return problems_.try_make(problem, make, when).value_or(Problems::Unmade{});
}

Ready TunedChoiceCore::obtain_decided(Span problem) {
  const ProblemValues bucket = choice_.operation.bucketed(problem);
  for (;;) {
    const Decided used = tuner_.decided(bucket);
    if (!used) throw cannot_decide(choice_, bucket);
    Ready made = problems_.choose(ready(problem, *used));
    stay(problem);
    if (tuner_.decided(bucket) == used) return made;
  }
}

Ready TunedChoiceCore::best_known(Span problem) {
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

TunedChoiceCore::Decided TunedChoiceCore::settle(const ProblemValues& bucket,
                                                 const TuneOptions& options, bool by_launch) {
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

TunedChoiceCore::Decided TunedChoiceCore::settle_together(const ProblemValues& bucket,
                                                          const TuneOptions& options,
                                                          bool by_launch) {
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

TuneResult TunedChoiceCore::tune_together(Span problem, const ProblemValues& bucket,
                                          const TuneOptions& options) {
  if (may_not_ask(options)) throw cannot_decide(choice_, bucket);
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

TuneResult TunedChoiceCore::time_forced(const Decision& decision, const ProblemValues& bucket,
                                        const TuneOptions& options, ChoiceTuner::Kernels kernels) {
  TuneResult result = tuner_.time_first(decision, bucket, options, kernels);
  result.warnings.push_back(forced_text(switches_));
  return result;
}

}  // namespace kiln::detail
