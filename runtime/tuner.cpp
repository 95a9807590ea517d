#include "runtime/tuner.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <set>

#include "kiln/detail/format.hpp"
#include "runtime/device_workload.hpp"
#include "runtime/measure.hpp"
#include "runtime/strategy.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// Loaded modules and their samples are kept for one batch at a time.
constexpr std::size_t kBatch = 64;
/// Under a time limit the clock is looked at more often.
constexpr std::size_t kTimedBatch = 8;
/// A winner must beat the default by this much at least, whatever the samples' own deviation.
constexpr double kLeastGain = 0.01;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class TuningRun {
 public:
  TuningRun(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
            std::shared_ptr<Device> device, Builder& builder, const TuneOptions& options,
            const TuneResult* prior, const LogSink& log)
      : kernel_(kernel),
        problem_(problem),
        device_(std::move(device)),
        limits_(device_->info().limits),
        default_(kernel.space.default_config(device_->info().target.kind)),
        builder_(builder),
        options_(options),
        log_(log) {
    result_.kernel = kernel.name;
    result_.types = kernel.types;
    result_.problem_fields = kernel.problem_fields;
    result_.problem.assign(problem.begin(), problem.end());
    result_.device = device_->info().id;
    for (const Parameter& p : kernel.space.parameters()) result_.parameters.push_back(p.name);
    if (kernel.flops) result_.flops = kernel.flops(problem);
    if (kernel.bytes) result_.bytes = kernel.bytes(problem);
    if (prior && prior->parameters == result_.parameters)
      for (const Candidate& c : prior->candidates)
        if (was_built(c) && !rejection(c.config)) prior_.emplace(c.config, &c);
    if (prior && prior_.count(prior->winner().config)) prior_winner_ = prior->winner().config;
  }

  TuneResult run() {
    const auto start = Clock::now();
    const SearchProblem search{kernel_.space, default_, problem_, limits_, options_.seed};
    const auto strategy = make_strategy(options_.strategy, search);
    if (!kernel_.workload)
      throw UserError(
          format("kernel {}: `workload` is missing, so it cannot be tuned", kernel_.name));
    if (empty(kernel_.geometry(default_, problem_)))
      throw UserError(format("kernel {} for {}: the grid is empty, there is nothing to tune",
                             kernel_.name, kernel_.describe_problem(problem_)));
    {
      const auto made = Clock::now();
      workload_.emplace(kernel_, problem_, device_, options_.seed);
      result_.verify_seconds += seconds_since(made);
    }

    // The default and an earlier winner lead the first batch; the strategy's choices follow.
    std::vector<Values> batch{default_};
    if (!prior_winner_.empty() && prior_winner_ != batch[0] && options_.max_evaluations != 1)
      batch.push_back(prior_winner_);
    for (const Values& config : batch) {
      prior_.erase(config);
      add(config);
    }
    std::vector<Values> more = next_batch(*strategy, batch.size());
    batch.insert(batch.end(), more.begin(), more.end());
    while (!batch.empty()) {
      evaluate(batch);
      for (const Values& config : batch) strategy->observe(config, seconds_of(config));
      if (out_of_budget(start)) break;
      batch = next_batch(*strategy, 0);
    }
    result_.complete = nothing_left(*strategy);
    // What is known and was not proposed again in this budget is not forgotten.
    for (const auto& [config, known] : prior_)
      if (index_.emplace(config, result_.candidates.size()).second)
        result_.candidates.push_back(*known);
    const Candidate& base = result_.candidates[0];
    if (base.status != CandidateStatus::measured)
      say(LogLevel::warning, format("{}: the default config {} cannot be used: {}", kernel_.name,
                                    result_.describe(base), base.reason));
    decide();
    result_.wall_seconds = seconds_since(start);
    return std::move(result_);
  }

 private:
  bool out_of_budget(Clock::time_point start) const {
    return (options_.max_evaluations && evaluated_ >= options_.max_evaluations) ||
           (options_.max_seconds > 0 && seconds_since(start) >= options_.max_seconds);
  }

  /// Configs to evaluate next, `planned` others being sure already. Known ones are taken over.
  std::vector<Values> next_batch(Strategy& strategy, std::size_t planned) {
    for (;;) {
      std::size_t count = options_.max_seconds > 0 ? kTimedBatch : kBatch;
      if (options_.max_evaluations)
        count = std::min(count, options_.max_evaluations -
                                    std::min(options_.max_evaluations, evaluated_ + planned));
      if (count == 0) return {};
      std::vector<Values> fresh;
      std::set<Values> seen;
      const std::vector<Values> proposals = strategy.propose(count);
      if (proposals.empty()) return {};
      for (const Values& config : proposals) {
        if (index_.count(config) || !seen.insert(config).second) continue;
        if (const auto known = prior_.find(config); known != prior_.end()) {
          index_.emplace(config, result_.candidates.size());
          result_.candidates.push_back(*known->second);
          strategy.observe(config, seconds_of(config));
        } else {
          fresh.push_back(config);
        }
      }
      if (!fresh.empty()) return fresh;
    }
  }

  /// Whether the strategy has no config left that could be tried; those that cannot are noted.
  bool nothing_left(Strategy& strategy) {
    for (;;) {
      const std::vector<Values> proposals = strategy.propose(kBatch);
      if (proposals.empty()) return true;
      for (const Values& config : proposals) {
        if (index_.count(config) || prior_.count(config)) continue;
        auto rejected = rejection(config);
        if (!rejected) return false;
        reject(result_.candidates[add(config)], rejected->first, std::move(rejected->second));
      }
    }
  }

  /// Index of a config's candidate, new or not.
  std::size_t add(const Values& config) {
    const auto [place, added] = index_.emplace(config, result_.candidates.size());
    if (added) result_.candidates.emplace_back().config = config;
    return place->second;
  }

  double seconds_of(const Values& config) const {
    const auto found = index_.find(config);
    if (found == index_.end()) return kInfinity;
    const Candidate& c = result_.candidates[found->second];
    return c.status == CandidateStatus::measured ? c.seconds : kInfinity;
  }

  static void reject(Candidate& candidate, CandidateStatus status, std::string reason) {
    candidate.status = status;
    candidate.reason = std::move(reason);
  }

  void evaluate(const std::vector<Values>& batch) {
    std::vector<std::size_t> pending = check(batch);
    std::vector<Contestant> contestants = compile_and_load(pending);
    verify(contestants);
    time(contestants);
  }

  /// Rejections that cost no compile.
  std::vector<std::size_t> check(const std::vector<Values>& batch) {
    std::vector<std::size_t> pending;
    for (const Values& config : batch) {
      const std::size_t index = add(config);
      Candidate& candidate = result_.candidates[index];
      if (auto rejected = rejection(config)) {
        reject(candidate, rejected->first, std::move(rejected->second));
        continue;
      }
      ++evaluated_;
      pending.push_back(index);
    }
    return pending;
  }

  std::optional<std::pair<CandidateStatus, std::string>> rejection(const Values& config) const {
    if (const Constraint* broken = kernel_.space.violated(config, problem_, limits_))
      return {{CandidateStatus::violates_constraint, broken->reason}};
    std::string impossible = geometry_problem(kernel_.geometry(config, problem_), limits_);
    if (!impossible.empty()) return {{CandidateStatus::exceeds_limits, std::move(impossible)}};
    return {};
  }

  /// Other outcomes cost nothing to find again, and depend on code that no key covers.
  static bool was_built(const Candidate& c) {
    return c.status == CandidateStatus::measured || c.status == CandidateStatus::compile_failed ||
           c.status == CandidateStatus::launch_failed || c.status == CandidateStatus::wrong_result;
  }

  std::vector<Contestant> compile_and_load(const std::vector<std::size_t>& pending) {
    const auto start = Clock::now();
    std::vector<Values> configs;
    for (std::size_t i : pending) configs.push_back(result_.candidates[i].config);
    const std::vector<Build> builds = builder_.build_all(
        kernel_, configs, device_->info().target,
        [&](std::size_t done) { progress(TuneProgress::Phase::compile, done, pending.size()); });
    result_.compile_seconds += seconds_since(start);

    std::vector<Contestant> contestants;
    for (std::size_t b = 0; b < builds.size(); ++b) {
      Candidate& candidate = result_.candidates[pending[b]];
      if (!builds[b].from_store) ++result_.compiled;
      if (const auto* failure = std::get_if<CompileFailure>(&builds[b].outcome)) {
        reject(candidate, CandidateStatus::compile_failed, failure->log);
        continue;
      }
      load(candidate, pending[b], *builds[b].binary(), contestants);
    }
    return contestants;
  }

  void load(Candidate& candidate, std::size_t index, const codegen::Binary& binary,
            std::vector<Contestant>& contestants) {
    Contestant contestant;
    contestant.candidate = index;
    contestant.geometry = kernel_.geometry(candidate.config, problem_);
    const LaunchGeometry& g = contestant.geometry;
    const auto& r = binary.resources;
    const int threads = static_cast<int>(g.block.x * g.block.y * g.block.z);
    candidate.resources = {r.registers, r.spill_stores + r.spill_loads,
                           r.static_shared + static_cast<int>(g.shared_bytes)};
    std::string problem;
    if (r.max_threads > 0 && threads > r.max_threads)
      problem =
          format("{} threads per block, but __launch_bounds__ allows {}", threads, r.max_threads);
    else if (std::int64_t{r.registers} * threads > limits_.registers_per_block)
      problem = format("{} registers for {} threads, the device has {} per block", r.registers,
                       threads, limits_.registers_per_block);
    else if (candidate.resources.shared_bytes > limits_.shared_per_block_optin)
      problem = format("{} bytes of shared memory per block, the device has {}",
                       candidate.resources.shared_bytes, limits_.shared_per_block_optin);
    if (!problem.empty()) return reject(candidate, CandidateStatus::exceeds_limits, problem);
    try {
      contestant.kernel = device_->load(binary, g.shared_bytes);
      if (device_->occupancy(*contestant.kernel, threads, g.shared_bytes) == 0)
        return reject(candidate, CandidateStatus::exceeds_limits,
                      "not one block fits a multiprocessor");
    } catch (const Error& error) {
      return reject(candidate, CandidateStatus::launch_failed, error.what());
    }
    contestants.push_back(std::move(contestant));
  }

  /// Only candidates with right outputs stay.
  void verify(std::vector<Contestant>& contestants) {
    const auto start = Clock::now();
    const Stream stream = device_->tuning_stream();
    std::size_t done = 0;
    std::erase_if(contestants, [&](Contestant& c) {
      Candidate& candidate = result_.candidates[c.candidate];
      progress(TuneProgress::Phase::verify, ++done, contestants.size());
      try {
        const DeviceWorkload::Verdict verdict = workload_->verify(stream, [&] {
          device_->launch(*c.kernel, c.geometry, stream, workload_->arguments());
        });
        candidate.max_error = verdict.max_error;
        if (verdict.right) return false;
        reject(candidate, CandidateStatus::wrong_result, verdict.why);
      } catch (const Error& error) {
        reject(candidate, CandidateStatus::launch_failed, error.what());
      }
      return true;
    });
    result_.verify_seconds += seconds_since(start);
  }

  /// The default and the best so far run again beside every batch: times from different minutes are
  /// not compared.
  void time(std::vector<Contestant>& contestants) {
    if (contestants.empty()) return;
    const auto start = Clock::now();
    for (const Contestant& anchor : anchors_) {
      contestants.push_back(anchor);
      contestants.back().samples.clear();
      contestants.back().spent = 0;
      contestants.back().active = true;
    }
    MeasureOptions measure_options;
    if (device_->shares_cpu()) measure_options.sample_seconds = 2e-4;
    measure(
        *device_, *workload_, contestants, measure_options,
        [&](std::size_t candidate) { return candidate == 0; },
        [&](std::size_t done, std::size_t total) {
          progress(TuneProgress::Phase::time, done, total);
        });
    for (Contestant& c : contestants) {
      Candidate& candidate = result_.candidates[c.candidate];
      if (!c.failure.empty()) {
        reject(candidate, CandidateStatus::launch_failed, c.failure);
        continue;
      }
      candidate.status = CandidateStatus::measured;
      candidate.samples = c.samples;
      candidate.seconds = median(c.samples);
    }
    keep_anchors(contestants);
    result_.time_seconds += seconds_since(start);
  }

  void keep_anchors(std::vector<Contestant>& contestants) {
    const Contestant* best = nullptr;
    const Contestant* base = nullptr;
    for (const Contestant& c : contestants) {
      if (!c.failure.empty()) continue;
      if (c.candidate == 0) base = &c;
      if (!best || median(c.samples) < median(best->samples)) best = &c;
    }
    std::vector<Contestant> kept;
    if (base) kept.push_back(*base);
    if (best && best != base) kept.push_back(*best);
    anchors_ = std::move(kept);
  }

  void decide() {
    auto& all = result_.candidates;
    const Candidate* best = nullptr;
    for (const Candidate& c : all)
      if (c.status == CandidateStatus::measured && (!best || c.seconds < best->seconds)) best = &c;
    if (!best) fail();
    result_.default_index = 0;
    // Within the noise the default stays; among others the first in the order of the space wins, so
    // that fresh processes agree.
    const double band = std::max(
        {kLeastGain, relative_deviation(best->samples), relative_deviation(all[0].samples)});
    const double limit = best->seconds * (1 + band);
    if (all[0].status == CandidateStatus::measured && all[0].seconds <= limit) {
      result_.winner_index = 0;
      return;
    }
    const Candidate* winner = best;
    for (const Candidate& c : all)
      if (c.status == CandidateStatus::measured && c.seconds <= limit && c.samples.size() > 1 &&
          order(c.config) < order(winner->config))
        winner = &c;
    result_.winner_index = static_cast<std::size_t>(winner - all.data());
  }

  /// Position of a config in its space: the places of its values in their lists.
  std::vector<std::size_t> order(const Values& config) const {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < config.size(); ++i) {
      const auto& values = kernel_.space.parameters()[i].values;
      places.push_back(static_cast<std::size_t>(std::find(values.begin(), values.end(), config[i]) -
                                                values.begin()));
    }
    return places;
  }

  [[noreturn]] void fail() const {
    std::vector<TuningFailedError::Reason> reasons;
    std::string text =
        format("kernel {} for {}: not one of {} candidates can be used", kernel_.name,
               kernel_.describe_problem(problem_), result_.candidates.size());
    std::map<std::string, std::pair<std::size_t, std::string>> grouped;
    for (const Candidate& c : result_.candidates) {
      reasons.push_back({result_.describe(c), std::string(to_string(c.status)) + ": " + c.reason});
      auto& [count, example] = grouped[reasons.back().reason];
      if (count++ == 0) example = reasons.back().config;
    }
    for (const auto& [reason, seen] : grouped)
      text += format("\n  {} x {} (e.g. {})", seen.first, reason, seen.second);
    throw TuningFailedError(text, std::move(reasons));
  }

  void progress(TuneProgress::Phase phase, std::size_t done, std::size_t total) const {
    if (options_.progress) options_.progress({phase, done, total});
  }
  void say(LogLevel level, const std::string& text) const {
    if (log_) log_(level, text);
  }

  const KernelDefinition& kernel_;
  std::span<const std::int64_t> problem_;
  std::shared_ptr<Device> device_;
  const DeviceLimits& limits_;
  const Values& default_;
  Builder& builder_;
  const TuneOptions& options_;
  const LogSink& log_;

  TuneResult result_;
  std::map<Values, std::size_t> index_;  ///< config to candidate
  std::map<Values, const Candidate*> prior_;
  Values prior_winner_;
  std::optional<DeviceWorkload> workload_;
  std::vector<Contestant> anchors_;
  std::size_t evaluated_ = 0;
};

}  // namespace

