// What a choice's kernels come to by themselves, before they meet the other alternatives.
#include <algorithm>
#include <new>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/choice/choice_tuner.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/tune/candidates.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Of a kernel's own tuning, which may have found its candidates wrong, or worse.
CannotRun kernel_failure(const TuningFailedError& error) {
  const auto is_wrong = [](const TuningFailedError::Reason& reason) {
    return reason.status == CandidateStatus::wrong_result ||
           reason.status == CandidateStatus::crashed || reason.status == CandidateStatus::hung;
  };
  return {error.what(), false, std::ranges::any_of(error.reasons(), is_wrong)};
}

}  // namespace

std::size_t ChoiceTuner::count_kernels(const Field& field) const {
  std::size_t kernels = 0;
  for (std::size_t i = 0; i < contenders_.size(); ++i)
    if (contenders_[i]->what().kernel && !field.entrances[i].candidates.empty()) ++kernels;
  return kernels;
}

ChoiceTuner::Parts ChoiceTuner::tune_alone_each(const Field& field, const ProblemValues& bucket,
                                                const TuneOptions* options, bool for_launch,
                                                std::optional<std::size_t> retuned) {
  Parts parts = no_parts();
  const bool together = options && options->ranks && options->ranks->size() > 1;
  const TimeLimit deadline(options ? options->max_seconds.value_or(0) : 0, Clock::now());
  std::size_t kernels_left = count_kernels(field);
  for (std::size_t i = 0; i < contenders_.size(); ++i) {
    if (field.entrances[i].candidates.empty()) continue;
    TunedAlone tuned;
    bool tried_all = false;
    // What one kernel leaves of its part is the next ones'.
    std::optional<TuneOptions> part;
    if (options && contenders_[i]->what().kernel) {
      part = *options;
      if (retuned == i) part->retune = false;
      if (options->max_seconds.value_or(0) > 0)
        part->max_seconds =
            std::max(deadline.left() / static_cast<double>(kernels_left--), kLeastChoiceSeconds);
    }
    try {
      contenders_[i]->tune(bucket, part ? &*part : options, for_launch, tuned);
    } catch (const NoneUsable& error) {
      parts.failed[i] = kernel_failure(error);
      tried_all = error.result().end != SearchEnd::seconds;
    } catch (const TuningFailedError& error) {  // as it has before
      parts.failed[i] = kernel_failure(error);
      const auto kernel = contenders_[i]->kernel();
      tried_all = kernel && none_usable(*kernel, bucket);
    } catch (const DeviceLost& error) {
      if (!together) throw;
      parts.failed[i] = {error.what(), true};  // the other ranks go on to the next part
    } catch (const EnvironmentError& error) {
      parts.failed[i] = {error.what(), true};
    } catch (const Error& error) {
      parts.failed[i] = {error.what(), false};
    } catch (const std::bad_alloc& error) {
      if (!together) throw;
      parts.failed[i] = {error.what(), true};
    } catch (const std::exception& error) {
      if (!together) throw;
      parts.failed[i] = {error.what(), false};
    } catch (...) {
      if (!together) throw;
      parts.failed[i] = {kForeignException, false};
    }
    const bool searched = parts.failed[i].why.empty() || tried_all;
    parts.complete = parts.complete && searched && tuned.complete;
    parts.changed = parts.changed || tuned.changed;
    parts.kernels[i] = std::move(tuned.kernel);
    parts.empty = parts.empty || tuned.empty;
  }
  return parts;
}

ChoiceTuner::Parts ChoiceTuner::parts_in_use(const Field& field,
                                             const ProblemValues& bucket) const {
  Parts parts = no_parts();
  for (std::size_t i = 0; i < contenders_.size(); ++i) {
    const auto kernel = contenders_[i]->kernel();
    if (!kernel || field.entrances[i].candidates.empty()) continue;
    if (!contenders_[i]->is_in_use(bucket)) {
      const auto failed = none_usable(*kernel, bucket);
      parts.failed[i] = failed ? kernel_failure(*failed)
                               : CannotRun{"its own tuning has put nothing in use", true};
      parts.complete = parts.complete && failed;
      continue;
    }
    const auto known = kernel->known(kernel->definition().bucketed(bucket));
    parts.complete = parts.complete && known && known->complete;
  }
  return parts;
}

std::optional<TuningFailedError> ChoiceTuner::none_usable(ServedHandle& kernel,
                                                          const ProblemValues& bucket) const {
  return runtime::none_usable(engine_, kernel.problems(), kernel.definition(),
                              kernel.definition().bucketed(bucket));
}

bool ChoiceTuner::is_all_tried(const Recall& recall, const Field& field,
                               const ProblemValues& bucket, const TuneOptions& options) const {
  if (recall.result.end != SearchEnd::finished) return false;
  Recall ended = recall;
  ended.result.complete = true;
  if (!answers(ended, options, false)) return false;
  return std::ranges::all_of(field.subject.configs, [&](const Values& config) {
    const auto tried = std::ranges::find(recall.result.candidates, config, &Candidate::config);
    return (tried != recall.result.candidates.end() && was_built(*tried)) ||
           !contenders_[field.place(config).contender]->is_in_use(bucket);
  });
}

bool ChoiceTuner::can_launch_at_once(const Decision& decision, const ProblemValues& bucket) const {
  return contenders_[decision.field.place(decision.config).contender]->is_in_use(bucket);
}

std::vector<detail::ChoiceCore::KernelProblem> ChoiceTuner::kernels(
    const ProblemValues& bucket) const {
  std::vector<detail::ChoiceCore::KernelProblem> kernels;
  for (const auto& contender : contenders_)
    if (auto kernel = contender->kernel(); kernel && !contender->enter(bucket).candidates.empty())
      try {
        Values problem = bucket_to_tune(*kernel, bucket);
        kernels.push_back({std::move(kernel), std::move(problem)});
      } catch (const Error& error) {  // the other alternatives meet without it
        engine_.log(LogLevel::warning, format("choice {}: alternative {}: {}", choice_.name,
                                              contender->what().name, error.what()));
      }
  return kernels;
}

}  // namespace kiln::runtime
