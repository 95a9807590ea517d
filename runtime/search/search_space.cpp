#include "runtime/search/search_space.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "runtime/search/tight_listing.hpp"

namespace kiln::runtime {

namespace {

/// Together these tries take some milliseconds, far less than one compilation.
constexpr int kRejections = 1 << 15;
constexpr std::size_t kPairs = 1 << 12;
constexpr int kSampleWalks = 16;
constexpr int kStepsPerDimension = 32;
constexpr std::uint64_t kCountingSeed = 1;
/// Samples per estimate; a slow constraint may take a microsecond or more.
constexpr double kCounted = 1 << 16;

/// How uneven the steps between rising numbers are: deviation over mean.
double unevenness(std::span<const double> rising) {
  const double steps = static_cast<double>(rising.size() - 1);
  const double mean = (rising.back() - rising.front()) / steps;
  double squares = 0;
  for (std::size_t i = 1; i < rising.size(); ++i)
    squares += std::pow(rising[i] - rising[i - 1] - mean, 2);
  return std::sqrt(squares / steps) / mean;
}

/// By rank, in [0, 1].
std::vector<double> scaled(const std::vector<std::int64_t>& rising) {
  std::vector<double> numbers(rising.begin(), rising.end());
  if (rising.size() > 2 && rising.front() > 0) {
    std::vector<double> logs;
    for (double n : numbers) logs.push_back(std::log(n));
    if (unevenness(logs) < unevenness(numbers)) numbers = std::move(logs);
  }
  const double low = numbers.front(), width = numbers.back() - low;
  for (double& n : numbers) n = width > 0 ? (n - low) / width : 0;
  return numbers;
}

}  // namespace

SearchSpace::SearchSpace(const DynamicSpace& space, std::span<const std::int64_t> problem,
                         const DeviceLimits& limits, Admissible admissible, std::vector<Point> all)
    : space_(space.on(limits.target_kind())),
      problem_(problem),
      limits_(limits),
      admissible_(std::move(admissible)) {
  if (!all.empty())
    std::call_once(listing_, [&] {
      std::sort(all.begin(), all.end());
      list_ = std::move(all);
    });
  static_cast<void>(Cursor(space_));  // refuses what does not fit a Point
  for (const Parameter& p : space_.parameters()) {
    Axis& axis = axes_.emplace_back();
    const std::size_t count = p.values.size();
    axis.place.resize(count);
    axis.rank.resize(count);
    axis.scale.resize(count);
    std::iota(axis.place.begin(), axis.place.end(), std::uint16_t{0});
    std::sort(axis.place.begin(), axis.place.end(),
              [&](auto a, auto b) { return p.values[a] < p.values[b]; });
    std::vector<std::int64_t> rising;
    for (std::uint16_t place : axis.place) rising.push_back(p.values[place]);
    const std::vector<double> scale = scaled(rising);
    for (std::size_t r = 0; r < count; ++r) {
      axis.rank[axis.place[r]] = static_cast<std::uint16_t>(r);
      axis.scale[axis.place[r]] = scale[r];
    }
    axis.ordered = count > 2 && p.kind == FieldKind::integer;
  }
}

SearchSpace::SearchSpace(const DynamicSpace& space, std::span<const std::int64_t> problem,
                         const DeviceLimits& limits, Admissible admissible,
                         std::span<const Values> authored)
    : SearchSpace(space, problem, limits, std::move(admissible)) {
  std::vector<Point> points;
  for (const Values& config : authored)
    if (auto found = point(config); found && admitted(config)) points.push_back(std::move(*found));
  if (points.empty()) return;
  std::sort(points.begin(), points.end());
  points.erase(std::unique(points.begin(), points.end()), points.end());
  authored_ = true;
  std::call_once(listing_, [&] { list_ = std::move(points); });
}

std::size_t SearchSpace::held(std::span<const std::int64_t> config) const {
  const auto& constraints = space_.constraints();
  if (const Constraint* violated = space_.violated(config, problem_, limits_))
    return static_cast<std::size_t>(violated - constraints.data());
  return constraints.size() + (!admissible_ || admissible_(config) ? 1 : 0);
}

bool SearchSpace::allowed(const Point& point) const {
  if (authored_) return std::binary_search(list_.begin(), list_.end(), point);
  return admitted(values(point));
}

bool SearchSpace::allowed(std::span<const std::int64_t> config) const {
  if (!authored_) return admitted(config);
  const std::optional<Point> found = point(config);
  return found && allowed(*found);
}

Values SearchSpace::values(const Point& point) const {
  Values config(point.size());
  for (std::size_t d = 0; d < point.size(); ++d)
    config[d] = space_.parameters()[d].values[point[d]];
  return config;
}

std::optional<Point> SearchSpace::point(std::span<const std::int64_t> config) const {
  if (config.size() != dimensions()) return {};
  Point point;
  for (std::size_t d = 0; d < config.size(); ++d) {
    const auto& values = space_.parameters()[d].values;
    const auto found = std::find(values.begin(), values.end(), config[d]);
    if (found == values.end()) return {};
    point.push_back(static_cast<std::uint16_t>(found - values.begin()));
  }
  return point;
}

std::optional<Point> SearchSpace::sample(Random& random) const {
  if (const auto all = enumerate(); !all.empty()) return all[random.below(all.size())];
  if (enumerable()) return {};
  Cursor cursor(space_);
  for (int i = 0; i < kRejections; ++i) {
    cursor.jump(random);
    if (allowed(cursor.values())) return cursor.point();
  }
  for (int i = 0; i < kSampleWalks; ++i)
    if (auto found = found_by_walking(random)) return found;
  return {};
}

std::optional<Point> SearchSpace::found_by_walking(Random& random) const {
  Cursor cursor(space_);
  cursor.jump(random);
  std::size_t now = held(cursor.values());
  for (std::size_t i = 0; i < kStepsPerDimension * dimensions() && now < checks(); ++i) {
    // Takes the best value of one parameter; of several, any, so that the walk crosses plateaus.
    const std::size_t d = random.below(dimensions());
    const std::size_t before = cursor.point()[d];
    std::size_t best = before, most = now, ties = 1;
    for (std::size_t place = 0; place < arity(d); ++place) {
      if (place == before) continue;
      cursor.set(d, place);
      const std::size_t next = held(cursor.values());
      if (next > most) {
        best = place;
        most = next;
        ties = 1;
      } else if (next == most && random.below(++ties) == 0) {
        best = place;
      }
    }
    cursor.set(d, best);
    now = most;
  }
  if (now < checks()) return {};
  return cursor.point();
}

std::size_t SearchSpace::changes(const Point& from, const Point& to) const {
  std::size_t count = 0;
  for (std::size_t d = 0; d < from.size(); ++d) count += from[d] != to[d];
  return count;
}

std::vector<Point> SearchSpace::authored_neighbours(const Point& point, Neighbourhood kind) const {
  std::vector<Point> found;
  for (const Point& other : list_) {
    if (changes(point, other) != 1) continue;
    const auto [from, to] = std::mismatch(point.begin(), point.end(), other.begin());
    const auto d = static_cast<std::size_t>(from - point.begin());
    const bool one_step = std::abs(int{rank(d, *from)} - int{rank(d, *to)}) == 1;
    if (kind == Neighbourhood::hamming || !ordered(d) || one_step) found.push_back(other);
  }
  return found;
}

std::vector<Point> SearchSpace::nearest_authored(const Point& point, std::size_t most,
                                                 Random& random) const {
  std::vector<Point> found;
  std::size_t fewest = SIZE_MAX;
  for (const Point& other : list_) {
    const std::size_t count = changes(point, other);
    if (count < 2 || count > fewest) continue;
    if (count < fewest) found.clear();
    fewest = count;
    found.push_back(other);
  }
  random.shuffle(found);
  if (found.size() > most) found.resize(most);
  return found;
}

std::vector<Point> SearchSpace::neighbours(const Point& point, Neighbourhood kind) const {
  if (authored_) return authored_neighbours(point, kind);
  std::vector<Point> found;
  Cursor cursor(space_);
  cursor.set(point);
  for (std::size_t d = 0; d < dimensions(); ++d) {
    const auto take = [&](std::size_t rank) {
      cursor.set(d, axes_[d].place[rank]);
      if (allowed(cursor.values())) found.push_back(cursor.point());
    };
    const std::size_t rank = axes_[d].rank[point[d]];
    if (kind == Neighbourhood::adjacent && ordered(d)) {
      if (rank > 0) take(rank - 1);
      if (rank + 1 < arity(d)) take(rank + 1);
    } else {
      for (std::size_t r = 0; r < arity(d); ++r)
        if (r != rank) take(r);
    }
    cursor.set(d, point[d]);
  }
  return found;
}

std::vector<Point> SearchSpace::pairs(const Point& point, std::size_t most, Random& random) const {
  if (authored_) return nearest_authored(point, most, random);
  // One number per change of two values, so that they can be tried in random order.
  struct Changes {
    std::size_t a, b, first;
  };
  std::vector<Changes> changes;
  std::size_t count = 0;
  for (std::size_t a = 0; a < dimensions(); ++a)
    for (std::size_t b = 0; b < a; ++b) {
      changes.push_back({a, b, count});
      count += (arity(a) - 1) * (arity(b) - 1);
    }
  std::vector<std::size_t> order(std::min(count, kPairs));
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (count > kPairs)
    for (std::size_t& number : order) number = random.below(count);
  std::vector<Point> found;
  Cursor cursor(space_);
  cursor.set(point);
  for (std::size_t left = order.size(); left > 0 && found.size() < most; --left) {
    std::swap(order[random.below(left)], order[left - 1]);
    const std::size_t number = order[left - 1];
    const auto& [a, b, first] =
        *std::prev(std::upper_bound(changes.begin(), changes.end(), number,
                                    [](std::size_t n, const Changes& c) { return n < c.first; }));
    const std::size_t width = arity(b) - 1;
    cursor.set(a, (point[a] + 1 + (number - first) / width) % arity(a));
    cursor.set(b, (point[b] + 1 + (number - first) % width) % arity(b));
    if (allowed(cursor.values()) &&
        (count <= kPairs || std::find(found.begin(), found.end(), cursor.point()) == found.end()))
      found.push_back(cursor.point());
    cursor.set(a, point[a]);
    cursor.set(b, point[b]);
  }
  return found;
}

std::span<const Point> SearchSpace::enumerate() const {
  std::call_once(listing_, [this] {
    if (!enumerable()) {
      list_ = list_tight(*this);
      return;
    }
    Cursor cursor(space_);
    do
      if (allowed(cursor.values())) list_.push_back(cursor.point());
    while (cursor.advance());
  });
  return list_;
}

SpaceCount SearchSpace::count() const {
  SpaceCount count;
  count.combinations = space_.combinations();
  if (authored_) {
    count.allowed = static_cast<double>(list_.size());
    return count;
  }
  const auto& constraints = space_.constraints();
  double looked_at = 0;
  std::vector<double> held_by(checks() + 1, 0);
  const auto look = [&](std::span<const std::int64_t> config) {
    ++looked_at;
    ++held_by[held(config)];
  };
  Cursor cursor(space_);
  if (enumerable()) {
    do look(cursor.values());
    while (cursor.advance());
  } else {
    Random random(kCountingSeed);
    while (looked_at < kCounted) {
      cursor.jump(random);
      look(cursor.values());
    }
  }

  count.exact = enumerable();
  const double each = count.combinations / looked_at;
  count.allowed = std::round(held_by.back() * each);
  if (!count.exact && !enumerate().empty()) count.allowed = static_cast<double>(list_.size());
  for (std::size_t i = 0; i < checks(); ++i)
    if (held_by[i] > 0)
      count.rejected.push_back(
          {i < constraints.size() ? constraints[i].reason : "the device cannot launch it",
           std::round(held_by[i] * each)});
  return count;
}

}  // namespace kiln::runtime
