// Runtime::tune: many problems in one go.
#include "runtime/prepare/tune_jobs.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <map>
#include <numeric>
#include <utility>
#include <variant>
#include <vector>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/prepare/tune_model.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/together/bench_trials.hpp"
#include "runtime/together/tune_together.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln {

using detail::format;

namespace {

/// Whether two definitions look like one kernel's, as far as they can be compared: launch and
/// constraints are functions.
bool alike(const KernelDefinition& a, const KernelDefinition& b, const Target& target) {
  const auto same_parameter = [](const Parameter& x, const Parameter& y) {
    return x.name == y.name && x.values == y.values && x.only == y.only;
  };
  const auto same_constraint = [](const Constraint& x, const Constraint& y) {
    return x.reason == y.reason && x.on == y.on;
  };
  const auto &p = a.space.parameters(), &q = b.space.parameters();
  const auto &c = a.space.constraints(), &d = b.space.constraints();
  return std::equal(p.begin(), p.end(), q.begin(), q.end(), same_parameter) &&
         std::equal(c.begin(), c.end(), d.begin(), d.end(), same_constraint) &&
         a.space.default_config(target) == b.space.default_config(target) &&
         a.deterministic == b.deterministic && !a.default_for == !b.default_for;
}

/// Whether what was chosen for `a` is allowed for `b`, and launched alike.
bool holds_for(const KernelDefinition& b, const KernelDefinition& a, const TuneResult& chosen,
               const DeviceLimits& limits) {
  const Values& config = chosen.winner().config;
  if (b.space.violated(config, chosen.problem, limits)) return false;
  return detail::plan(a, config, chosen.problem, limits) ==
         detail::plan(b, config, chosen.problem, limits);
}

/// Where ranks came to nothing: each of these jobs has the default of its own kernel.
void give_own_defaults(detail::Engine& engine, std::span<const runtime::HandleProblem> jobs,
                       const std::vector<std::size_t>& which, std::vector<TuneResult>& results) {
  for (const std::size_t j : which) {
    TuneResult own =
        runtime::not_tuned(jobs[j].handle->definition(), results[j].problem,
                           engine.device()->info(), results[j].end, results[j].agreed->why);
    own.agreed = std::move(results[j].agreed);
    results[j] = std::move(own);
  }
}

/// What ranks are asked to agree on.
struct Asked {
  std::vector<runtime::TunableProblem> problems;
  runtime::BenchTrials::Makers makers;
  std::vector<std::size_t> problem_of;  ///< by entry of `left`
};

/// The problems of the jobs that are left; jobs that are alike share one.
/// @throws what functions of the program throw
Asked ask(detail::Engine& engine, std::span<const runtime::HandleProblem> jobs,
          const std::vector<std::size_t>& left, const TuneOptions& options) {
  Asked asked;
  std::vector<Key> keys;
  for (const std::size_t j : left) {
    const KernelDefinition& d = jobs[j].handle->definition();
    Values bucket = runtime::bucket_to_tune(*jobs[j].handle, jobs[j].problem);
    Key key = engine.records().key(d, bucket);
    std::size_t s = 0;
    while (s < asked.problems.size() &&
           !(keys[s] == key &&
             alike(*asked.problems[s].what.kernel(), d, engine.device()->info().target)))
      ++s;
    asked.problem_of.push_back(s);
    if (s < asked.problems.size()) continue;
    asked.makers.push_back(engine.maker(d, bucket, options));
    asked.problems.push_back({d, std::move(bucket)});
    keys.push_back(std::move(key));
  }
  return asked;
}

/// Returns one result for each job. `all.failures` says which jobs this rank left to the other
/// ranks, because it could not tell whether another job's config suits them.
std::vector<TuneResult> agree_on_all(detail::Engine& engine,
                                     std::span<const runtime::HandleProblem> jobs,
                                     const TuneOptions& options, bool may_measure,
                                     runtime::Agreed& all) {
  using namespace runtime;
  std::vector<TuneResult> results(jobs.size());
  std::vector<std::size_t> left(jobs.size());
  std::iota(left.begin(), left.end(), std::size_t{0});
  // A config that was chosen for one handle may not suit another handle of the same kernel, whose
  // functions differ. That one is then agreed on by itself, on all ranks alike.
  while (!left.empty()) {
    Asked asked = tell_if_it_throws(options, [&] { return ask(engine, jobs, left, options); });
    const std::vector<TunableProblem>& problems = asked.problems;
    const std::vector<std::size_t>& problem_of = asked.problem_of;
    BenchTrials trials(std::move(asked.makers), options);
    const auto agreed =
        tune_together(engine.workshop(), problems, options, trials, false, may_measure);
    for (const TuneResult& result : agreed) all.compiled += result.compiled;
    std::vector<std::size_t> others;
    bool holds = true;
    std::exception_ptr thrown;
    for (std::size_t i = 0; i < left.size(); ++i) {
      const KernelDefinition& own = jobs[left[i]].handle->definition();
      const KernelDefinition& tuned = *problems[problem_of[i]].what.kernel();
      results[left[i]] = agreed[problem_of[i]];
      if (&own == &tuned) continue;
      others.push_back(left[i]);
      try {
        holds = holds && holds_for(own, tuned, results[left[i]], engine.device()->info().limits);
      } catch (...) {  // the others ask whether it holds here: it does not
        holds = false;
        thrown = std::current_exception();
      }
    }
    if (others.empty()) break;
    if (results[others.front()].agreed->outcome == RankReport::Outcome::defaults) {
      if (!holds) give_own_defaults(engine, jobs, others, results);
      break;
    }
    // Ranks with unlike devices may differ in whether it holds. All go on, or none.
    if (holds_on_all(engine.workshop(), options, holds)) break;
    if (thrown) {
      announce_absence(options, "it cannot tell whether another kernel's config suits its own");
      for (const std::size_t j : others) {
        all.failures[j] = thrown;
        remember_absence(engine, jobs[j].handle->problems(), jobs[j].handle->definition(),
                         jobs[j].problem, options, thrown);
      }
      break;
    }
    left = std::move(others);
  }
  return results;
}

}  // namespace

