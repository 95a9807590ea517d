#include "runtime/choice/choice_tuner.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/choice/meeting.hpp"
#include "runtime/ranks/messages.hpp"
#include "runtime/serve/overdue.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/together/alone_or_together.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/together/texts.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/tuner.hpp"
#include "runtime/tune/tuning_session.hpp"
#include "runtime/worker/isolation.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// The share of a time limit for all that is tuned by itself. The rest is for comparing
/// alternatives.
constexpr double kShareAlone = 0.8;

/// What is left of a time limit since `start`.
void leave_rest(TuneOptions& options, Clock::time_point start) {
  if (const double all = options.max_seconds.value_or(0); all > 0)
    options.max_seconds = std::max(all - seconds_since(start), kLeastChoiceSeconds);
}

}  // namespace

FailedConfigs failed_configs(const TuneResult& result) {
  FailedConfigs failed;
  for (const Candidate& c : result.candidates)
    if (c.status == CandidateStatus::launch_failed || c.status == CandidateStatus::wrong_result ||
        c.status == CandidateStatus::crashed || c.status == CandidateStatus::hung)
      failed.emplace(c.config, c.status);
  return failed;
}

ChoiceTuner::ChoiceTuner(detail::Engine& engine, const detail::ChoiceDescription& choice,
                         const std::vector<std::unique_ptr<Contender>>& contenders,
                         const Switches& switches, std::shared_ptr<Communicator> asked_by_launches)
    : engine_(engine),
      choice_(choice),
      contenders_(contenders),
      switches_(switches),
      deterministic_(engine.options().deterministic.value_or(false)),
      asked_by_launches_(std::move(asked_by_launches)),
      failed_(choice.alternatives.size()),
      workshop_(engine.workshop(), Workshop::LentTurn{}) {}

Decision ChoiceTuner::first_of(Span problem) const {
  Decision first{field_of(problem, enter_all(contenders_, problem, deterministic_))};
  first.config = first.field.subject.configs.front();
  first.kernels.resize(contenders_.size());
  return first;
}

Decision ChoiceTuner::first_of(Span problem, const Decision& of_bucket) const {
  std::vector<Entrance> entrances = enter_all(contenders_, problem, deterministic_);
  for (std::size_t i = 0; i < entrances.size(); ++i)
    if (const Entrance& entrance = of_bucket.field.entrances[i]; entrance.left_out)
      entrances[i] = entrance;
  Decision first = of_bucket;
  first.field = field_of(problem, std::move(entrances));
  first.config = first.field.subject.configs.front();
  return first;
}

Field ChoiceTuner::field_of(Span problem, std::vector<Entrance> entrances) const {
  return make_field(choice_, switches_, contenders_, problem, std::move(entrances), deterministic_,
                    asked_by_launches_ || engine_.options().tuning.ranks);
}

ChoiceTuner::Decided ChoiceTuner::decided(const ProblemValues& bucket) const {
  const std::lock_guard lock(mutex_);
  const auto known = outcomes_.find(Values(bucket));
  return known == outcomes_.end() ? nullptr : known->second.decision;
}
ChoiceTuner::Decided ChoiceTuner::decide(const ProblemValues& bucket, Decided decision) {
  const std::lock_guard lock(mutex_);
  if (const std::size_t most = engine_.bounds().max_problems();
      most != 0 && outcomes_.size() >= most)
    std::erase_if(outcomes_, [](const auto& one) {
      return one.second.decision && !one.second.decision->by_ranks;
    });
  outcomes_[Values(bucket)] = {decision};
  return decision;
}
void ChoiceTuner::note_undecidable(const ProblemValues& bucket, const TuneOptions& options,
                                   std::exception_ptr why) {
  if (options.ranks != asked_by_launches_) return;
  const std::lock_guard lock(mutex_);
  if (Outcome& outcome = outcomes_[Values(bucket)]; !outcome.decision)
    outcome.why_not = std::move(why);
}
void ChoiceTuner::throw_if_undecidable(const ProblemValues& bucket) const {
  std::exception_ptr why;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = outcomes_.find(Values(bucket)); known != outcomes_.end())
      why = known->second.why_not;
  }
  if (why) std::rethrow_exception(why);
}

TuneResult ChoiceTuner::time_first(const Decision& first, const ProblemValues& bucket,
                                   const TuneOptions& options, Kernels kernels) {
  Parts parts = no_parts();
  if (first.by_ranks)
    parts.kernels = first.kernels;
  else if (kernels == Kernels::as_in_use)
    parts = parts_in_use(first.field, bucket);
  else
    tune_alone_each(first.field, bucket, &options, false);
  return time_default(workshop_, *maker(first.field, bucket, options, parts), options);
}

