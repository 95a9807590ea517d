#include "kiln/replay.hpp"

#include <algorithm>
#include <chrono>
#include <set>

#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "kiln/detail/format.hpp"
#include "runtime/recorded/prior.hpp"
#include "runtime/search/strategy.hpp"
#include "runtime/support/infinity.hpp"

namespace kiln {

using detail::format;
using runtime::SearchSpace;

namespace {

/// Evaluations at which a curve has a point.
std::vector<std::size_t> checkpoints(std::size_t budget) {
  std::vector<std::size_t> at;
  for (std::size_t n = 1; n < budget; n += n < 200 ? 1 : n / 100) at.push_back(n);
  at.push_back(budget);
  return at;
}

struct Search {
  std::vector<double> fractions;  ///< by checkpoint
  std::size_t used = 0;
  double device_seconds = 0;
};

}  // namespace

struct SearchReplay::Impl {
  explicit Impl(RecordedSpace recorded)
      : space(std::move(recorded)),
        dynamic(space.dynamic()),
        points(dynamic, {}, limits, {}, listed()) {}

  /// What is recorded need not be found again where there are too many combinations to walk.
  std::vector<runtime::Point> listed() const {
    std::vector<runtime::Point> list;
    if (dynamic.combinations() <= SearchSpace::kEnumerable) return list;
    for (std::size_t i = 0; i < space.size(); ++i) {
      const Values config = space.config(i);
      runtime::Point& point = list.emplace_back();
      for (std::size_t d = 0; d < config.size(); ++d) {
        const auto& values = dynamic.parameters()[d].values;
        point.push_back(static_cast<std::uint16_t>(
            std::lower_bound(values.begin(), values.end(), config[d]) - values.begin()));
      }
    }
    return list;
  }

  Search search(const ReplayOptions& options, std::size_t repeat,
                const std::vector<std::size_t>& curve,
                std::span<const runtime::Evidence> evidence) const;
  std::vector<runtime::Evidence> evidence(const ReplayOptions& options) const;

