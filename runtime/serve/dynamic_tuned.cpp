// Handles of kernels described at run time, and the tuning of many problems in one go.
#include <algorithm>
#include <exception>
#include <vector>

#include "kiln/detail/format.hpp"
#include "kiln/handle.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/together/kernel_trials.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln {

using detail::format;
using detail::ReadyKernel;

DynamicTuned DynamicTuned::with_config(const Values& config) const {
  return DynamicTuned(core_->with_config(config));
}

Verification DynamicTuned::verify(const Values& problem, std::uint64_t seed) const {
  return core_->verify(problem, seed);
}

DynamicTuned Runtime::tuned(const KernelDefinition& definition) const {
  definition.validate();
  return DynamicTuned(core(definition));
}

void DynamicTuned::launch(Stream stream, const ProblemValues& problem, void** args) const {
  const KernelDefinition& d = core_->definition();
  const ProblemValues bucket = d.bucketed(problem);
  core_->check(problem, args);
  const ReadyKernel& ready = core_->at(bucket);
  ready.launch(d.geometry(ready.config, problem), stream, args);
}

DynamicBound DynamicTuned::at(const ProblemValues& problem) const {
  const KernelDefinition& d = core_->definition();
  const ReadyKernel& ready = core_->at(d.bucketed(problem));
  return {core_, ready, d.geometry(ready.config, problem), problem};
}

namespace {

/// The bucket of a problem that has something to do.
Values bucket_to_tune(const KernelDefinition& d, const Values& problem) {
  Values bucket = d.bucketed(problem);
  if (runtime::empty(d.geometry(d.space.default_config(), problem)))
    throw UserError(format("kernel {} for {}: the grid is empty, there is nothing to tune", d.name,
                           d.describe_problem(problem)));
  return bucket;
}

}  // namespace

std::optional<Missing> DynamicTuned::prepare(const Values& problem) const {
  return core_->prepare(core_->definition().bucketed(problem));
}

TuneResult DynamicTuned::tune(const Values& problem) const {
  return core_->tune(bucket_to_tune(core_->definition(), problem), nullptr);
}

TuneResult DynamicTuned::tune(const Values& problem, const TuneOptions& options) const {
  return core_->tune(bucket_to_tune(core_->definition(), problem), &options);
}

std::vector<TuneResult> Runtime::tune(std::span<const TuneJob> jobs,
                                      const TuneOptions& asked) const {
  const TuneOptions options = engine_->with_ranks(asked);
  std::vector<TuneResult> results;
  if (!options.ranks) {
    for (const TuneJob& job : jobs) results.push_back(job.kernel.tune(job.problem, options));
    return results;
  }
  std::vector<runtime::Subject> subjects;
  std::vector<std::size_t> subject_of;
  for (const TuneJob& job : jobs) {
    if (&job.kernel.core_->engine() != engine_.get())
      throw UserError("tune: a job's kernel belongs to another runtime");
    if (job.kernel.core_->chosen())
      throw UserError(
          format("tune: the config of kernel {} was chosen; ranks cannot agree on another",
                 job.kernel.core_->definition().name));
    const KernelDefinition& d = job.kernel.core_->definition();
    Values bucket = bucket_to_tune(d, job.problem);
    const auto same = std::find_if(subjects.begin(), subjects.end(), [&](const auto& s) {
      return s.kernel == &d && s.problem == bucket;
    });
    subject_of.push_back(static_cast<std::size_t>(same - subjects.begin()));
    if (same == subjects.end()) subjects.push_back({&d, std::move(bucket)});
  }
  runtime::KernelTrials trials(engine_->device(), engine_->builder(), subjects, options);
  const auto agreed = engine_->tune_together(subjects, options, trials);
  // All of it was agreed on: what one kernel fails at here must not let this rank ask the others
  // about the next one again.
  std::exception_ptr failed;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    const TuneResult& result = agreed[subject_of[j]];
    try {
      jobs[j].kernel.core_->use(result.problem, result.winner().config);
    } catch (...) {
      if (!failed) failed = std::current_exception();
    }
    results.push_back(result);
  }
  if (failed) std::rethrow_exception(failed);
  return results;
}

std::optional<TuneResult> DynamicTuned::known(const Values& problem) const {
  return core_->known(core_->definition().bucketed(problem));
}

Values DynamicTuned::config(const Values& problem) const {
  return core_->at(core_->definition().bucketed(problem)).config;
}

}  // namespace kiln
