#include "runtime/search/strategies/model_evidence.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/search/strategies/cholesky.hpp"

namespace kiln::runtime {

namespace {

constexpr std::size_t kMostTasks = 8;  ///< the nearest
constexpr std::size_t kRows = 128;     ///< results of a task that its process is made of
constexpr std::size_t kFitRows = 72;   ///< of all tasks together, for the length scales
constexpr int kFitSweeps = 2;
constexpr std::size_t kFavourites = 96;     ///< points that did best on average
constexpr std::size_t kOwnFavourites = 16;  ///< of each task, besides
constexpr std::size_t kScanned = 1 << 16;   ///< points that are looked at for them
constexpr float kFails = std::numeric_limits<float>::infinity();
/// A task that has fewer working results, or hardly any spread of log(seconds), tells nothing.
constexpr std::size_t kFewestResults = 8;
constexpr double kLeastUnit = 1e-3;
/// The spread of log(seconds) where nothing is known.
constexpr double kUsualSpread = 0.3;
/// What a failing config counts as among those that work: slower than this share of them.
constexpr double kFailingRank = 0.9;
/// The share of the configs' spread that a task is expected to be off by, and the number of results
/// that this expectation is worth; by how much more per factor of two between the problems.
constexpr double kDoubt = 0.2, kDoubtWorth = 4, kDoubtPerDistance = 0.1;
/// The same where there are several tasks: the share of what they are off by from each other.
constexpr double kDisagreement = 0.5;
/// How much of a result tells of a hypothesis: results near each other are not independent.
constexpr double kBelief = 0.5;
/// By what factor (its logarithm) the weighted sum is likelier than one task, or than nothing.
constexpr double kSumFavoured = 1;
constexpr float kSlowest = 4;  ///< log(seconds over the best); slower is no worse
/// What a failure elsewhere says of a config here.
constexpr double kFailsAgain = 0.9;

}  // namespace

EarlierTasks::EarlierTasks(const SearchSpace& space, std::span<const Evidence> evidence,
                           Random& random)
    : space_(space), covariance_(space, false) {
  std::vector<const Evidence*> nearest;
  for (const Evidence& task : evidence) nearest.push_back(&task);
  std::stable_sort(nearest.begin(), nearest.end(),
                   [](const Evidence* a, const Evidence* b) { return a->distance < b->distance; });
  for (const Evidence* task : nearest)
    if (tasks_.size() < kMostTasks) take(*task, random);
  if (tasks_.empty()) return;
  fit(random);
  combination_.emplace(tasks_.size());
  weigh(std::vector<double>(hypotheses_.size()), 0);
}

Point EarlierTasks::projected(const Task& task, Point point) const {
  for (std::size_t d = 0; d < task.unknown.size(); ++d)
    if (task.unknown[d]) point[d] = 0;
  return point;
}

bool EarlierTasks::take(const Evidence& evidence, Random& random) {
  Task task;
  task.unknown = evidence.unknown;
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::pair<double, Point>> works;
  for (const Evidence::Result& result : evidence.results) {
    if (result.config.size() != space_.dimensions()) continue;
    Values config = result.config;
    for (std::size_t d = 0; d < task.unknown.size(); ++d)
      if (task.unknown[d]) config[d] = space_.space().parameters()[d].values[0];
    const auto point = space_.point(config);
    if (!point) continue;
    const bool fails = !(result.seconds > 0) || !std::isfinite(result.seconds);
    const auto value = fails ? kFails : static_cast<float>(std::log(result.seconds));
    // Where a parameter is unknown, several results are one: the best of them.
    float& kept = task.measured.try_emplace(*point, kFails).first->second;
    kept = std::min(kept, value);
    if (!fails) best = std::min(best, std::log(result.seconds));
  }
  std::vector<Point> failing;
  for (auto& [point, value] : task.measured) {
    if (value != kFails) value = std::min(value - static_cast<float>(best), kSlowest);
    if (value != kFails)
      works.emplace_back(value, point);
    else
      failing.push_back(point);
  }
  if (works.size() < kFewestResults) return false;
  std::sort(works.begin(), works.end());
  std::sort(failing.begin(), failing.end());  // hashing has no order that lasts
  const double slow =
      works[static_cast<std::size_t>(kFailingRank * static_cast<double>(works.size() - 1))].first;
  double sum = 0, squares = 0;
  for (const auto& [value, point] : works) sum += value;
  task.centre = sum / static_cast<double>(works.size());
  for (const auto& [value, point] : works) squares += (value - task.centre) * (value - task.centre);
  task.unit = std::sqrt(squares / static_cast<double>(works.size()));
  if (task.unit <= kLeastUnit) return false;
  for (const Point& point : failing) works.emplace_back(slow, point);
  // The best third, and any others.
  for (std::size_t i = kRows / 3; i < std::min(kRows, works.size()); ++i)
    std::swap(works[i], works[i + random.below(works.size() - i)]);
  works.resize(std::min(kRows, works.size()));
  for (const auto& [value, point] : works) {
    task.sites.push_back(covariance_.site(point, 0));
    task.values.push_back((value - task.centre) / task.unit);
  }
  task.farther = 1 + kDoubtPerDistance * std::max(evidence.distance, 0.0);
  hypotheses_.push_back({task.unit * kDoubt * task.farther});
  tasks_.push_back(std::move(task));
  return true;
}

void EarlierTasks::fit(Random& random) {
  std::vector<SurrogateSite> sites;
  std::vector<double> values;
  const std::size_t each = std::max<std::size_t>(kFitRows / tasks_.size(), 1);
  for (const Task& task : tasks_) {
    // Every so many, so that fast and any others are among them.
    const std::size_t step = std::max<std::size_t>(task.sites.size() / each, 1);
    for (std::size_t i = 0; i < task.sites.size() && i / step < each; i += step) {
      sites.push_back(task.sites[i]);
      values.push_back(task.values[i]);
    }
  }
  covariance_.fit(sites, values, kFitSweeps, random);
  for (Task& task : tasks_) solve(task);
  find_favourites();
  if (tasks_.size() > 1) compare();
  double doubts = 0, spread = kUsualSpread;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    doubts += hypotheses_[t].doubt;
    spread = std::max(spread, tasks_[t].unit);
  }
  hypotheses_.push_back({doubts / static_cast<double>(tasks_.size())});
  hypotheses_.push_back({spread});
}

