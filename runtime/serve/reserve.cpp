#include "runtime/serve/reserve.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "runtime/device/device.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/serve/problem_hash.hpp"
#include "runtime/serve/provisional.hpp"
#include "runtime/tune/size_distance.hpp"

namespace kiln::runtime {

using detail::Ready;

namespace {

/// Each is tried in turn by every unprepared launch.
constexpr std::size_t kMostFallbacks = 16;
/// Problems that every unprepared launch is compared with. Of more, some spread over all.
constexpr std::size_t kMostKnown = 256;
/// Configs that these run with; the first of them are also the fallbacks that are tried in turn.
constexpr std::size_t kMostConfigs = 128;
/// Of a problem; one with more has no nearest.
constexpr std::size_t kMostFields = 32;

/// Whether what was loaded for launches like `loaded` may be launched like `asked`. What was loaded
/// for no launch at all was given no shared memory beyond the usual and no clusters.
bool within(const Launch& asked, const Module& entry, const Launch& loaded,
            const DeviceLimits& limits) {
  if (empty(asked)) return true;
  const auto blocks = [](const Launch& l) { return l.cluster.x * l.cluster.y * l.cluster.z; };
  return asked.shared_bytes <= (empty(loaded) ? 0 : loaded.shared_bytes) &&
         blocks(asked) <= (empty(loaded) ? 1 : blocks(loaded)) &&
         loaded_obstacle(entry.resources(), asked, limits).empty();
}

}  // namespace

bool Reserve::fits(const Fallback& fallback, std::span<const std::int64_t> problem,
                   const DeviceLimits& limits) const {
  const Values& config = fallback.ready->config;
  if (definition_.space.violated(config, problem, limits)) return false;
  const auto& kernel = *static_cast<const Module*>(fallback.ready->loaded);
  const Launch& loaded = fallback.plan.launch;
  if (!fallback.ready->whole)
    return within(definition_.launch(config, problem, limits), kernel, loaded, limits);
  const detail::LaunchPlan asked = detail::plan(definition_, config, problem, limits);
  if (!asked.obstacle(limits).empty() || !within(asked.launch, kernel, loaded, limits))
    return false;
  for (std::size_t s = 0; s < asked.steps.size(); ++s)
    if (!within(asked.steps[s], kernel.step(s), fallback.plan.steps[s], limits)) return false;
  // A stream that has launched the prepared problem has a block of this size.
  return !asked.workspace || fallback.plan.workspace->covers(*asked.workspace);
}

bool Reserve::distrusted(std::span<const std::int64_t> problem) const noexcept {
  const Reading reading(*this);
  const Fallbacks* current = reading.current();
  return current && distrusts(*current, problem);
}

bool Reserve::distrusts(const Fallbacks& fallbacks,
                        std::span<const std::int64_t> problem) noexcept {
  return std::ranges::any_of(fallbacks.distrusted, [&](const Values& wrong) {
    return std::ranges::equal(wrong, problem);
  });
}

Ready Reserve::find(std::span<const std::int64_t> problem, const DeviceLimits& limits) const {
  const Reading reading(*this);
  const Fallbacks* current = reading.current();
  if (!current || distrusts(*current, problem)) return nullptr;
  if (const Fallback* near = nearest(*current, problem, limits)) return near->ready;
  const std::size_t tried = std::min(current->fallbacks.size(), kMostFallbacks);
  for (const Fallback& fallback : std::span(current->fallbacks).first(tried))
    if (fits(fallback, problem, limits)) return fallback.ready;
  return nullptr;
}

const Reserve::Fallback* Reserve::nearest(const Fallbacks& fallbacks,
                                          std::span<const std::int64_t> problem,
                                          const DeviceLimits& limits) const {
  if (fallbacks.known.empty() || problem.size() > kMostFields) return nullptr;
  std::array<double, kMostFields> sizes;
  for (std::size_t i = 0; i < problem.size(); ++i) sizes[i] = log_size(problem[i]);
  std::bitset<kMostConfigs> asked, fit;  // each config once
  const Fallback* best = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < fallbacks.known.size(); ++k) {
    const double* const of = fallbacks.sizes.data() + k * problem.size();
    double apart = 0;
    for (std::size_t i = 0; i < problem.size(); ++i) apart += std::abs(sizes[i] - of[i]);
    if (apart >= least) continue;
    const std::size_t at = fallbacks.known[k];
    if (!asked[at]) {
      asked[at] = true;
      fit[at] = fits(fallbacks.fallbacks[at], problem, limits);
    }
    if (!fit[at]) continue;
    best = &fallbacks.fallbacks[at];
    least = apart;
  }
  return best;
}