bool ChoiceTuner::is_only_kernel(const Field& field) const {
  if (field.subject.configs.size() != 1) return false;
  return contenders_[field.place(field.subject.configs.front()).contender]->what().kernel !=
         nullptr;
}

bool ChoiceTuner::tuned_by_itself(const Field& field, const ProblemValues& bucket,
                                  const TuneOptions* alone) {
  if (!is_only_kernel(field)) return false;
  tune_alone_each(field, bucket, alone, true);
  return true;
}

void ChoiceTuner::tell_of_first_answers(const Field& field) const {
  for (const Entrance& entrance : field.entrances)
    if (!entrance.why_not_first.empty())
      engine_.log(LogLevel::warning, format("choice {}: {}", choice_.name, entrance.why_not_first));
}

void ChoiceTuner::compare_kernels(const Field& field, Parts& parts, const TuneOptions& options) {
  // Digests are compared in quarters, which floats hold exactly; kNone is less than any of them. A
  // rank without a config does not launch the kernel, and passes kNone.
  constexpr int kBits = 16, kQuarters = 4;
  constexpr float kNone = std::numeric_limits<float>::lowest();
  std::vector<std::size_t> kernels;
  std::vector<float> greatest{parts.empty ? 0.0F : 1.0F};
  for (std::size_t i = 0; i < contenders_.size(); ++i) {
    if (!contenders_[i]->what().kernel || field.entrances[i].candidates.empty()) continue;
    kernels.push_back(i);
    const std::optional<Values>& kernel = parts.kernels[i];
    std::uint64_t digest = kernel ? ranks::short_digest(text_of(*kernel)) : 0;
    for (int quarter = 0; quarter < kQuarters; ++quarter, digest >>= kBits) {
      const auto value = static_cast<float>(digest & ((1U << kBits) - 1));
      greatest.insert(greatest.end(), {kernel ? value : kNone, kernel ? -value : kNone});
    }
  }
  if (kernels.empty()) return;
  const bool answered = take_greatest(workshop_, options, greatest);
  parts.empty = answered && greatest[0] == 0;
  auto next = greatest.begin() + 1;
  for (const std::size_t i : kernels) {
    bool same = answered;
    for (int quarter = 0; quarter < kQuarters; ++quarter, next += 2)
      same = same && next[0] == -next[1];
    if (same || !parts.kernels[i]) continue;
    parts.kernels[i].reset();
    parts.failed[i] = {answered ? "ranks would launch it with different configs"
                                : "ranks could not compare its configs",
                       true};
    parts.complete = false;
  }
}

std::unique_ptr<ChoiceMaker> ChoiceTuner::maker(const Field& field, const ProblemValues& bucket,
                                                const TuneOptions& options, const Parts& parts) {
  return std::make_unique<ChoiceMaker>(
      field, contenders_, parts.failed, parts.kernels, !parts.complete, deterministic_,
      KernelMaker(choice_.operation, bucket, engine_.device(), engine_.builder(), options.seed,
                  workshop_.trusted_references()),
      candidate_seconds(options.candidate_seconds),
      tell_of_overdue(engine_, format("choice {} for {}", choice_.name,
                                      choice_.operation.describe_problem(bucket))),
      alone(options), engine_.bounds());
}

/// With the runtime's turn, which a call that waits for another tuning lends to that.
WatchedBench::Alone ChoiceTuner::alone(const TuneOptions& options) {
  TuningTurn& turn = workshop_.turn_alone();
  const TimeLimit deadline(options.max_seconds.value_or(0), Clock::now());
  return {.begin =
              [&turn, deadline, stop = options.stop] {
                if (!turn.begin_work(deadline, stop))
                  throw TrialCut(0, stop.stop_requested() ? "the run was stopped"
                                                          : "another tuning used up the time");
              },
          .end = [&turn] { return turn.end_work(); }};
}

bool ChoiceTuner::has_gate(const Field& field) const {
  return switches_.gate_seconds > 0 && field.subject.configs.size() > 1;
}

bool ChoiceTuner::acts(const TuneResult& of_first) const {
  const Candidate& winner = of_first.winner();
  return winner.status == CandidateStatus::measured && winner.seconds < switches_.gate_seconds;
}