void EarlierTasks::compare() {
  const auto count = static_cast<double>(tasks_.size());
  std::vector<double> sums(tasks_.size()), squares(tasks_.size());
  for (const Point& point : favourites_) {
    const Opinions all = opinions(point);
    double sum = 0;
    for (const float opinion : all) sum += static_cast<double>(opinion);
    for (std::size_t t = 0; t < all.size(); ++t) {
      const auto own = static_cast<double>(all[t]);
      const double off = own - (sum - own) / (count - 1);
      sums[t] += off;
      squares[t] += off * off;
    }
  }
  const auto points = static_cast<double>(favourites_.size());
  for (std::size_t t = 0; t < tasks_.size() && points > 0; ++t) {
    const double mean = sums[t] / points;
    const double deviation = std::sqrt(std::max(squares[t] / points - mean * mean, 0.0));
    hypotheses_[t].doubt = std::max(kDisagreement * deviation, kLeastUnit) * tasks_[t].farther;
  }
}

void EarlierTasks::solve(Task& task) const {
  const std::size_t n = task.sites.size();
  std::vector<double> matrix(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j)
      matrix[i * n + j] =
          covariance_(task.sites[i], task.sites[j]) + (i == j ? covariance_.noise() : 0);
  task.alpha = Cholesky(std::move(matrix), n).solve(task.values);
}

Opinions EarlierTasks::opinions(const Point& point) const {
  if (tasks_.empty()) return {};
  Opinions all;
  for (const Task& task : tasks_) {
    const Point here = projected(task, point);
    auto& opinion = all.emplace_back();
    if (const auto found = task.measured.find(here); found != task.measured.end()) {
      opinion = std::min(found->second, kSlowest);
    } else {
      const SurrogateSite site = covariance_.site(here, 0);
      double above = 0;
      for (std::size_t i = 0; i < task.sites.size(); ++i)
        above += task.alpha[i] * covariance_.correlation(site, task.sites[i]);
      opinion = std::clamp(static_cast<float>(task.centre + task.unit * above), 0.0F, kSlowest);
    }
  }
  return all;
}