void Reserve::renew(const std::vector<Ready>& loaded, const std::vector<Ready>& in_use,
                    const Values& default_config, const DeviceLimits& limits) {
  // For each config: what was loaded for the most shared memory.
  struct Found {
    Fallback fallback;
    std::size_t problems = 0;
  };
  std::map<Values, Found> by_config;
  for (const Ready& ready : loaded) {
    detail::LaunchPlan plan = detail::plan(definition_, ready->config, ready->problem, limits);
    auto [place, first] = by_config.try_emplace(ready->config);
    Found& found = place->second;
    ++found.problems;
    if (first || plan.launch.shared_bytes > found.fallback.plan.launch.shared_bytes)
      found.fallback = {unwrapped(ready), std::move(plan)};  // refreshed for no other problem
  }
  std::vector<Found> order;
  for (auto& [config, found] : by_config) order.push_back(std::move(found));
  std::ranges::stable_sort(order, [&](const Found& a, const Found& b) {
    const bool a_default = a.fallback.ready->config == default_config;
    const bool b_default = b.fallback.ready->config == default_config;
    return a_default != b_default ? a_default : a.problems > b.problems;
  });
  if (order.size() > kMostConfigs) order.resize(kMostConfigs);
  auto fresh = std::make_unique<Fallbacks>();
  for (Found& found : order) fresh->fallbacks.push_back(std::move(found.fallback));
  std::map<Values, std::size_t> places;
  for (std::size_t i = 0; i < fresh->fallbacks.size(); ++i)
    places.emplace(fresh->fallbacks[i].ready->config, i);
  std::map<Values, std::size_t> known;  // in an order that does not depend on when they came
  for (const Ready& ready : in_use)
    if (const auto at = places.find(ready->config); at != places.end() && !ready->untuned)
      known[ready->problem] = at->second;
  const std::size_t step = (known.size() + kMostKnown - 1) / kMostKnown;
  std::size_t n = 0;
  for (const auto& [problem, place] : known) {
    if (n++ % step != 0) continue;
    fresh->known.push_back(place);
    for (const std::int64_t value : problem) fresh->sizes.push_back(log_size(value));
  }
  const std::lock_guard lock(mutex_);
  fresh->distrusted.assign(distrusted_.begin(), distrusted_.end());
  renewed_.push_back(std::move(fresh));
  current_ = renewed_.back().get();
  // A launch that begins to read from now on finds the current fallbacks.
  if (readers_ == 0) renewed_.erase(renewed_.begin(), renewed_.end() - 1);
}

void Reserve::keep(Ready ready) {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(kept_, ready) == kept_.end()) kept_.push_back(std::move(ready));
}

std::vector<Ready> Reserve::kept() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

void Reserve::distrust(std::span<const std::int64_t> problem, bool wrong) {
  Values values(problem.begin(), problem.end());
  const std::lock_guard lock(mutex_);
  if (wrong)
    distrusted_.insert(std::move(values));
  else
    distrusted_.erase(values);
}

ProblemNotes::ProblemNotes(std::size_t fields, std::atomic<std::uint64_t>* no_room)
    : fields_(fields),
      no_room_(no_room),
      slots_(std::make_unique<std::atomic<Slot>[]>(kSlots)),
      values_(std::make_unique<std::int64_t[]>(std::max<std::size_t>(1, kSlots * fields))),
      times_(std::make_unique<std::atomic<std::uint64_t>[]>(kSlots)) {}

bool ProblemNotes::add(std::span<const std::int64_t> problem) noexcept {
  // At least half of the slots stay empty, so this ends.
  for (std::size_t i = hash_of(problem) % kSlots;; i = (i + 1) % kSlots) {
    Slot seen = slots_[i].load(std::memory_order_acquire);
    if (seen == Slot::empty) {
      // The place is taken before the slot, so the bound holds for any number of threads.
      if (count_.fetch_add(1, std::memory_order_relaxed) >= kMost) {
        count_.fetch_sub(1, std::memory_order_relaxed);
        if (no_room_) no_room_->fetch_add(1, std::memory_order_relaxed);
        return false;
      }
      if (slots_[i].compare_exchange_strong(seen, Slot::being_written, std::memory_order_acquire)) {
        std::ranges::copy(problem, values(i).begin());
        times_[i].store(1, std::memory_order_relaxed);
        slots_[i].store(Slot::full, std::memory_order_release);
        return true;
      }
      count_.fetch_sub(1, std::memory_order_relaxed);
    }
    // It may be this problem. Where its writer is held up, the problem gets a second place.
    constexpr int kLooks = 1000;
    for (int looks = 0; seen == Slot::being_written && looks < kLooks; ++looks)
      seen = slots_[i].load(std::memory_order_acquire);
    if (seen == Slot::full && std::ranges::equal(values(i), problem)) {
      times_[i].fetch_add(1, std::memory_order_relaxed);
      return false;
    }
  }
}

std::map<Values, std::uint64_t> ProblemNotes::all() const {
  std::map<Values, std::uint64_t> found;
  for (std::size_t i = 0; i < kSlots; ++i)
    if (slots_[i].load(std::memory_order_acquire) == Slot::full)
      found[{values(i).begin(), values(i).end()}] += times_[i].load(std::memory_order_relaxed);
  return found;
}

}  // namespace kiln::runtime
