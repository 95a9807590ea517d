#include "runtime/tune/candidate_list.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "runtime/device/resource_check.hpp"
#include "runtime/search/strategy.hpp"
#include "runtime/tune/candidate_space.hpp"
#include "runtime/tune/cost_model.hpp"

namespace kiln::runtime {

namespace {

/// Looked at where a space is too large to be listed, for each candidate wanted.
constexpr std::size_t kSamples = 8;
/// The part of the list that the cost model does not choose.
constexpr std::size_t kSpread = 4;

/// A guess in steps of a hundredth: mathematical functions differ in their last bits between
/// processors, and ranks must come to the same order.
long rounded(double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return std::numeric_limits<long>::max();
  return std::lround(std::log2(seconds) * 70);
}

std::vector<Values> allowed_configs(const SearchSpace& space, std::size_t wanted,
                                    std::uint64_t seed) {
  std::vector<Values> configs;
  if (const auto all = space.enumerate(); !all.empty()) {
    for (const Point& point : all) configs.push_back(space.values(point));
    return configs;
  }
  Random random(seed);
  std::set<Values> seen;
  for (std::size_t i = 0; i < kSamples * wanted; ++i)
    if (const auto point = space.sample(random))
      if (Values config = space.values(*point); seen.insert(config).second)
        configs.push_back(std::move(config));
  return configs;
}

/// 0: it cannot be launched, which its trial will say.
std::uint32_t launches_of(const detail::Tunable& subject, const Values& config,
                          std::span<const std::int64_t> problem, const DeviceLimits& limits) try {
  const auto plan = subject.plan(config, problem, limits);
  std::uint32_t launches = empty(plan->launch) ? 0 : 1;
  for (const Launch& step : plan->steps) launches += empty(step) ? 0 : 1;
  return launches;
} catch (const Error&) {
  return 0;
}

}  // namespace

CandidateList candidate_list(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                             const DeviceInfo& device, std::size_t most, std::uint64_t seed,
                             const Values& incumbent) {
  const SearchSpace space =
      candidate_space(subject, problem, device.limits, subject.configs(problem, device.limits));
  CandidateList list{
      {subject.default_config(problem, device.target, device.limits)}, {}, space.count()};
  if (most == 0)
    most = most_without_budget(static_cast<std::size_t>(std::min(list.space.allowed, 1e9)));
  if (incumbent == list.configs.front()) {
    list.incumbent = 0;
  } else if (!incumbent.empty() && most > 1 && space.point(incumbent) && space.allowed(incumbent)) {
    list.incumbent = 1;
    list.configs.push_back(incumbent);
  }
  const CostModel model(subject, problem, device);
  std::vector<std::pair<long, Values>> ordered;
  for (Values& config : allowed_configs(space, most, seed))
    if (std::ranges::find(list.configs, config) == list.configs.end())
      ordered.emplace_back(rounded(model.seconds(config)), std::move(config));
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::size_t others = most - list.configs.size();
  const std::size_t best = ordered.size() <= others ? ordered.size() : others - others / kSpread;
  for (std::size_t i = 0; i < best; ++i) list.configs.push_back(std::move(ordered[i].second));
  list.whole = best == ordered.size() && !space.enumerate().empty();
  const std::size_t rest = ordered.size() - best, spread = std::min(rest, others - best);
  for (std::size_t i = 0; i < spread; ++i)
    list.configs.push_back(std::move(ordered[best + i * rest / spread].second));
  if (subject.kernel() && !subject.kernel()->steps.empty())
    for (const Values& config : list.configs)
      list.launches.push_back(launches_of(subject, config, problem, device.limits));
  return list;
}

}  // namespace kiln::runtime
