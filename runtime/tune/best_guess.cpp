#include "runtime/tune/best_guess.hpp"

#include <limits>
#include <utility>
#include <vector>

#include "runtime/device/resource_check.hpp"
#include "runtime/tune/candidate_space.hpp"

namespace kiln::runtime {

namespace {

constexpr std::size_t kModelled = 8192;  ///< configs that the cost model is asked about
constexpr std::size_t kSampled = 256;    ///< of a space that cannot be listed
constexpr std::uint64_t kUntunedSeed = 1;

}  // namespace

Values best_guess(const SearchSpace& space, const CostModel& model, std::uint64_t seed) {
  std::vector<Point> points;
  if (const auto all = space.enumerate(); !all.empty()) {
    const std::size_t step = (all.size() + kModelled - 1) / kModelled;
    for (std::size_t i = 0; i < all.size(); i += step) points.push_back(all[i]);
  } else {
    Random random(seed);
    for (std::size_t i = 0; i < kSampled; ++i)
      if (auto point = space.sample(random)) points.push_back(std::move(*point));
  }
  Values best;
  double least = std::numeric_limits<double>::infinity();
  for (const Point& point : points) {
    Values config = space.values(point);
    const double seconds = model.seconds(config);
    if (seconds < least) {
      least = seconds;
      best = std::move(config);
    }
  }
  return best;
}

Values untuned_config(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                      const DeviceInfo& device) {
  const Values fixed = subject.default_config(problem, device.target, device.limits);
  const KernelDefinition* kernel = subject.kernel();
  if (!kernel || !kernel->untuned_by_cost || !kernel->untuned_by_cost(device.limits)) return fixed;
  const std::vector<Values> authored = subject.configs(problem, device.limits);
  // Nothing is launched, or the author lists nothing: a walk through the whole space would not pay.
  if (empty(subject.launch(fixed, problem, device.limits).value_or(Launch{})) ||
      (kernel->configs && authored.empty()))
    return fixed;
  const SearchSpace space = candidate_space(subject, problem, device.limits, authored);
  Values best = best_guess(space, CostModel(subject, problem, device), kUntunedSeed);
  return best.empty() ? fixed : best;
}

bool untuned_for_problem(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                         const DeviceLimits& limits) {
  return (kernel.untuned_by_cost && kernel.untuned_by_cost(limits)) ||
         (kernel.default_for && !kernel.default_for(problem, limits).empty());
}

}  // namespace kiln::runtime
