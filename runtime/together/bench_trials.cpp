#include "runtime/together/bench_trials.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/cost_model.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// How far a cost model's word is taken on how long a candidate runs.
constexpr double kMostFactor = 8;
/// Data that wait for their next turn have 1 / kPartsOfMemory of the host's memory, which the ranks
/// of a machine share.
constexpr std::int64_t kPartsOfMemory = 32;

double seconds_until(Deadline deadline) {
  return std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count();
}

}  // namespace

BenchTrials::BenchTrials(Makers makers, const TuneOptions& options)
    : makers_(std::move(makers)),
      options_(options),
      seen_(makers_.size()),
      loaded_(makers_.size()) {
  const RankOptions& together = options.together;
  const bool sharded = together.strategy == RankStrategy::shard && !together.lockstep;
  if (makers_.size() == 1 || !sharded) return;  // each bench is made once
  const auto memory = std::make_shared<KeptMemory>(kPartsOfMemory);
  for (const auto& maker : makers_) maker->keep_data(memory);
}

template <class Work>
std::optional<Refusal> BenchTrials::refusal_of(const Work& work) {
  try {
    return work();
  } catch (const DeviceLost&) {
    throw;
  } catch (const OutOfMemory& error) {
    return Refusal{CandidateStatus::not_tried, error.what()};
  } catch (const Error& error) {
    return Refusal{CandidateStatus::launch_failed, error.what()};
  }
}

std::optional<Refusal> BenchTrials::make_data(std::size_t problem) {
  return refusal_of([&]() -> std::optional<Refusal> {
    get_ready_for_lockstep(problem);
    return {};
  });
}

std::optional<Refusal> BenchTrials::make_ready(std::size_t problem, const Values& config,
                                               bool for_lockstep) {
  if (!for_lockstep) {
    const std::lock_guard lock(data_mutex_);
    if (loaded_[problem].module && loaded_[problem].config == config) return {};
  }
  TrialMaker& maker = *makers_[problem];
  const Build build = maker.build(config);
  if (const auto* failure = std::get_if<CompileFailure>(&build.outcome))
    return Refusal{CandidateStatus::compile_failed, "does not compile:\n" + failure->log};
  if (const auto* missing = std::get_if<Missing>(&build.outcome))
    return Refusal{CandidateStatus::not_tried,
                   missing->wanted.fields.empty() ? missing->why : missing->explain()};
  return refusal_of([&]() -> std::optional<Refusal> {
    if (for_lockstep && isolated_) return {};  // it is loaded there, when all ranks try it
    auto loaded = maker.load(config, build);
    if (auto* refusal = std::get_if<Refusal>(&loaded)) return std::move(*refusal);
    Loaded latest{config, std::get<std::shared_ptr<Module>>(std::move(loaded))};
    {
      const std::lock_guard lock(data_mutex_);
      std::swap(loaded_[problem], latest);  // the one before is unloaded without the lock
    }
    if (for_lockstep) return refusal_in_step(problem, config, build);
    return {};
  });
}

/// Tunes `configs` alone. A kernel without a reference is checked against its default's outputs.
TuneResult BenchTrials::tune(std::size_t problem, std::span<const Values> configs, bool decides,
                             double seconds) {
  TrialMaker& maker = maker_with_data(problem);
  if (decides) maker.use_up_data();  // no more is asked of this problem
  TuneOptions options = options_;
  options.max_evaluations = 0;
  options.target_seconds = 0;
  options.max_seconds = seconds;
  TuneContext context;
  context.only = configs;
  context.finals = decides;
  const auto earlier = defaults_.find(problem);
  if (earlier != defaults_.end()) context.prior = &earlier->second;
  TuneResult result, so_far;
  context.save = [&](const TuneResult& unfinished) { so_far = unfinished; };
  maker.check();
  bool ready = true;
  try {
    maker.bench();  // without memory for the data nothing can be measured here
  } catch (const BenchLost& why) {
    ready = false;
    result.warnings.emplace_back(why.what());
  }
  if (ready) try {
      result = runtime::tune(maker, options, context).result;
    } catch (const OutOfMemory&) {
      // No memory for any of them: they are not tried.
    } catch (const BenchLost& lost) {
      // None of them can be tried any more.
      result.warnings.emplace_back(lost.what());
    } catch (const NoneUsable& failed) {
      result = failed.result();
    } catch (const DeviceLost& lost) {
      throw TrialLostDevice(lost, problem, std::move(so_far.candidates));
    }
  if (earlier != defaults_.end()) defaults_.erase(earlier);
  auto& seen = seen_[problem];
  if (!seen) seen.emplace();
  seen->wall_seconds += result.wall_seconds;
  seen->compile_seconds += result.compile_seconds;
  seen->verify_seconds += result.verify_seconds;
  seen->time_seconds += result.time_seconds;
  seen->search_seconds += result.search_seconds;
  seen->compiled += result.compiled;
  seen->evaluated += result.evaluated;
  seen->spans.insert(seen->spans.end(), result.spans.begin(), result.spans.end());
  seen->warnings.insert(seen->warnings.end(), result.warnings.begin(), result.warnings.end());
  return result;
}

std::vector<std::vector<Candidate>> BenchTrials::measure(std::span<const Request> requests,
                                                         Deadline deadline) {
  std::size_t left = 0;
  for (const Request& request : requests) left += request.configs.size();
  std::vector<std::vector<Candidate>> results;
  for (const Request& request : requests) {
    const std::vector<Values>& configs = request.configs;
    std::vector<Candidate>& measured = results.emplace_back();
    for (const Values& config : configs) measured.emplace_back().config = config;
    // Each problem gets its part of the time; what it does not need is there for the next.
    const double part = static_cast<double>(configs.size()) / static_cast<double>(left);
    left -= configs.size();
    const double seconds = seconds_until(deadline) * part;
    if (seconds <= 0 || options_.stop.stop_requested()) continue;
    const TuneResult result = tune(request.problem, configs, request.decides, seconds);
    for (Candidate& candidate : measured) {
      const auto found =
          std::find_if(result.candidates.begin(), result.candidates.end(),
                       [&](const Candidate& c) { return c.config == candidate.config; });
      if (found != result.candidates.end()) candidate = *found;
    }
  }
  return results;
}