bool empty(const LaunchGeometry& g) noexcept {
  return g.grid.x == 0 || g.grid.y == 0 || g.grid.z == 0;
}

std::string geometry_problem(const LaunchGeometry& g, const DeviceLimits& limits) {
  const auto threads = std::uint64_t{g.block.x} * g.block.y * g.block.z;
  if (threads == 0) return "a block has no threads";
  if (threads > static_cast<std::uint64_t>(limits.max_threads_per_block))
    return format("{} threads per block, the device allows {}", threads,
                  limits.max_threads_per_block);
  if (g.block.x > limits.max_block.x || g.block.y > limits.max_block.y ||
      g.block.z > limits.max_block.z)
    return format("a block of {}x{}x{}, the device allows {}x{}x{}", g.block.x, g.block.y,
                  g.block.z, limits.max_block.x, limits.max_block.y, limits.max_block.z);
  if (g.grid.x > limits.max_grid.x || g.grid.y > limits.max_grid.y || g.grid.z > limits.max_grid.z)
    return format("a grid of {}x{}x{}, the device allows {}x{}x{}", g.grid.x, g.grid.y, g.grid.z,
                  limits.max_grid.x, limits.max_grid.y, limits.max_grid.z);
  if (g.shared_bytes > static_cast<unsigned>(limits.shared_per_block_optin))
    return format("{} bytes of dynamic shared memory per block, the device has {}", g.shared_bytes,
                  limits.shared_per_block_optin);
  return {};
}

TuneResult tune(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                const std::shared_ptr<Device>& device, Builder& builder, const TuneOptions& options,
                const TuneResult* prior, const LogSink& log) {
  return TuningRun(kernel, problem, device, builder, options, prior, log).run();
}

}  // namespace kiln::runtime
