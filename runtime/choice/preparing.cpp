// A choice in manifests and on sealed runtimes.
#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/choice/in_use.hpp"
#include "runtime/choice/tuned_choice_core.hpp"
#include "runtime/serve/provisions.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/together/beside_agreement.hpp"

namespace kiln::detail {

using runtime::in_use_of;
using runtime::PreparedChoice;

TunedChoiceCore::~TunedChoiceCore() {
  try {
    for (const auto& [problem, launches] : launched_unprepared())
      if (!engine_->wanted().note(engine_->wanted().instance(choice_, problem), launches))
        ++engine_->workshop().telemetry().counters.wanted_cut;
  } catch (const std::exception&) {  // no memory: the list is shorter
  }
}

TunedChoiceCore::Answer TunedChoiceCore::answer(Span problem) {
  const ProblemValues bucket = choice_.operation.bucketed(problem);
  const TuneOptions options = tuning();
  const auto decided = tuner_.decided(bucket);
  const bool measured = decided && !decided->unmeasured;
  if (options.ranks) return measured ? Answer{true, name_of(*decided)} : Answer{};
  Decision decision = measured ? *decided : tuner_.first_of(bucket);
  if (switches_.forced) return {true, name_of(decision)};
  const auto recall = tuner_.recall(decision.field, bucket);
  if (!recall) return measured ? Answer{true, name_of(*decided)} : Answer{};
  if (!runtime::answers(*recall, options, false)) return {};
  decision.config = recall->result.winner().config;
  return {true, name_of(decision)};
}

std::vector<TunedChoiceCore::KernelOf> TunedChoiceCore::kernels_of(Span problem) {
  std::vector<KernelOf> kernels;
  const ProblemValues bucket = choice_.operation.bucketed(problem);
  for (const auto& contender : contenders_)
    if (auto kernel = contender->kernel(); kernel && !contender->enter(bucket).candidates.empty())
      kernels.push_back({contender->what().name, std::move(kernel)});
  return kernels;
}

PreparedChoice TunedChoiceCore::make_ready(Span problem, const HowReady& how) {
  TuneOptions options = runtime::patient(tuning());
  options.stop = how.stop;
  if (const double own = options.max_seconds.value_or(0); how.max_seconds)
    options.max_seconds = own > 0 ? std::min(own, *how.max_seconds) : *how.max_seconds;
  problems_.pin(problem);
  const ProblemValues bucket = choice_.operation.bucketed(problem);
  PreparedChoice made = options.ranks ? make_ready_together(problem, bucket, options, how)
                                      : make_ready_alone(problem, bucket, options, how.measure);
  stay(problem);
  if (const Ready used = in_use(problem)) {
    made.alternative = in_use_of(*used).name;
    made.config = named_config(*used);
  } else if (made.state != PreparedState::failed) {
    made.state = PreparedState::missing;
  }
  return made;
}

PreparedChoice TunedChoiceCore::make_ready_alone(Span problem, const ProblemValues& bucket,
                                                 const TuneOptions& options, bool measure) {
  const auto decided = tuner_.decided(bucket);
  const bool known = decided && !decided->unmeasured;
  Decision decision = known ? *decided : tuner_.first_of(bucket);
  PreparedChoice made{known ? PreparedState::known : PreparedState::untuned};
  bool decides = false;
  if (switches_.forced) {
    made.state = PreparedState::known;
  } else if (tuner_.is_only_kernel(decision.field)) {
    made.as_its_kernel = true;
  } else {
    Decision recalled = decision;
    const auto recall = tuner_.recall(recalled.field, bucket);
    const bool is_final =
        !recall
            ? known
            : runtime::answers(*recall, options, false) ||
                  (!has_gate() && tuner_.is_all_tried(*recall, decision.field, bucket, options));
    if (measure && !is_final && tuner_.workshop().may_measure(false)) {
      // A gate comes before kernels are tuned.
      made.tuned = has_gate() ? tune(problem, &options) : meet(problem, options);
      const bool measured = made.tuned->winner().status == CandidateStatus::measured;
      made.state = !measured                ? PreparedState::on_default
                   : made.tuned->from_store ? PreparedState::known
                                            : PreparedState::tuned;
      if (in_use(problem)) return made;
    } else if (recall && !known) {
      decision = std::move(recalled);
      decision.config = recall->result.winner().config;
      decision.failed = runtime::failed_configs(recall->result);
      made.state = PreparedState::known;
      decides = true;
    }
  }
  if (!tuner_.can_launch_at_once(decision, problem)) return {PreparedState::missing};
  if (const Ready used = in_use(problem); known && used && !in_use_of(*used).provisional)
    return made;
  if (!decides) {  // another process may tune it
    problems_.choose(ready(problem, decision, true));
    return made;
  }
  const Ready before = in_use(problem);
  try {
    use(problem, bucket, std::move(decision), true);
  } catch (const Error&) {  // it may be another problem of the bucket that cannot use it
    if (in_use(problem) == before) throw;
  }
  return made;
}

PreparedChoice TunedChoiceCore::make_ready_together(Span problem, const ProblemValues& bucket,
                                                    const TuneOptions& options,
                                                    const HowReady& how) {
  const auto turn = options.ranks->turn();
  PreparedChoice made{PreparedState::known};
  Decided decided = tuner_.decided(bucket);
  if (how.ask) {
    ChoiceTuner::Agreed agreed = tuner_.agree(bucket, options, !how.measure);
    if (agreed.tuned) {
      const TuneResult& result = made.tuned.emplace(std::move(agreed.tuned->result));
      const bool held = decided && decided->by_ranks;
      const runtime::Taken taken = runtime::taken_of(agreed.tuned->ending, held);
      if (taken == runtime::Taken::unusable)
        return {PreparedState::failed,
                "none of its candidates can be used: " + result.winner().reason};
      if (taken == runtime::Taken::kept && held) agreed.decision = *decided;
      if (result.agreed->outcome != RankReport::Outcome::plan) {
        made.state = PreparedState::on_default;
        made.why = "the ranks use defaults: " + result.agreed->why;
      } else if (result.winner().status != CandidateStatus::measured) {
        made.state = how.measure ? PreparedState::on_default : PreparedState::untuned;
      } else if (!result.from_store) {
        made.state = PreparedState::tuned;
      }
    }
    decided = tuner_.decide(bucket, std::move(agreed.decision));
  } else if (!decided) {
    return {PreparedState::failed,
            "its ranks do not decide on it now, and no decision of theirs is known here"};
  }
  problems_.choose(ready(problem, *decided));
  return made;
}

std::map<std::string, std::int64_t> TunedChoiceCore::named_config(const Launchable& used) const {
  const auto contender = std::ranges::find(contenders_, in_use_of(used).name,
                                           [](const auto& one) { return one->what().name; });
  std::map<std::string, std::int64_t> named;
  std::size_t next = 1;  // after the alternative's number
  for (const std::string& name : (*contender)->parameters()) named[name] = used.config[next++];
  const auto kernel = (*contender)->kernel();
  if (!kernel) return named;
  if (next < used.config.size())  // of ranks
    return kernel->what().named_config(
        std::span(used.config).subspan(next, kernel->definition().space.parameters().size()));
  const Ready own = kernel->find(kernel->definition().bucketed(used.problem));
  return own ? kernel->what().named_config(own->config) : named;
}

void TunedChoiceCore::seal() {
  notes_.begin(choice_.operation.problem_fields.size(),
               &engine_->workshop().telemetry().counters.wanted_cut);
}

std::map<Values, std::uint64_t> TunedChoiceCore::launched_unprepared() const {
  std::map<Values, std::uint64_t> problems = notes_.all();
  std::erase_if(problems, [&](const auto& noted) { return in_use(noted.first) != nullptr; });
  return problems;
}

void TunedChoiceCore::launch_unprepared(Span problem, OnUnprepared what, Stream stream,
                                        void** args) {
  std::shared_ptr<runtime::ServedHandle> kernel;
  Ready served;
  const Contender* contender = nullptr;
  // What one rank launches in the place of another candidate, the others may not; and what a graph
  // has captured of a choice is not refreshed.
  const bool capturing = what != OnUnprepared::error && engine_->device()->capturing(stream);
  const bool may_serve = what != OnUnprepared::error && !together_ && !capturing;
  for (std::size_t i = 0; i < contenders_.size() && !served && may_serve; ++i) {
    contender = contenders_[i].get();
    kernel = contender->kernel();
    if (!kernel || tuner_.has_failed(i) ||
        !contender->unsupported(problem, engine_->device()->info()).empty())
      continue;
    const ProblemValues bucket = kernel->definition().bucketed(problem);
    served = kernel->find(bucket);
    if (!served) served = kernel->provisions().stand_in(bucket);
  }
  const bool first = notes_.add(problem);
  unprepared_.add(served != nullptr);
  if (capturing)
    throw engine_->captures().counted(
        format("choice {} for {}: it was not prepared before the runtime was sealed, and nothing "
               "stands in for a choice while the stream is being captured",
               choice_.name, choice_.operation.describe_problem(problem)));
  if (!served)
    throw UnpreparedError(
        format("choice {} for {}: it was not prepared before the runtime was sealed{}",
               choice_.name, choice_.operation.describe_problem(problem),
               !may_serve ? "" : ", and no kernel of it is loaded that can serve it"),
        engine_->wanted().instance(choice_, problem));
  if (first && what == OnUnprepared::warn)
    engine_->log(
        LogLevel::warning,
        format("choice {} for {}: it was not prepared, so {} is launched with {}", choice_.name,
               choice_.operation.describe_problem(problem), contender->what().name,
               kernel->definition().space.describe(served->config)));
  const ProblemValues values(problem);
  kernel->check(values, args);
  const KernelDefinition& definition = kernel->definition();
  served->launch(definition.launch(served->config, values, kernel->limits()), values, stream, args);
}

}  // namespace kiln::detail