runtime::Agreed runtime::tune_together_and_use(detail::Engine& engine,
                                               std::span<const HandleProblem> jobs,
                                               const TuneOptions& options, bool may_measure) {
  may_measure = may_measure && engine.workshop().may_measure(false);
  Agreed all;
  all.failures.resize(jobs.size());
  std::vector<TuneResult> results;
  try {
    results = agree_on_all(engine, jobs, options, may_measure, all);
  } catch (...) {
    const std::exception_ptr why = std::current_exception();
    for (const auto& [handle, problem] : jobs)
      remember_absence(engine, handle->problems(), handle->definition(), problem, options, why);
    throw;
  }
  // Everything is agreed. If one kernel fails here, this rank must not ask the others about the
  // next one again.
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    ServedHandle& handle = *jobs[j].handle;
    const Ending ending = ending_of(results[j], may_measure);
    TuneOutcome& tuned =
        all.tuned.emplace_back(TuneOutcome{.result = std::move(results[j]), .ending = ending});
    if (all.failures[j]) continue;
    if (is_failure(tuned))
      all.failures[j] = std::make_exception_ptr(NoneUsable(handle.definition(), tuned.result));
    try {
      handle.use_outcome(tuned, options);
    } catch (...) {
      all.failures[j] = std::current_exception();
    }
  }
  return all;
}