Field ChoiceTuner::gated(const Field& field, Span bucket) const {
  const std::size_t first = field.place(field.subject.configs.front()).contender;
  std::vector<Entrance> entrances = field.entrances;
  for (std::size_t i = 0; i < entrances.size(); ++i) {
    Entrance& entrance = entrances[i];
    if (entrance.candidates.empty()) continue;
    if (i == first) {
      entrance.candidates.resize(1);
    } else {
      entrance.candidates.clear();
      entrance.why_not = format("the gate: {} takes less than {:.3g} us",
                                contenders_[first]->what().name, switches_.gate_seconds * 1e6);
    }
  }
  return field_of(bucket, std::move(entrances));
}

std::optional<TuneOutcome> ChoiceTuner::stop_at_gate(Field& field, const ProblemValues& bucket,
                                                     TuneOptions options, const TuneOptions* alone,
                                                     bool for_launch, Kernels kernels) {
  Field first = gated(field, bucket);
  // If the gate does not act, the first kernel has had its part of the time.
  if (const double all = options.max_seconds.value_or(0); all > 0)
    options.max_seconds =
        std::max(all / static_cast<double>(count_kernels(field) + 1), kLeastChoiceSeconds);
  std::optional<TuneOutcome> outcome;
  try {
    outcome = measure(first, bucket, options, alone, for_launch, kernels);
  } catch (const NoneUsable&) {
    return {};
  } catch (const OutOfMemory&) {
    return {};
  }
  TuneResult& result = outcome->result;
  const Candidate& winner = result.winner();
  if (outcome->ending != Ending::winner || !acts(result)) return {};
  const std::string text = format(
      "the gate has acted: {} takes {:.3g} us, less than {:.3g} us, so no other candidate was "
      "tried",
      result.describe(winner), winner.seconds * 1e6, switches_.gate_seconds * 1e6);
  engine_.log(LogLevel::info, format("choice {} for {}: {}", choice_.name,
                                     choice_.operation.describe_problem(bucket), text));
  result.warnings.push_back(text);
  field = std::move(first);
  return outcome;
}

std::optional<Recall> ChoiceTuner::recall(Field& field, const ProblemValues& bucket) {
  auto recall = workshop_.records().recall(field.subject, bucket);
  if ((recall && recall->same_space) || !has_gate(field)) return recall;
  Field first = gated(field, bucket);
  auto of_gate = workshop_.records().recall(first.subject, bucket);
  if (!of_gate || !of_gate->same_space || !acts(of_gate->result)) return recall;
  field = std::move(first);
  return of_gate;
}

TuneOutcome ChoiceTuner::measure(Field& field, const ProblemValues& bucket, TuneOptions options,
                                 const TuneOptions* alone, bool for_launch, Kernels kernels) {
  const auto start = Clock::now();
  const auto recall = workshop_.records().recall(field.subject, bucket, options, for_launch);
  if (!workshop_.may_measure(for_launch)) {
    if (recall) return {recall->result};
    if (auto any = this->recall(field, bucket)) return {std::move(any->result)};
    throw UserError(format("choice {} for {}: there is no record, and this mode does not tune",
                           choice_.name, choice_.operation.describe_problem(bucket)));
  }
  // Where more is on record than the first candidate, the gate did not act.
  std::optional<std::size_t> at_gate;
  if (has_gate(field) && (options.retune || !recall || !recall->same_space)) {
    if (auto first = stop_at_gate(field, bucket, options, alone, for_launch, kernels))
      return *first;
    at_gate = field.place(field.subject.configs.front()).contender;
  }
  leave_rest(options, start);
  const auto share_began = Clock::now();
  Parts parts = kernels == Kernels::tuned ? no_parts() : parts_in_use(field, bucket);
  if (kernels == Kernels::tuned &&
      (!for_launch || !recall || !answers(*recall, options, for_launch))) {
    const double all = options.max_seconds.value_or(0);
    TuneOptions part = alone ? *alone : options;
    if (all > 0) part.max_seconds = all * kShareAlone;
    parts = tune_alone_each(field, bucket, alone || all > 0 ? &part : nullptr, for_launch, at_gate);
    // What is on record was measured with another config of a kernel.
    if (recall && parts.changed) options.retune = true;
  }
  tell_of_first_answers(field);
  leave_rest(options, share_began);
  const auto maker = this->maker(field, bucket, options, parts);
  try {
    TuneOutcome tuned = tune_alone(workshop_, *maker, options, for_launch);
    note_failed(field, failed_configs(tuned.result));
    return tuned;
  } catch (const NoneUsable& none) {
    note_failed(field, failed_configs(none.result()));
    throw;
  }
}

