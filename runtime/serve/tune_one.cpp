#include "runtime/serve/tune_one.hpp"

#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/error.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/together/alone_or_together.hpp"
#include "runtime/together/measuring_together.hpp"
#include "runtime/together/tune_together.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/kernel_maker.hpp"

namespace kiln::runtime {

using detail::format;

namespace {

/// Identifies a problem of one handle, and what the kernel's source is now.
detail::KeyBuilder key_of(detail::Engine& engine, const KernelDefinition& kernel,
                          std::span<const std::int64_t> problem) {
  detail::KeyBuilder key("tuning", 1);
  for (const std::int64_t value : problem) key.add("problem", value);
  if (const auto source = engine.builder().source_digest(kernel)) key.add("source", *source);
  return key;
}

/// Identifies a request to tune.
Digest request_digest(detail::KeyBuilder key, const TuneOptions& options) {
  return key.add("strategy", options.strategy)
      .add("seed", static_cast<std::int64_t>(options.seed))
      .add("evaluations", static_cast<std::int64_t>(options.max_evaluations.value_or(0)))
      .add("limits", format("{} {} {}", options.max_seconds.value_or(0), options.target_seconds,
                            options.candidate_seconds))
      .add("cold", std::int64_t{options.cold_cache})
      .add("overlapping", std::int64_t{options.overlap_launches})
      .add("eager", std::int64_t{options.launching == Launching::eager})
      .finish()
      .digest;
}

TuneOutcome tune_with_ranks(detail::Engine& engine, Problems& problems,
                            const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                            const TuneOptions& options, bool for_launch) {
  try {
    return tune_one(engine, kernel, problem, options, for_launch);
  } catch (...) {
    remember_absence(engine, problems, problem, options, std::current_exception());
    throw;
  }
}

}  // namespace

void remember_absence(const detail::Engine& engine, Problems& problems,
                      std::span<const std::int64_t> problem, const TuneOptions& options,
                      std::exception_ptr why) {
  const RuntimeOptions& common = engine.options();
  const bool launches_ask = options.ranks && options.ranks == common.tuning.ranks &&
                            common.mode != Mode::background && !MeasuringTogether::here();
  if (launches_ask && !problems.agreed(problem) && !problems.find(problem))
    problems.remember_none(problem, std::move(why));
}

void remember_absence(const detail::Engine& engine, Problems& problems,
                      const KernelDefinition& kernel, std::span<const std::int64_t> exact,
                      const TuneOptions& options, std::exception_ptr why) noexcept {
  try {
    remember_absence(engine, problems, kernel.bucketed(exact), options, std::move(why));
  } catch (...) {
    // `bucket` fails for launches, too; where there is no memory, the program has the first one.
  }
}

TuneOutcome tune_one(detail::Engine& engine, const KernelDefinition& kernel,
                     std::span<const std::int64_t> problem, const TuneOptions& options,
                     bool for_launch, const RecordRead& known) {
  auto maker = tell_if_it_throws(options, [&] { return engine.maker(kernel, problem, options); });
  return tune_alone_or_together(engine.workshop(), std::move(maker), options, for_launch, known);
}

Values bucket_to_tune(const detail::HandleCore& handle, std::span<const std::int64_t> problem) {
  const KernelDefinition& d = handle.definition();
  Values bucket = d.bucketed(problem);
  // Manifests, records and ranks hold buckets, and ask for them as for problems.
  if (const Values again = d.bucketed(bucket); again != bucket)
    throw UserError(format("kernel {}: the bucket of {} is {}, whose own bucket is {}", d.name,
                           d.describe_problem(problem), d.describe_problem(bucket),
                           d.describe_problem(again)));
  const DeviceInfo& device = handle.engine().device()->info();
  const Values base = detail::Tunable(d).default_config(bucket, device.target, device.limits);
  if (empty(d.launch(base, problem, handle.limits())))
    throw UserError(format("kernel {} for {}: the grid is empty, there is nothing to tune", d.name,
                           d.describe_problem(problem)));
  return bucket;
}

TuneOutcome tune_or_fail_again(detail::Engine& engine, Problems& problems,
                               const KernelDefinition& kernel,
                               std::span<const std::int64_t> problem, const TuneOptions& options,
                               bool for_launch, const RecordRead& known) {
  if (options.ranks) return tune_with_ranks(engine, problems, kernel, problem, options, for_launch);
  const detail::KeyBuilder key = key_of(engine, kernel, problem);
  const Digest request = request_digest(key, options),
               any_request = detail::KeyBuilder(key).finish().digest;
  if (options.retune && !for_launch)
    engine.builder().forget_failures();
  else if (const auto failed = problems.failure(request))
    throw TuningFailedError(*failed);
  try {
    TuneOutcome tuned = tune_one(engine, kernel, problem, options, for_launch, known);
    problems.forget_failure(request);
    problems.forget_failure(any_request);
    return tuned;
  } catch (const NoneUsable& error) {
    problems.remember_failure(request, error);
    if (error.result().complete) problems.remember_failure(any_request, error);
    throw;
  }
}

std::optional<TuningFailedError> none_usable(detail::Engine& engine, const Problems& problems,
                                             const KernelDefinition& kernel,
                                             std::span<const std::int64_t> problem) {
  return problems.failure(key_of(engine, kernel, problem).finish().digest);
}

Taken taken_of(Ending ending, bool held) {
  switch (ending) {
    case Ending::winner:
      return Taken::chosen;
    case Ending::defaults:
      return held ? Taken::kept : Taken::chosen;
    case Ending::undecided:
      return Taken::kept;
    case Ending::unusable:
      break;
  }
  return Taken::unusable;
}

bool is_failure(const TuneOutcome& tuned) {
  return tuned.ending == Ending::unusable && tuned.result.count(CandidateStatus::not_tried) == 0;
}

Taken take_outcome(detail::Engine& engine, Problems& problems, const KernelDefinition& kernel,
                   const TuneOutcome& tuned, const TuneOptions& options) {
  const RuntimeOptions& common = engine.options();
  const TuneResult& result = tuned.result;
  const Values& problem = result.problem;
  const bool launches_ask = common.tuning.ranks != nullptr;
  // In mode background launches ask no rank, and all have the untuned config until a commit.
  const bool held = (launches_ask && common.mode == Mode::background) || problems.agreed(problem) ||
                    problems.find(problem);
  if (!launches_ask) return taken_of(tuned.ending, held);
  const auto by =
      options.ranks == common.tuning.ranks ? Problems::By::all_ranks : Problems::By::this_rank;
  const Taken taken = taken_of(tuned.ending, held);
  if (taken == Taken::unusable && !held && by == Problems::By::all_ranks)
    problems.remember_none(problem, std::make_exception_ptr(NoneUsable(kernel, result)));
  if (taken != Taken::chosen) return taken;
  if (problems.agree(problem, result.winner().config, by)) return Taken::chosen;
  engine.log(LogLevel::warning,
             format("{}: ranks can agree on at most {} problems per handle; the config chosen for "
                    "this further problem is not used",
                    result.kernel, Problems::kMostAgreed));
  return Taken::kept;
}

}  // namespace kiln::runtime
