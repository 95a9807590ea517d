#include "runtime/serve/tune_one.hpp"

#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/error.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/tune/candidates.hpp"

namespace kiln::runtime {

using detail::format;

Values bucket_to_tune(const detail::HandleCore& handle, const Values& problem) {
  const KernelDefinition& d = handle.definition();
  Values bucket = d.bucketed(problem);
  const DeviceInfo& device = handle.engine().device()->info();
  const Values base = detail::Tunable(d).default_config(problem, device.target, device.limits);
  if (empty(d.launch(base, problem, handle.limits())))
    throw UserError(format("kernel {} for {}: the grid is empty, there is nothing to tune", d.name,
                           d.describe_problem(problem)));
  return bucket;
}

Digest request_digest(detail::Engine& engine, const KernelDefinition& kernel,
                      std::span<const std::int64_t> problem, const TuneOptions& options) {
  detail::KeyBuilder key("tuning", 1);
  for (const std::int64_t value : problem) key.add("problem", value);
  if (const auto source = engine.builder().kernel_source(kernel)) key.add("source", *source);
  return key.add("strategy", options.strategy)
      .add("seed", static_cast<std::int64_t>(options.seed))
      .add("evaluations", static_cast<std::int64_t>(options.max_evaluations.value_or(0)))
      .add("limits", format("{} {}", options.max_seconds.value_or(0), options.target_seconds))
      .add("cold", std::int64_t{options.cold_cache})
      .add("overlapping", std::int64_t{options.overlap_launches})
      .add("eager", std::int64_t{options.launching == Launching::eager})
      .finish()
      .digest;
}

bool is_unusable(const TuneResult& result) {
  return was_built(result.winner()) && result.winner().status != CandidateStatus::measured;
}

bool take_choice(const detail::Engine& engine, Problems& problems, const TuneResult& result,
                 const TuneOptions& options) {
  const RuntimeOptions& common = engine.options();
  if (!common.tuning.ranks) return true;
  const Values& problem = result.problem;
  // In mode background launches ask no rank, and all have the untuned config until a commit.
  if (result.agreed && result.agreed->outcome == RankReport::Outcome::defaults &&
      (common.mode == Mode::background || problems.agreed(problem) || problems.find(problem)))
    return false;
  const auto by =
      options.ranks == common.tuning.ranks ? Problems::By::all_ranks : Problems::By::this_rank;
  if (problems.agree(problem, result.winner().config, by)) return true;
  engine.log(LogLevel::warning,
             format("{}: ranks can agree on at most {} problems per handle; the config chosen for "
                    "this further problem is not used",
                    result.kernel, Problems::kMostAgreed));
  return false;
}

}  // namespace kiln::runtime