/// Only the latest problem has data on the device, because data are large.
TrialMaker& BenchTrials::maker_with_data(std::size_t problem) {
  if (const std::size_t before = std::exchange(data_of_, problem); before != problem)
    makers_[before]->drop_bench();
  return *makers_[problem];
}

void BenchTrials::get_ready_for_lockstep(std::size_t problem) {
  std::lock_guard lock(data_mutex_);
  // The reference is computed now: in step, ranks would wait for each other's references.
  maker_with_data(problem).expect();
}

/// Once other ranks are in a launch, it is too late to find that this rank cannot make it: that its
/// bench refuses the trial, or has no memory for the data.
std::optional<Refusal> BenchTrials::refusal_in_step(std::size_t problem, const Values& config,
                                                    const Build& build) {
  get_ready_for_lockstep(problem);
  std::lock_guard lock(data_mutex_);
  TrialMaker& maker = maker_with_data(problem);
  auto loaded = maker.bench().load(maker.trial(config, build));
  if (auto* refusal = std::get_if<Refusal>(&loaded)) return std::move(*refusal);
  return {};
}

void BenchTrials::isolate() {
  for (const auto& maker : makers_) maker->isolate();
}

std::string BenchTrials::why_not_in_workers() const {
  for (const auto& maker : makers_)
    if (std::string why = maker->why_not_in_workers(); !why.empty()) return why;
  return {};
}

void BenchTrials::isolate_in_step() {
  isolated_ = true;
  for (const auto& maker : makers_) maker->isolate_in_step(options_.ranks, options_.together);
}

void BenchTrials::keep_warnings(std::size_t problem) {
  std::vector<std::string> warnings = makers_[problem]->take_warnings();
  if (warnings.empty()) return;
  auto& seen = seen_[problem];
  if (!seen) seen.emplace();
  seen->warnings.insert(seen->warnings.end(), warnings.begin(), warnings.end());
}

Candidate BenchTrials::measure_in_step(std::size_t problem, const Values& config,
                                       TimingPolicy timing, Deadline) {
  // The caches stay warm: ranks would time each other's flushes.
  timing.overlap_launches = options_.overlap_launches;
  timing.replay = options_.launching != Launching::eager;
  if (isolated_) {
    TrialMaker& maker = maker_with_data(problem);
    auto candidate = maker.measure_in_workers(config, timing);
    keep_warnings(problem);
    if (candidate) return *std::move(candidate);
  }
  Candidate candidate;
  GuardedLaunches launches(options_.together.guard);
  launches.share_failure([&] {
    get_ready_for_lockstep(problem);
    TrialMaker& maker = *makers_[problem];
    Trial trial = maker.trial(config, maker.build(config));
    trial.timing = timing;
    try {
      candidate = runtime::measure_in_step(maker.bench(), trial, config, launches);
    } catch (const DeviceLost& lost) {
      candidate.config = config;
      candidate.status = CandidateStatus::crashed;
      candidate.reason = lost.what();
      throw TrialLostDevice(lost, problem, {candidate});
    }
  });
  return candidate;
}

std::vector<Trials::Cost> BenchTrials::costs(std::size_t problem, std::span<const Values> configs,
                                             Deadline deadline) {
  TrialMaker& maker = *makers_[problem];
  const Values& first = configs.front();
  const double left = seconds_until(deadline);
  if (left <= 0) return {};
  const double most = options_.max_seconds.value_or(0);
  const TuneResult result =
      tune(problem, std::span(&first, 1), false, most > 0 ? std::min(most, left) : left);
  const bool measured =
      !result.candidates.empty() && result.candidates.front().status == CandidateStatus::measured;
  if (!measured) return {};  // time was over, or it fails: its trial will show which
  double compile = 0;
  for (const TraceSpan& span : result.spans)
    if (span.name == "compile") compile += span.seconds;
  const double run = result.verify_seconds + result.time_seconds;
  const CostModel model(maker.subject(), maker.problem(), maker.device());
  const double expected = model.seconds(first);
  std::vector<Cost> costs;
  for (const Values& config : configs) {
    double factor = model.seconds(config) / expected;
    factor = std::isfinite(factor) ? std::clamp(factor, 1 / kMostFactor, kMostFactor) : 1;
    costs.push_back({compile, run * factor});
  }
  defaults_.insert_or_assign(problem, result);
  return costs;
}

std::shared_ptr<Module> BenchTrials::take_module(std::size_t problem, const Values& config) {
  const std::lock_guard lock(data_mutex_);
  Loaded& loaded = loaded_[problem];
  return loaded.config == config ? std::exchange(loaded.module, nullptr) : nullptr;
}

void BenchTrials::annotate(std::size_t problem, TuneResult& result) const {
  result.complete = result.complete && !makers_[problem]->may_improve();
  if (!seen_[problem]) return;
  const TuneResult& seen = *seen_[problem];
  result.compile_seconds = seen.compile_seconds;
  result.verify_seconds = seen.verify_seconds;
  result.time_seconds = seen.time_seconds;
  result.search_seconds = seen.search_seconds;
  result.compiled = seen.compiled;
  result.evaluated = seen.evaluated;
  result.spans = seen.spans;
  result.warnings = seen.warnings;
}

}  // namespace kiln::runtime
