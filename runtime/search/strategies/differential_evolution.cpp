// Differential evolution over the ranks of values: a member moves towards the best and along the
// difference of two others; the child replaces it when it is not slower.
#include <algorithm>
#include <cmath>

#include "runtime/search/strategies/guided.hpp"
#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

class DifferentialEvolution final : public Guided {
 public:
  DifferentialEvolution(const SearchProblem& search, StrategyOptions& options)
      : Guided(search),
        size_(options.count("population", 10, 4)),
        factor_(options.take("factor", 0.7, 0, 2)),
        crossover_(options.take("crossover", 0.6, 0, 1)) {}

 private:
  Search search() override {
    std::vector<Member> members;
    co_await start(members, size_);
    if (members.empty()) co_return;
    for (;;) {
      std::vector<Point> trials;
      for (std::size_t i = 0; i < members.size(); ++i) trials.push_back(trial(members, i));
      const std::vector<double> heard = co_await ask(trials);
      for (std::size_t i = 0; i < members.size(); ++i)
        if (heard[i] <= members[i].seconds) members[i] = {trials[i], heard[i]};
      std::stable_sort(members.begin(), members.end(),
                       [](const Member& a, const Member& b) { return a.seconds < b.seconds; });
    }
  }

  Point trial(const std::vector<Member>& members, std::size_t self) {
    const Point& x = members[self].point;
    const Point& best = members[random_.below(std::max<std::size_t>(1, members.size() / 5))].point;
    const Point& a = members[random_.below(members.size())].point;
    const Point& b = members[random_.below(members.size())].point;
    Point point = x;
    const std::size_t sure = x.empty() ? 0 : random_.below(x.size());
    for (std::size_t d = 0; d < x.size(); ++d) {
      if (d != sure && !random_.chance(crossover_)) continue;
      point[d] = space_.ordered(d) ? moved(d, x[d], best[d], a[d], b[d])
                                   : chosen(x[d], best[d], a[d], b[d]);
    }
    point = repaired(std::move(point), x);
    return history_.contains(point) ? mutated(point, 0.3) : point;
  }

  std::uint16_t moved(std::size_t d, std::uint16_t x, std::uint16_t best, std::uint16_t a,
                      std::uint16_t b) const {
    const auto rank = [&](std::uint16_t place) { return double{1} * space_.rank(d, place); };
    const double to = rank(x) + factor_ * (rank(best) - rank(x)) + factor_ * (rank(a) - rank(b));
    const double last = static_cast<double>(space_.arity(d) - 1);
    return space_.place(d, static_cast<std::uint16_t>(std::lround(std::clamp(to, 0.0, last))));
  }

  /// Where values have no order, a difference is only whether there is one.
  std::uint16_t chosen(std::uint16_t x, std::uint16_t best, std::uint16_t a, std::uint16_t b) {
    if (a != b && random_.chance(factor_)) return random_.chance(0.5) ? a : b;
    return random_.chance(factor_) ? best : x;
  }

  const std::size_t size_;
  const double factor_, crossover_;
};

}  // namespace

std::unique_ptr<Strategy> make_differential_evolution(const SearchProblem& search,
                                                      StrategyOptions& options) {
  return std::make_unique<DifferentialEvolution>(search, options);
}

}  // namespace kiln::runtime
