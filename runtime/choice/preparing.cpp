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
using runtime::lacks_something_now;
using runtime::PreparedChoice;

namespace {

/// What the only kernel of a choice comes to, whose tuning is its own.
PreparedState state_of(const runtime::Contender& contender, const ProblemValues& bucket) {
  const auto kernel = contender.kernel();
  const auto known = kernel->known(kernel->definition().bucketed(bucket));
  return kernel->fixed() || known ? PreparedState::known : PreparedState::untuned;
}

}  // namespace

TunedChoiceCore::~TunedChoiceCore() {
  try {
    for (const auto& [problem, launches] : launched_unprepared())
      if (!engine_->wanted().note(engine_->wanted().instance(choice_, problem), launches))
        ++engine_->workshop().telemetry().counters.wanted_cut;
  } catch (const std::exception&) {  // no memory: the list is shorter
  }
}

bool TunedChoiceCore::is_answered(Span problem) {
  const ProblemValues bucket = choice_.operation.bucketed(problem);
  const TuneOptions options = tuning_options(nullptr);
  if (tuner_.decided(bucket)) return true;
  if (options.ranks || switches_.forced) return !options.ranks;
  const Decision first = tuner_.first_of(bucket);
  runtime::RecordBook& records = tuner_.workshop().records();
  const auto recall = records.recall(first.field.subject, bucket, options, true);
  return recall && runtime::answers(*recall, options, true);
}

PreparedChoice TunedChoiceCore::make_ready(Span problem, bool measure,
                                           std::optional<double> max_seconds,
                                           std::stop_token stop) {
  TuneOptions options = runtime::patient(tuning_options(nullptr));
  options.stop = std::move(stop);
  if (const double own = options.max_seconds.value_or(0); max_seconds)
    options.max_seconds = own > 0 ? std::min(own, *max_seconds) : *max_seconds;
  problems_.pin(problem);
  const ProblemValues bucket = choice_.operation.bucketed(problem);
  PreparedChoice made = options.ranks ? make_ready_together(problem, bucket, options, measure)
                                      : make_ready_alone(problem, bucket, options, measure);
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
  if (const auto decided = tuner_.decided(bucket)) {
    if (const Ready used = in_use(problem); !used || in_use_of(*used).provisional)
      problems_.choose(ready(problem, *decided));
    return {PreparedState::known};
  }
  Decision decision = tuner_.first_of(bucket);
  PreparedChoice made{PreparedState::untuned};
  if (switches_.forced) {
    made.state = PreparedState::known;
  } else if (tuner_.is_only_kernel(decision.field)) {
    const auto place = decision.field.place(decision.config);
    made = {.state = state_of(*contenders_[place.contender], bucket), .as_its_kernel = true};
  } else {
    auto recall = tuner_.workshop().records().recall(decision.field.subject, bucket, options, true);
    const bool answered = recall && runtime::answers(*recall, options, true);
    if (!answered && measure && tuner_.workshop().may_measure(false)) {
      made.tuned = meet(problem, options);
      const bool measured = made.tuned->winner().status == CandidateStatus::measured;
      made.state = !measured                ? PreparedState::on_default
                   : made.tuned->from_store ? PreparedState::known
                                            : PreparedState::tuned;
      return made;
    }
    if (!answered) recall = tuner_.recall(decision.field, bucket);
    if (recall) {
      decision.config = recall->result.winner().config;
      decision.failed = runtime::failed_configs(recall->result);
      made.state = PreparedState::known;
    }
  }
  if (!tuner_.can_launch_at_once(decision, bucket)) return {PreparedState::missing};
  if (made.state == PreparedState::known && !made.as_its_kernel) {
    use(problem, bucket, std::move(decision));
  } else {  // not decided: another process may tune it
    problems_.choose(ready(problem, decision));
  }
  return made;
}

PreparedChoice TunedChoiceCore::make_ready_together(Span problem, const ProblemValues& bucket,
                                                    const TuneOptions& options, bool measure) {
  const auto turn = options.ranks->turn();
  PreparedChoice made{PreparedState::known};
  Decided decided = tuner_.decided(bucket);
  if (!decided) {
    if (!measure && tuner_.workshop().may_measure(true)) {
      runtime::announce_absence(options, "its preparation does not tune");
      return {PreparedState::missing,
              "ranks decide on a choice by tuning it, which was not asked for"};
    }
    tuner_.throw_if_undecidable(bucket);
    ChoiceTuner::Agreed agreed = tuner_.agree(bucket, options, !measure);
    if (agreed.tuned) {
      const TuneResult& result = made.tuned.emplace(std::move(agreed.tuned->result));
      if (runtime::taken_of(agreed.tuned->ending, false) != runtime::Taken::chosen)
        return {PreparedState::failed,
                "none of its candidates can be used: " + result.winner().reason};
      if (result.agreed->outcome != RankReport::Outcome::plan) {
        made.state = PreparedState::on_default;
        made.why = "the ranks use defaults: " + result.agreed->why;
      } else if (!result.from_store) {
        made.state = measure ? PreparedState::tuned : PreparedState::untuned;
      }
    }
    decided = tuner_.decide(bucket, std::move(agreed.decision));
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
  // What one rank launches in the place of another candidate, the others may not.
  const bool may_serve = what != OnUnprepared::error && !together_;
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
