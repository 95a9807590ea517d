// Every allowed config in the order of the space, walked as it is asked for. Where the walk meets
// nothing for long, those configs of a sparse space that can be listed are the rest.
#include <set>

#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

/// Combinations in a row without an allowed one. After the first number the rest is listed; after
/// the second (some seconds' worth) a rest that cannot be listed is taken to be empty.
constexpr std::size_t kList = std::size_t{1} << 20, kGiveUp = std::size_t{1} << 26;

class Exhaustive final : public Strategy {
 public:
  explicit Exhaustive(const SearchSpace& space) : space_(space), cursor_(space.space()) {
    if (!space.authored()) return;
    listed_ = space.enumerate();
    over_ = true;
  }

  std::vector<Values> propose(std::size_t count) override {
    std::vector<Values> proposals;
    for (; !over_ && proposals.size() < count; over_ = over_ || !cursor_.advance()) {
      const auto config = cursor_.values();
      if (space_.allowed(config)) {
        misses_ = 0;
        take({config.begin(), config.end()}, proposals);
      } else if (++misses_ == kList && listed_.empty()) {
        listed_ = space_.enumerate();
        over_ = !listed_.empty();
      } else if (misses_ == kGiveUp) {
        over_ = true;
      }
    }
    for (; over_ && next_ < listed_.size() && proposals.size() < count; ++next_)
      take(space_.values(listed_[next_]), proposals);
    return proposals;
  }

  void observe(std::span<const std::int64_t> config, double) override {
    seen_.emplace(config.begin(), config.end());
  }

 private:
  void take(Values config, std::vector<Values>& proposals) {
    if (seen_.insert(config).second) proposals.push_back(std::move(config));
  }

  const SearchSpace& space_;
  Cursor cursor_;
  std::span<const Point> listed_;
  std::size_t next_ = 0;    ///< of the list
  std::size_t misses_ = 0;  ///< in a row
  std::set<Values> seen_;   ///< proposed or observed
  bool over_ = false;       ///< the walk is
};

}  // namespace

std::unique_ptr<Strategy> make_exhaustive(const SearchProblem& search, StrategyOptions&) {
  return std::make_unique<Exhaustive>(search.space);
}

}  // namespace kiln::runtime
