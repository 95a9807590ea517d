// Climbs, changes some values at random, and climbs from there. Continues from the new optimum if
// it is better or hardly worse, and from the best one again if nothing has helped for long.
#include <algorithm>

#include "runtime/search/strategies/guided.hpp"
#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

class IteratedLocalSearch final : public Guided {
 public:
  IteratedLocalSearch(const SearchProblem& search, StrategyOptions& options)
      : Guided(search),
        seeds_(options.count("seeds", 10)),
        changes_(options.count("changes", 1)),
        tolerance_(options.take("tolerance", 0.03, 0, 1e6)),
        patience_(options.count("patience", 6)) {}

 private:
  Search search() override {
    std::vector<Member> starts;
    co_await start(starts, seeds_);
    if (starts.empty()) co_return;
    Member home = starts.front();
    co_await climb(home);
    for (std::size_t fruitless = 0;;) {
      Point changed = home.point;
      for (std::size_t i = 0; i < changes_; ++i) changed = mutated(changed, 1.0);
      const std::vector<Point> asked{changed};
      const std::vector<double> heard = co_await ask(asked);
      Member next{changed, heard[0]};
      co_await climb(next);
      fruitless = next.seconds < home.seconds ? 0 : fruitless + 1;
      if (next.seconds <= home.seconds * (1 + tolerance_)) home = next;
      if (fruitless >= patience_ && history_.best()) {
        home = {history_.best()->first, history_.best()->second};
        fruitless = 0;
      }
    }
  }

  const std::size_t seeds_, changes_;
  const double tolerance_;
  const std::size_t patience_;
};

}  // namespace

std::unique_ptr<Strategy> make_iterated_local_search(const SearchProblem& search,
                                                     StrategyOptions& options) {
  return std::make_unique<IteratedLocalSearch>(search, options);
}

}  // namespace kiln::runtime
