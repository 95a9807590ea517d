// Moves one field after the other, in order, to better values near the present one. If no field
// alone helps, moves all fields at once; if that does not help either, starts again from another
// point.
#include <algorithm>
#include <cstdlib>

#include "runtime/search/strategies/guided.hpp"
#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

/// Combinations of several fields that are looked at, at most.
constexpr std::size_t kDirections = 256;

class CoordinateDescent final : public Guided {
 public:
  CoordinateDescent(const SearchProblem& search, StrategyOptions& options)
      : Guided(search),
        seeds_(options.count("seeds", 1)),
        radius_(options.count("radius", 1)),
        all_directions_(options.take("all_directions", 0, 0, 1) != 0) {}

 private:
  Search search() override {
    for (bool begun = false;; begun = true) {
      // The best of what was tried before, the default at least, is where the first descent begins.
      Member at;
      if (!begun && history_.best()) {
        at = {history_.best()->first, history_.best()->second};
      } else {
        const std::vector<Point> starts = seeds(seeds_);
        const std::vector<double> times = co_await ask(starts);
        if (starts.empty()) continue;
        const auto least = std::min_element(times.begin(), times.end());
        at = {starts[static_cast<std::size_t>(least - times.begin())], *least};
      }
      for (bool better = true; better;) {
        const double before = at.seconds;
        for (std::size_t d = 0; d < space_.dimensions(); ++d) co_await move(at, along(at.point, d));
        if (at.seconds == before && all_directions_) co_await move(at, directions(at.point));
        if (at.seconds == before) co_await move(at, widened(at.point));
        better = at.seconds < before;
      }
    }
  }

  /// Moves to the best of `others`, some of which may not be allowed, if it is better.
  Search move(Member& at, std::vector<Point> others) {
    const std::vector<double> times = co_await ask(others);
    for (std::size_t i = 0; i < others.size(); ++i)
      if (times[i] < at.seconds) at = {others[i], times[i]};
  }

  /// Places of the values around that of one field: by rank as far as the radius, and twice and
  /// half the value, which in a long list of sizes are the steps that count.
  std::vector<std::uint16_t> near(const Point& at, std::size_t d) const {
    std::vector<std::uint16_t> places;
    const std::size_t arity = space_.arity(d), rank = space_.rank(d, at[d]);
    const auto take = [&](std::uint16_t place) {
      if (place != at[d] && std::find(places.begin(), places.end(), place) == places.end())
        places.push_back(place);
    };
    if (!space_.ordered(d)) {
      for (std::size_t place = 0; place < arity; ++place) take(static_cast<std::uint16_t>(place));
      return places;
    }
    const auto& values = space_.space().parameters()[d].values;
    const auto take_value = [&](std::int64_t value) {
      const auto found = std::find(values.begin(), values.end(), value);
      if (found != values.end()) take(static_cast<std::uint16_t>(found - values.begin()));
    };
    const std::int64_t value = values[at[d]];
    if (value > 0 && (value & (value - 1)) == 0) {
      if (value < std::int64_t{1} << 62) take_value(value * 2);
      if (value > 1) take_value(value / 2);
    }
    for (std::size_t r = 1; r <= std::min(radius_, arity - 1); ++r) {
      if (rank + r < arity) take(space_.place(d, static_cast<std::uint16_t>(rank + r)));
      if (rank >= r) take(space_.place(d, static_cast<std::uint16_t>(rank - r)));
    }
    return places;
  }

  std::vector<Point> along(const Point& at, std::size_t d) const {
    std::vector<Point> points;
    for (std::uint16_t place : near(at, d)) {
      points.push_back(at);
      points.back()[d] = place;
    }
    return points;
  }

  /// Every combination of staying and moving in each field, or a random choice of many.
  std::vector<Point> directions(const Point& at) {
    std::vector<std::vector<std::uint16_t>> choices;
    double count = 1;
    for (std::size_t d = 0; d < space_.dimensions(); ++d) {
      choices.push_back(near(at, d));
      choices.back().push_back(at[d]);
      count *= static_cast<double>(choices.back().size());
    }
    std::vector<Point> points;
    if (count <= kDirections) {
      points.push_back(at);
      for (std::size_t d = 0; d < choices.size(); ++d) {
        std::vector<Point> wider;
        for (const Point& p : points)
          for (std::uint16_t place : choices[d]) {
            wider.push_back(p);
            wider.back()[d] = place;
          }
        points = std::move(wider);
      }
    } else {
      while (points.size() < kDirections) {
        points.push_back(at);
        for (std::size_t d = 0; d < choices.size(); ++d)
          points.back()[d] = choices[d][random_.below(choices[d].size())];
      }
    }
    std::erase(points, at);
    return points;
  }

  /// Where constraints leave no field free to move alone, two together may.
  std::vector<Point> widened(const Point& at) {
    for (std::size_t d = 0; d < space_.dimensions(); ++d)
      for (const Point& p : along(at, d))
        if (space_.allowed(p)) return {};
    return space_.pairs(at, 2 * space_.dimensions(), random_);
  }

  const std::size_t seeds_, radius_;
  const bool all_directions_;
};

}  // namespace

std::unique_ptr<Strategy> make_coordinate_descent(const SearchProblem& search,
                                                  StrategyOptions& options) {
  return std::make_unique<CoordinateDescent>(search, options);
}

}  // namespace kiln::runtime
