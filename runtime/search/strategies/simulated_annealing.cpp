// A walk that takes every step to a faster point. The slower a point is, and the later it comes,
// the less often the walk steps to it. Once cooled down, the walk starts again from the best point.
#include <algorithm>
#include <cmath>

#include "runtime/search/strategies/guided.hpp"
#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

/// Evaluations of one cooling if the number of evaluations is not known.
constexpr double kUsualBudget = 200;

class SimulatedAnnealing final : public Guided {
 public:
  SimulatedAnnealing(const SearchProblem& search, StrategyOptions& options)
      : Guided(search),
        seeds_(options.count("seeds", 12)),
        hot_(options.take("hot", 0.05, 1e-9, 1e9)),
        cold_(options.take("cold", 0.01, 1e-9, 1e9)),
        steps_(options.take("steps",
                            search.budget > 0 ? static_cast<double>(search.budget) : kUsualBudget,
                            1, 1e9)) {}

 private:
  Search search() override {
    std::vector<Member> starts;
    co_await start(starts, seeds_);
    if (starts.empty()) co_return;
    Member at = starts.front();
    for (;;) {
      const std::size_t begun = history_.points().size();
      for (double paid = 0; paid < steps_;) {
        const std::vector<Point> next{mutated(at.point, 0.3)};
        const std::vector<double> heard = co_await ask(next);
        if (accepts(at.seconds, heard[0], paid / steps_)) at = {next[0], heard[0]};
        // Known points cost nothing, but a walk among them must cool down too.
        paid = std::max(paid + 0.02, static_cast<double>(history_.points().size() - begun));
      }
      if (history_.best()) at = {history_.best()->first, history_.best()->second};
    }
  }

  /// A slowdown is relative to the present time, so that no scale of times must be known.
  bool accepts(double now, double next, double progress) {
    if (next <= now) return true;
    const double temperature = hot_ * std::pow(cold_ / hot_, progress);
    return random_.chance(std::exp(-(next / now - 1) / temperature));
  }

  const std::size_t seeds_;
  const double hot_, cold_, steps_;
};

}  // namespace

std::unique_ptr<Strategy> make_simulated_annealing(const SearchProblem& search,
                                                   StrategyOptions& options) {
  return std::make_unique<SimulatedAnnealing>(search, options);
}

}  // namespace kiln::runtime
