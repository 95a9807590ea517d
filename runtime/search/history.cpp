#include "runtime/search/history.hpp"

#include <cmath>
#include <limits>
#include <numeric>

#include "runtime/support/infinity.hpp"

namespace kiln::runtime {

namespace {

constexpr double kPending = std::numeric_limits<double>::quiet_NaN();
constexpr int kPickDraws = 16;
constexpr int kPickWalks = 8;
constexpr int kGuesses = 8;

}  // namespace

std::size_t PointHash::operator()(const Point& point) const noexcept {
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  for (const std::uint16_t place : point) hash = (hash ^ place) * 0xbf58476d1ce4e5b9;
  return static_cast<std::size_t>(hash ^ (hash >> 29));
}

bool History::propose(const Point& point) {
  if (!results_.emplace(point, kPending).second) return false;
  points_.push_back(point);
  return true;
}

void History::observe(std::span<const std::int64_t> config, double seconds) {
  const std::optional<Point> point = space_.point(config);
  if (!point || !space_.admitted(config)) return;
  if (!(seconds >= 0)) seconds = kInfinity;
  propose(*point);
  results_[*point] = seconds;
  if (best_ && best_->first == *point && seconds > best_->second) {
    best_.reset();
    for (const Point& p : points_)
      if (const double known = results_[p]; known < (best_ ? best_->second : kInfinity))
        best_.emplace(p, known);
  } else if (seconds < (best_ ? best_->second : kInfinity)) {
    best_.emplace(*point, seconds);
  }
}

std::optional<double> History::result(const Point& point) const {
  const auto found = results_.find(point);
  if (found == results_.end() || std::isnan(found->second)) return {};
  return found->second;
}

std::optional<Point> History::unseen(Random& random) {
  const auto all = space_.enumerate();
  if (space_.enumerable() || !all.empty()) {
    if (!listed_) {
      left_.resize(all.size());
      std::iota(left_.begin(), left_.end(), std::uint32_t{0});
      listed_ = true;
    }
    while (!left_.empty()) {
      const std::size_t i = random.below(left_.size());
      if (!contains(all[left_[i]])) return all[left_[i]];
      left_[i] = left_.back();
      left_.pop_back();
    }
    return {};
  }
  for (int i = 0; i < kPickDraws; ++i) {
    std::optional<Point> drawn = space_.sample(random);
    if (!drawn) break;
    if (!contains(*drawn)) return drawn;
  }
  // Allowed points are rare, and those that samples reach are known: look around them.
  for (int i = 0; i < kPickWalks && !points_.empty(); ++i) {
    const Point& from = points_[random.below(points_.size())];
    std::vector<Point> around = space_.neighbours(from, Neighbourhood::hamming);
    random.shuffle(around);
    for (Point& p : space_.pairs(from, SIZE_MAX, random)) around.push_back(std::move(p));
    for (Point& p : around)
      if (!contains(p)) return std::move(p);
  }
  return {};
}

std::optional<Point> History::promising(
    Random& random, const std::function<double(std::span<const std::int64_t>)>& predicted) {
  std::optional<Point> best = unseen(random);
  if (!predicted || !best) return best;
  double least = predicted(space_.values(*best));
  for (int i = 1; i < kGuesses; ++i) {
    std::optional<Point> other = unseen(random);
    if (!other) break;
    const double seconds = predicted(space_.values(*other));
    if (!(seconds < least)) continue;
    least = seconds;
    best = std::move(other);
  }
  return best;
}

}  // namespace kiln::runtime
