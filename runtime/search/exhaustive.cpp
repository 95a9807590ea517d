// Every allowed config in the order of the space, walked as it is asked for.
#include <set>

#include "runtime/search/strategies.hpp"

namespace kiln::runtime {

namespace {

class Exhaustive final : public Strategy {
 public:
  explicit Exhaustive(const SearchSpace& space) : space_(space), cursor_(space.space()) {}

  std::vector<Values> propose(std::size_t count) override {
    std::vector<Values> proposals;
    for (; !over_ && proposals.size() < count; over_ = !cursor_.advance()) {
      const auto config = cursor_.values();
      if (!space_.allowed(config)) continue;
      Values values(config.begin(), config.end());
      if (observed_.erase(values) == 0) proposals.push_back(std::move(values));
    }
    return proposals;
  }

  void observe(std::span<const std::int64_t> config, double) override {
    // Behind the cursor it was proposed or skipped already; only what lies ahead must be kept.
    const auto point = space_.point(config);
    if (!over_ && point && *point >= cursor_.point())
      observed_.emplace(config.begin(), config.end());
  }

 private:
  const SearchSpace& space_;
  Cursor cursor_;
  std::set<Values> observed_;
  bool over_ = false;
};

}  // namespace

std::unique_ptr<Strategy> make_exhaustive(const SearchProblem& search, StrategyOptions&) {
  return std::make_unique<Exhaustive>(search.space);
}

}  // namespace kiln::runtime
