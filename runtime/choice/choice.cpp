#include "kiln/choice.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/choice/in_use.hpp"
#include "runtime/choice/tuned_choice_core.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/together/beside_agreement.hpp"

namespace kiln::detail {

using runtime::in_use_of;
using runtime::InUse;

namespace {

/// Of the best candidate of an alternative.
double host_seconds_of(const TuneResult& result, const std::string& alternative) {
  const Candidate* best = nullptr;
  for (const Candidate& c : result.candidates)
    if (c.status == CandidateStatus::measured && result.show(0, c.config[0]) == alternative &&
        (!best || c.seconds < best->seconds))
      best = &c;
  return best ? best->host_seconds : 0;
}

}  // namespace

TunedChoiceCore::TunedChoiceCore(const Runtime& runtime, ChoiceDescription choice,
                                 ChoiceOptions options)
    : engine_(Access::engine(runtime)),
      choice_(std::move(choice)),
      options_(std::move(options)),
      together_(tuning_options(nullptr).ranks != nullptr),
      switches_(runtime::read_switches(choice_, options_,
                                       engine_->options().deterministic.value_or(false))),
      workspaces_(engine_->device(),
                  [this](const WorkspaceSize& size) {
                    engine_->note_allocation("choice " + choice_.name, size);
                  }),
      tuner_(*engine_, choice_, contenders_, switches_, tuning_options(nullptr).ranks),
      unprepared_(engine_->workshop().telemetry().counters, choice_.name),
      problems_(engine_->workshop().telemetry().counters.problems.of(choice_.name), bound()) {
  if (!switches_.warning.empty()) engine_->log(LogLevel::warning, switches_.warning);
  for (std::size_t i = 0; i < choice_.alternatives.size(); ++i)
    if (switches_.on[i])
      contenders_.push_back(runtime::make_contender(runtime, choice_.operation,
                                                    choice_.alternatives[i], workspaces_));
}

runtime::ProblemBound TunedChoiceCore::bound() {
  const auto release = [this](std::vector<Values>& leaving) {
    if (engine_->serving().sealed()) leaving.clear();
  };
  return {.most = engine_->bounds().max_problems(),
          .may_be_evicted = engine_->bounds().max_module_bytes() != 0,  // with its kernels' pins
          .release = release,
          .counters = &engine_->workshop().telemetry().counters};
}

void TunedChoiceCore::launch(Span problem, Stream stream, void** args) {
  {
    ReadSection section;
    if (const Launchable* known = find(problem, section))
      return call(*known, problem, stream, args);
  }
  if (const auto sealed = engine_->serving().sealed(); sealed && !in_use(problem))
    return launch_unprepared(problem, *sealed, stream, args);
  const Ready made = obtain(problem, stream, true);
  call(*made, problem, stream, args);
}

void TunedChoiceCore::prepare(Span problem) {
  problems_.pin(problem);  // before it is held, so that it cannot leave in between
  const Ready known = in_use(problem);
  if (!known || in_use_of(*known).provisional) obtain(problem, {}, false);
  stay(problem);
}

TuneResult TunedChoiceCore::tune(Span problem, const TuneOptions* given) {
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

TuneResult TunedChoiceCore::meet(Span problem, const TuneOptions& options) {
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
  decision.unmeasured = decision.config == decision.field.subject.configs.front() &&
                        result.winner().status != CandidateStatus::measured;
  // Else, as of a kernel that the budget did not reach, launches find what they use.
  if (tuner_.can_launch_at_once(decision, problem)) use(problem, bucket, std::move(decision), true);
  return result;
}

std::optional<TuneResult> TunedChoiceCore::known(Span problem) {
  const ProblemValues bucket = choice_.operation.bucketed(problem);
  const auto decided = tuner_.decided(bucket);
  Decision first = decided ? *decided : tuner_.first_of(bucket);
  auto recall = tuner_.recall(first.field, bucket);
  if (!recall || !recall->same_space) return {};
  return std::move(recall->result);
}

ChosenAlternative TunedChoiceCore::chosen(Span problem) {
  Ready ready = in_use(problem);
  if (!ready) ready = obtain(problem, {}, true);
  const InUse& used = in_use_of(*ready);
  return {used.name, used.text, switches_.forced};
}

std::vector<AlternativeInfo> TunedChoiceCore::alternatives(Span problem) {
  const ProblemValues bucket = choice_.operation.bucketed(problem);
  const auto decided = tuner_.decided(bucket);
  std::optional<TuneResult> on_record;
  try {
    on_record = known(problem);
  } catch (const runtime::NoAlternative&) {  // each says why
  }
  std::vector<AlternativeInfo> all;
  for (std::size_t i = 0, on = 0; i < choice_.alternatives.size(); ++i) {
    const AlternativeDescription& a = choice_.alternatives[i];
    AlternativeInfo& info =
        all.emplace_back(a.name, a.version, a.numerics, a.capturable, switches_.why_not[i]);
    if (!switches_.on[i]) continue;
    info.version = contenders_[on]->version();
    info.why_not = decided && decided->by_ranks ? decided->field.entrances[on].why_not
                                                : contenders_[on]->enter(bucket).why_not;
    if (on_record) info.host_seconds = host_seconds_of(*on_record, a.name);
    ++on;
  }
  return all;
}

std::shared_ptr<ChoiceCore> make_choice_core(const Runtime& runtime, ChoiceDescription description,
                                             ChoiceOptions options) {
  auto core =
      std::make_shared<TunedChoiceCore>(runtime, std::move(description), std::move(options));
  Access::engine(runtime)->serving().add(core);
  return core;
}

}  // namespace kiln::detail
