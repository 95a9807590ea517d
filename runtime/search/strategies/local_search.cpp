// Seeded local search: random seeds, then climbs from the best of them through adjacent values;
// when the climbs are over, again with new seeds.
#include <algorithm>

#include "runtime/search/strategies/guided.hpp"
#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

class LocalSearch final : public Guided {
 public:
  LocalSearch(const SearchProblem& search, StrategyOptions& options)
      : Guided(search), seeds_(options.count("seeds", 12)), climbs_(options.count("climbs", 3)) {}

 private:
  Search search() override {
    for (;;) {
      std::vector<Member> starts;
      co_await start(starts, seeds_);
      for (std::size_t i = 0; i < std::min(climbs_, starts.size()); ++i) co_await climb(starts[i]);
    }
  }

  const std::size_t seeds_, climbs_;
};

}  // namespace

std::unique_ptr<Strategy> make_local_search(const SearchProblem& search, StrategyOptions& options) {
  return std::make_unique<LocalSearch>(search, options);
}

}  // namespace kiln::runtime