std::vector<TuneResult> Runtime::tune(std::span<const TuneJob> jobs,
                                      const TuneOptions& asked) const {
  const TuneOptions options = engine_->completed(asked);
  std::vector<runtime::HandleProblem> problems;
  const auto kernel_of = [](const TuneJob& job) -> detail::HandleCore* {
    const auto* kernel = std::get_if<DynamicTuned>(&job.what);
    return kernel ? kernel->core_.get() : nullptr;
  };
  const auto choice_of = [](const TuneJob& job) -> detail::ChoiceCore* {
    const auto* choice = std::get_if<DynamicChoice>(&job.what);
    return choice ? choice->core_.get() : nullptr;
  };
  const auto name_of = [&](const TuneJob& job) {
    const detail::HandleCore* const kernel = kernel_of(job);
    return kernel ? "kernel " + kernel->definition().name
                  : "choice " + choice_of(job)->description().name;
  };
  const auto owned = [&](const TuneJob& job) {
    const detail::HandleCore* const kernel = kernel_of(job);
    return (kernel ? &kernel->engine() : &choice_of(job)->engine()) == engine_.get();
  };
  // The job keeps its handle alive.
  const auto problem_of = [&](const TuneJob& job) {
    return runtime::HandleProblem{engine_->serving().find(*kernel_of(job)).get(), job.problem};
  };
  runtime::tell_if_it_throws(
      options,
      [&] {
        for (const TuneJob& job : jobs) {
          if (!owned(job))
            throw UserError(format("tune: {} of a job belongs to another runtime", name_of(job)));
          if (kernel_of(job)) problems.push_back(problem_of(job));
        }
        for (const TuneJob& job : jobs) {
          if (!(job.weight >= 0) || !std::isfinite(job.weight))
            throw UserError(
                format("tune: the weight of {} is {}; it must be finite and not negative",
                       name_of(job), job.weight));
          if (options.ranks && !kernel_of(job))
            throw UserError(
                format("tune: with ranks jobs are kernels: tune {} by itself, on all ranks",
                       name_of(job)));
          if (options.ranks && kernel_of(job)->fixed())
            throw UserError(format("tune: the config of {} is fixed; ranks cannot agree on another",
                                   name_of(job)));
        }
      },
      [&](const std::exception_ptr& why) {
        for (const TuneJob& job : jobs) {
          if (!owned(job) || !kernel_of(job)) continue;
          const auto [handle, problem] = problem_of(job);
          runtime::remember_absence(*engine_, handle->problems(), handle->definition(), problem,
                                    options, why);
        }
      });
  if (jobs.empty()) {
    runtime::announce_absence(options, "it has no job");
    return {};
  }
  // The environment's limit holds for each tuning by itself.
  const bool one_budget = asked.max_seconds.value_or(0) > 0;
  if (!options.ranks && !one_budget) {
    runtime::check(options);
    std::vector<TuneResult> results;
    std::map<std::pair<const void*, Values>, std::size_t> places;
    for (const TuneJob& job : jobs) {
      const detail::HandleCore* const kernel = kernel_of(job);
      const void* const what = kernel ? static_cast<const void*>(kernel) : choice_of(job);
      const KernelDefinition& operation =
          kernel ? kernel->definition() : choice_of(job)->description().operation;
      const auto [place, first] =
          places.try_emplace({what, operation.bucketed(job.problem)}, results.size());
      results.push_back(
          first ? std::visit([&](const auto& tuned) { return tuned.tune(job.problem, options); },
                             job.what)
                : results[place->second]);
    }
    return results;
  }
  if (!options.ranks) {
    std::vector<runtime::BudgetJob> all;
    for (const TuneJob& job : jobs)
      all.push_back({kernel_of(job) ? problem_of(job).handle : nullptr, choice_of(job), job.problem,
                     job.weight});
    runtime::check(options);
    return runtime::tune_model(*engine_, all, options);
  }
  runtime::Agreed agreed = runtime::tune_together_and_use(*engine_, problems, options, true);
  for (const std::exception_ptr& failure : agreed.failures)
    if (failure) std::rethrow_exception(failure);
  std::vector<TuneResult> results;
  for (runtime::TuneOutcome& tuned : agreed.tuned) results.push_back(std::move(tuned.result));
  return results;
}

}  // namespace kiln
