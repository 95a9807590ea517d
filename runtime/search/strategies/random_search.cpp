// Allowed configs drawn uniformly, none twice: what every other strategy must beat.
#include "runtime/search/history.hpp"
#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

class RandomSearch final : public Strategy {
 public:
  explicit RandomSearch(const SearchProblem& search)
      : space_(search.space), history_(search.space), random_(search.seed) {}

  std::vector<Values> propose(std::size_t count) override {
    std::vector<Values> proposals;
    while (!over_ && proposals.size() < count) {
      const std::optional<Point> point = history_.unseen(random_);
      over_ = !point;
      if (!point) break;
      history_.propose(*point);
      proposals.push_back(space_.values(*point));
    }
    return proposals;
  }

  void observe(std::span<const std::int64_t> config, double seconds) override {
    history_.observe(config, seconds);
  }

 private:
  const SearchSpace& space_;
  History history_;
  Random random_;
  bool over_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_random(const SearchProblem& search, StrategyOptions&) {
  return std::make_unique<RandomSearch>(search);
}

}  // namespace kiln::runtime