  RecordedSpace space;
  DynamicSpace dynamic;
  DeviceLimits limits;
  SearchSpace points;
};

Search SearchReplay::Impl::search(const ReplayOptions& options, std::size_t repeat,
                                  const std::vector<std::size_t>& curve,
                                  std::span<const runtime::Evidence> evidence) const {
  const std::uint64_t seed = options.seed + repeat;
  const auto strategy =
      runtime::make_strategy(options.strategy, {points, seed, options.budget, {}, evidence});
  runtime::Random noise(seed ^ 0x6e6f697365);  // another stream than the strategy's
  Search result;
  std::vector<bool> evaluated(space.size());
  double best_told = runtime::kInfinity, fraction = 0;
  for (const std::size_t checkpoint : curve) {
    while (result.used < checkpoint) {
      const std::vector<Values> proposals = strategy->propose(1);
      if (proposals.empty()) break;
      const auto index = space.find(proposals[0]);
      if (proposals.size() > 1 || !index || evaluated[*index])
        throw InternalError(format("strategy {} proposed {} with seed {}", options.strategy,
                                   proposals.size() > 1 ? "more than it was asked for"
                                   : !index             ? "a config that is not allowed"
                                                        : "a config again",
                                   seed));
      evaluated[*index] = true;
      ++result.used;
      const auto samples = space.samples(*index);
      double told = space.seconds(*index);
      if (options.noise && !samples.empty()) told = samples[noise.below(samples.size())];
      result.device_seconds += space.compile_seconds(*index);
      for (double sample : samples) result.device_seconds += sample;
      strategy->observe(proposals[0], told);
      if (told < best_told) {
        best_told = told;
        fraction = space.optimum() / space.seconds(*index);
      }
    }
    result.fractions.push_back(fraction);
  }
  return result;
}

std::vector<runtime::Evidence> SearchReplay::Impl::evidence(const ReplayOptions& options) const {
  std::vector<runtime::Evidence> all;
  for (const RecordedSpace& prior : options.prior) {
    std::set<std::size_t> seen;  // what a search would have come to know
    if (options.prior_evaluations > 0) {
      const Impl other(prior);
      const auto strategy = runtime::make_strategy(
          runtime::default_strategy(), {other.points, options.seed, options.prior_evaluations, {}});
      while (seen.size() < options.prior_evaluations) {
        const std::vector<Values> proposals = strategy->propose(1);
        if (proposals.empty()) break;
        const std::size_t index = prior.find(proposals[0]).value();
        seen.insert(index);
        strategy->observe(proposals[0], prior.seconds(index));
      }
    }
    all.push_back(runtime::evidence_from(prior, space, [&](std::size_t config) {
      return options.prior_evaluations == 0 || seen.contains(config);
    }));
  }
  return all;
}

SearchReplay::SearchReplay(RecordedSpace space) : impl_(std::make_unique<Impl>(std::move(space))) {}
SearchReplay::~SearchReplay() = default;
SearchReplay::SearchReplay(SearchReplay&&) noexcept = default;
SearchReplay& SearchReplay::operator=(SearchReplay&&) noexcept = default;

const RecordedSpace& SearchReplay::space() const noexcept { return impl_->space; }

ReplayResult SearchReplay::run(const ReplayOptions& wanted) const {
  const auto start = std::chrono::steady_clock::now();
  ReplayOptions options = wanted;
  if (options.strategy.empty()) options.strategy = runtime::default_strategy();
  if (options.budget == 0) throw UserError("replay: a budget of 0 evaluations finds nothing");
  if (options.repeats == 0) throw UserError("replay: 0 repeats show nothing");
  // An unknown name is the caller's mistake, said before any thread starts.
  runtime::make_strategy(options.strategy, {impl_->points, options.seed, options.budget, {}});

  const std::vector<std::size_t> curve = checkpoints(options.budget);
  const std::vector<runtime::Evidence> evidence = impl_->evidence(options);
  std::vector<Search> searches(options.repeats);
  // More threads than TBB has would only make it print a warning.
  const unsigned most = static_cast<unsigned>(tbb::info::default_concurrency());
  const unsigned threads = options.threads ? std::min(options.threads, most) : most;
  tbb::task_arena arena(static_cast<int>(threads));
  arena.execute([&] {
    tbb::parallel_for(std::size_t{0}, options.repeats, [&](std::size_t i) {
      searches[i] = impl_->search(options, i, curve, evidence);
    });
  });

  ReplayResult result;
  result.strategy = options.strategy;
  result.evaluations = options.budget;
  result.repeats = options.repeats;
  result.optimum = impl_->space.optimum();
  const auto count = static_cast<double>(searches.size());
  for (std::size_t c = 0; c < curve.size(); ++c) {
    ReplayPoint& point = result.curve.emplace_back(ReplayPoint{curve[c], 0, runtime::kInfinity});
    for (const Search& s : searches) {
      point.mean += s.fractions[c];
      point.min = std::min(point.min, s.fractions[c]);
    }
    point.mean /= count;
  }
  for (const Search& s : searches) {
    result.used += static_cast<double>(s.used) / count;
    result.device_seconds += s.device_seconds / count;
  }
  result.mean = result.curve.back().mean;
  result.min = result.curve.back().min;
  result.wall_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

const ReplayPoint& ReplayResult::at(std::size_t count) const {
  const auto after = std::ranges::upper_bound(curve, count, {}, &ReplayPoint::evaluations);
  if (after == curve.begin())
    throw UserError(format("replay: the curve has no point at {} evaluations", count));
  return *(after - 1);
}

std::vector<std::string> search_strategies() { return runtime::strategy_names(); }
std::string default_search_strategy() { return runtime::default_strategy(); }

}  // namespace kiln
