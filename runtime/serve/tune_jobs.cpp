// Runtime::tune: many problems in one go.
#include "runtime/serve/tune_jobs.hpp"

#include <algorithm>
#include <exception>
#include <vector>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/together/kernel_trials.hpp"
#include "runtime/together/tune_together.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln {

using detail::format;

Values runtime::bucket_to_tune(const detail::HandleCore& handle, const Values& problem) {
  const KernelDefinition& d = handle.definition();
  Values bucket = d.bucketed(problem);
  const Target::Kind target = handle.engine().device()->info().target.kind;
  if (empty(d.geometry(d.space.default_config(target), problem)))
    throw UserError(format("kernel {} for {}: the grid is empty, there is nothing to tune", d.name,
                           d.describe_problem(problem)));
  return bucket;
}

namespace {

/// As far as spaces can be compared: constraints are functions.
bool same_space(const DynamicSpace& a, const DynamicSpace& b) {
  const auto same_parameter = [](const Parameter& x, const Parameter& y) {
    return x.name == y.name && x.values == y.values;
  };
  return std::equal(a.parameters().begin(), a.parameters().end(), b.parameters().begin(),
                    b.parameters().end(), same_parameter) &&
         a.default_config(Target::Kind::cuda) == b.default_config(Target::Kind::cuda) &&
         a.default_config(Target::Kind::host) == b.default_config(Target::Kind::host);
}

}  // namespace

std::vector<TuneResult> Runtime::tune(std::span<const TuneJob> jobs,
                                      const TuneOptions& asked) const {
  const TuneOptions options = engine_->with_ranks(asked);
  std::vector<TuneResult> results;
  if (!options.ranks) {
    for (const TuneJob& job : jobs) results.push_back(job.kernel.tune(job.problem, options));
    return results;
  }
  std::vector<runtime::Subject> subjects;
  std::vector<Key> keys;  // of the subjects
  std::vector<std::size_t> subject_of;
  for (const TuneJob& job : jobs) {
    if (&job.kernel.core_->engine() != engine_.get())
      throw UserError("tune: a job's kernel belongs to another runtime");
    if (job.kernel.core_->chosen())
      throw UserError(
          format("tune: the config of kernel {} was chosen; ranks cannot agree on another",
                 job.kernel.core_->definition().name));
    const KernelDefinition& d = job.kernel.core_->definition();
    Values bucket = runtime::bucket_to_tune(*job.kernel.core_, job.problem);
    keys.push_back(engine_->records().key(d, bucket));
    const auto same = std::find_if(subjects.begin(), subjects.end(), [&](const auto& s) {
      return keys[static_cast<std::size_t>(&s - subjects.data())] == keys.back() &&
             same_space(s.kernel->space, d.space);
    });
    subject_of.push_back(static_cast<std::size_t>(same - subjects.begin()));
    if (same == subjects.end())
      subjects.push_back({&d, std::move(bucket)});
    else
      keys.pop_back();
  }
  runtime::KernelTrials trials(engine_->device(), engine_->builder(), subjects, options);
  const auto agreed = runtime::tune_together(engine_->workshop(), subjects, options, trials);
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

}  // namespace kiln