ChoiceTuner::Agreed ChoiceTuner::agree(const ProblemValues& bucket, const TuneOptions& options,
                                       bool for_launch) {
  TuningTurn::Hold tuning;
  auto entrances = tell_if_it_throws(options, [&] {
    check(options);
    tuning = take_turn(tuning_, options);
    return enter_all(contenders_, bucket, deterministic_);
  });
  entrances = meet(choice_, switches_.forced ? "forced" : "measured", contenders_,
                   std::move(entrances), bucket, options);
  try {
    Agreed agreed =
        tune_in_common(field_of(bucket, std::move(entrances)), bucket, options, for_launch);
    if (agreed.tuned && agreed.tuned->ending == Ending::unusable) {
      const NoneUsable none(agreed.decision.field.subject, agreed.tuned->result);
      if (for_launch || is_failure(*agreed.tuned)) throw NoneUsable(none);
      note_undecidable(bucket, options, std::make_exception_ptr(none));
    }
    return agreed;
  } catch (...) {
    note_undecidable(bucket, options, std::current_exception());
    throw;
  }
}

ChoiceTuner::Agreed ChoiceTuner::tune_in_common(Field common, const ProblemValues& bucket,
                                                TuneOptions options, bool for_launch) {
  const auto start = Clock::now();
  Agreed agreed{{.field = std::move(common), .by_ranks = true}};
  Decision& decision = agreed.decision;
  const Field& field = decision.field;
  decision.config = field.subject.configs.front();
  TuneOptions part = options;
  if (const double all = options.max_seconds.value_or(0); all > 0)
    part.max_seconds = all * kShareAlone;
  // Also if a result is on record: all ranks must launch the same config of a kernel, and their
  // records may differ.
  Parts parts = tune_alone_each(field, bucket, &part, for_launch);
  compare_kernels(field, parts, options);
  tell_of_first_answers(field);
  decision.kernels = parts.kernels;
  if (switches_.forced)
    for (const CannotRun& failed : parts.failed)
      if (!failed.why.empty()) throw EnvironmentError(failed.why);
  const bool nothing_to_time = for_launch && is_only_kernel(field) && parts.empty;
  if (switches_.forced || nothing_to_time) return agreed;
  auto maker = tell_if_it_throws(options, [&] {
    // What is on record was measured with another config of a kernel.
    if (parts.changed && workshop_.may_measure(for_launch) &&
        workshop_.records().recall(field.subject, bucket))
      options.retune = true;
    leave_rest(options, start);
    return this->maker(field, bucket, options, parts);
  });
  TuneResult& result =
      agreed.tuned.emplace(tune_alone_or_together(workshop_, std::move(maker), options, for_launch))
          .result;
  decision.unmeasured =
      result.agreed->plan_digest.empty() || result.winner().status != CandidateStatus::measured;
  // There is a plan even if nothing was measured and the ranks use what they can launch.
  if (!result.agreed->plan_digest.empty()) {
    decision.config = result.winner().config;
    decision.failed = failed_on_any(field, parts, result, options);
    if (decision.failed.contains(decision.config))
      result.warnings.push_back(format("{} has failed on a rank: launches use another candidate",
                                       field.subject.space.describe(decision.config)));
  }
  return agreed;
}

/// Each rank knows only its own failures, and the ranks' records may list different ones.
FailedConfigs ChoiceTuner::failed_on_any(const Field& field, const Parts& parts,
                                         const TuneResult& result, const TuneOptions& options) {
  const std::vector<Values>& configs = field.subject.configs;
  std::vector<float> failed(configs.size(), 0);
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const auto found = std::ranges::find(result.candidates, configs[i], &Candidate::config);
    const bool here = found != result.candidates.end() &&
                      found->status != CandidateStatus::measured &&
                      found->status != CandidateStatus::not_tried;
    if (here || !parts.failed[field.place(configs[i]).contender].why.empty()) failed[i] = 1;
  }
  // If the ranks did not answer, this rank may launch only the winner.
  const bool answered = take_greatest(workshop_, options, failed);
  FailedConfigs none;
  for (std::size_t i = 0; i < configs.size(); ++i)
    if (answered ? failed[i] != 0 : configs[i] != result.winner().config)
      none.emplace(configs[i], CandidateStatus::launch_failed);
  return none;
}

}  // namespace kiln::runtime
