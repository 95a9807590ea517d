#include "runtime/search/strategies/guided.hpp"

#include <algorithm>

#include "runtime/support/infinity.hpp"

namespace kiln::runtime {

namespace {

constexpr int kMostPatience = 64;
constexpr std::size_t kWidened = 32;
constexpr int kMutations = 8;

}  // namespace

Guided::Guided(const SearchProblem& search)
    : problem_(search),
      space_(search.space),
      history_(search.space),
      random_(search.seed),
      patience_(kMostPatience) {}

std::vector<Values> Guided::propose(std::size_t count) {
  batch_ = count;
  std::vector<Values> proposals;
  const auto give = [&](const Point& point) {
    if (history_.propose(point)) proposals.push_back(space_.values(point));
  };
  while (!over_ && proposals.size() < count) {
    if (!queue_.empty()) {
      give(queue_.front());
      queue_.pop_front();
    } else if (body_.handle() && !body_.done() && !heard() && !proposals.empty()) {
      break;
    } else if (body_.handle() && (body_.done() || !heard())) {
      const std::optional<Point> filler = history_.unseen(random_);
      if (filler) give(*filler);
      over_ = !filler;
    } else {
      if (!body_.handle()) {
        body_ = search();
        asker_ = body_.handle();
      }
      asker_.resume();
      if (body_.done()) body_.check();
    }
  }
  return proposals;
}

void Guided::observe(std::span<const std::int64_t> config, double seconds) {
  history_.observe(config, seconds);
}

std::vector<double> Guided::Asked::await_resume() const {
  std::vector<double> times;
  for (const Point& p : points_) times.push_back(guided_.history_.result(p).value_or(kInfinity));
  return times;
}

bool Guided::begin(const std::vector<Point>& points) {
  awaited_.clear();
  for (const Point& p : points) {
    if (history_.result(p) || !space_.allowed(p)) continue;
    if (std::find(awaited_.begin(), awaited_.end(), p) != awaited_.end()) continue;
    awaited_.push_back(p);
    if (!history_.contains(p)) queue_.push_back(p);
  }
  if (!awaited_.empty()) {
    idle_ = 0;
    patience_ = std::min(2 * patience_, kMostPatience);
    return false;
  }
  if (++idle_ < patience_) return true;
  idle_ = 0;
  patience_ = std::max(1, patience_ / 4);
  std::optional<Point> fresh = history_.unseen(random_);
  over_ = !fresh;
  if (fresh) {
    awaited_.push_back(*fresh);
    queue_.push_back(std::move(*fresh));
  }
  return false;
}

bool Guided::heard() const {
  return std::all_of(awaited_.begin(), awaited_.end(),
                     [&](const Point& p) { return history_.result(p).has_value(); });
}

std::vector<Point> Guided::seeds(std::size_t count) {
  std::vector<Point> points;
  while (points.size() < count) {
    std::optional<Point> point = history_.promising(random_, problem_.predicted);
    // Near the end of a space the same point comes again and again.
    if (!point || std::find(points.begin(), points.end(), *point) != points.end()) break;
    points.push_back(std::move(*point));
  }
  return points;
}

Search Guided::start(std::vector<Member>& members, std::size_t count) {
  std::vector<Point> points = seeds(count);
  if (history_.best()) points.push_back(history_.best()->first);
  const std::vector<double> times = co_await ask(points);
  members.clear();
  for (std::size_t i = 0; i < points.size(); ++i) members.push_back({points[i], times[i]});
  std::stable_sort(members.begin(), members.end(),
                   [](const Member& a, const Member& b) { return a.seconds < b.seconds; });
}

Point Guided::repaired(Point child, const Point& parent) {
  std::vector<std::size_t> changed;
  for (std::size_t d = 0; d < child.size(); ++d)
    if (child[d] != parent[d]) changed.push_back(d);
  random_.shuffle(changed);
  while (!changed.empty() && !space_.allowed(child)) {
    child[changed.back()] = parent[changed.back()];
    changed.pop_back();
  }
  return child;
}

Point Guided::mutated(const Point& point, double any_value) {
  Point child = point;
  if (space_.dimensions() == 0) return child;
  for (int i = 0; i < kMutations * static_cast<int>(space_.dimensions()); ++i) {
    const std::size_t d = random_.below(space_.dimensions());
    const std::size_t arity = space_.arity(d);
    if (arity < 2) continue;
    const std::size_t rank = space_.rank(d, point[d]);
    std::size_t next = (rank + 1 + random_.below(arity - 1)) % arity;
    if (space_.ordered(d) && !random_.chance(any_value)) {
      const bool up = rank == 0 || (rank + 1 < arity && random_.chance(0.5));
      next = up ? rank + 1 : rank - 1;
    }
    child[d] = space_.place(d, static_cast<std::uint16_t>(next));
    if (!history_.contains(child) && space_.allowed(child)) return child;
    child[d] = point[d];
  }
  for (const Point& p : space_.pairs(point, kWidened, random_))
    if (!history_.contains(p)) return p;
  return child;
}

Search Guided::climb(Member& at) {
  for (bool better = true; better;) {
    better = false;
    std::vector<Point> around = space_.neighbours(at.point, Neighbourhood::adjacent);
    if (around.empty()) around = space_.neighbours(at.point, Neighbourhood::hamming);
    if (around.empty()) around = space_.pairs(at.point, kWidened, random_);
    random_.shuffle(around);
    // Tries `batch_` points at a time, and moves on from the first batch that holds a better one.
    for (std::size_t i = 0; i < around.size() && !better; i += batch_) {
      const auto first = around.begin() + static_cast<std::ptrdiff_t>(i);
      const auto last = first + static_cast<std::ptrdiff_t>(std::min(batch_, around.size() - i));
      std::vector<Point> some(first, last);
      const std::vector<double> times = co_await ask(some);
      const auto least = std::min_element(times.begin(), times.end());
      if (*least >= at.seconds) continue;
      at = {some[static_cast<std::size_t>(least - times.begin())], *least};
      better = true;
    }
  }
}

}  // namespace kiln::runtime