double EarlierTasks::expected(const Opinions& opinions, std::size_t hypothesis) const {
  if (hypothesis < tasks_.size()) return static_cast<double>(opinions[hypothesis]);
  return hypothesis == tasks_.size() ? (*combination_)(opinions) : 0;
}

void EarlierTasks::combine(const Told& told) {
  combination_->fit(told.opinions, told.values, told.comparable, hypotheses_[tasks_.size()].doubt);
}

std::vector<double> EarlierTasks::off_by(std::size_t hypothesis, const Told& told) const {
  std::vector<double> off(told.values.begin(), told.values.end());
  double sum = 0, count = 0;
  for (std::size_t i = 0; i < off.size(); ++i) {
    if (hypothesis == tasks_.size())
      off[i] = combination_->left_out()[i];
    else
      off[i] -= expected(*told.opinions[i], hypothesis);
    if (!told.comparable[i]) continue;
    sum += off[i];
    ++count;
  }
  // The constant is learned from all; without the result it would be farther off.
  const double alone = hypothesis == tasks_.size() || count < 2 ? 1 : count / (count - 1);
  for (std::size_t i = 0; i < off.size(); ++i)
    off[i] = told.comparable[i] ? (off[i] - sum / count) * alone : 0;
  return off;
}

void EarlierTasks::weigh(std::span<const double> squares, std::size_t count) {
  const double worth = kDoubtWorth + kBelief * static_cast<double>(count);
  double most = -std::numeric_limits<double>::infinity(), all = 0;
  for (std::size_t h = 0; h < hypotheses_.size(); ++h) {
    Hypothesis& hypothesis = hypotheses_[h];
    const double sum = squares[h] + kDoubtWorth * hypothesis.doubt * hypothesis.doubt;
    hypothesis.weight = -0.5 * worth * std::log(sum) + (h == tasks_.size() ? kSumFavoured : 0);
    most = std::max(most, hypothesis.weight);
  }
  for (Hypothesis& hypothesis : hypotheses_)
    all += hypothesis.weight = std::exp(hypothesis.weight - most);
  for (Hypothesis& hypothesis : hypotheses_) hypothesis.weight /= all;
}

bool EarlierTasks::failed(const Point& point) const {
  return std::ranges::any_of(tasks_, [&](const Task& task) {
    const auto found = task.measured.find(projected(task, point));
    return found != task.measured.end() && found->second == kFails;
  });
}

double EarlierTasks::chance(const Point& point) const {
  double fails = 0;
  for (const Task& task : tasks_)
    if (const auto found = task.measured.find(projected(task, point));
        found != task.measured.end() && found->second == kFails)
      ++fails;
  return 1 - kFailsAgain * fails / static_cast<double>(tasks_.size());
}

void EarlierTasks::find_favourites() {
  std::vector<std::pair<double, Point>> ranked;
  const auto rank = [&](const Point& point) {
    double sum = 0, count = 0;
    for (const Task& task : tasks_)
      if (const auto found = task.measured.find(projected(task, point));
          found != task.measured.end()) {
        sum += static_cast<double>(std::min(found->second, kSlowest));
        ++count;
      }
    if (count > 0) ranked.emplace_back(sum / count, point);
  };
  const std::span<const Point> all = space_.enumerate();
  if (!all.empty() && all.size() <= kScanned) {
    for (const Point& point : all) rank(point);
  } else {
    for (const Task& task : tasks_)
      for (const auto& [point, value] : task.measured)
        if (space_.allowed(point)) rank(point);
  }
  std::sort(ranked.begin(), ranked.end());
  ranked.erase(std::unique(ranked.begin(), ranked.end()), ranked.end());
  for (auto& [value, point] : ranked)
    if (favourites_.size() < kFavourites) favourites_.push_back(std::move(point));
  for (const Task& task : tasks_) {
    std::vector<std::pair<float, Point>> own;
    for (const auto& [point, value] : task.measured)
      if (value != kFails && space_.allowed(point)) own.emplace_back(value, point);
    const std::size_t few = std::min(kOwnFavourites, own.size());
    std::partial_sort(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(few), own.end());
    for (std::size_t i = 0; i < few; ++i)
      if (std::ranges::find(favourites_, own[i].second) == favourites_.end())
        favourites_.push_back(std::move(own[i].second));
  }
}

}  // namespace kiln::runtime
