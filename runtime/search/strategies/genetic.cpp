// Parents chosen by tournament, uniform crossover, mutation by steps; the fastest survive.
#include <algorithm>

#include "runtime/search/strategies/guided.hpp"
#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

class Genetic final : public Guided {
 public:
  Genetic(const SearchProblem& search, StrategyOptions& options)
      : Guided(search),
        size_(options.count("population", 10, 2)),
        children_(options.count("children", 4)),
        mutation_(options.take("mutation", 0.7, 0, 1)) {}

 private:
  Search search() override {
    std::vector<Member> members;
    co_await start(members, size_);
    if (members.empty()) co_return;
    for (;;) {
      std::vector<Point> brood;
      for (std::size_t i = 0; i < children_; ++i) brood.push_back(child(members));
      const std::vector<double> times = co_await ask(brood);
      for (std::size_t i = 0; i < brood.size(); ++i) join(members, {brood[i], times[i]});
      if (members.size() > size_) members.resize(size_);
    }
  }

  /// Of equally fast members the older come first, so that they stay.
  static void join(std::vector<Member>& members, Member child) {
    const auto same = [&](const Member& m) { return m.point == child.point; };
    if (std::any_of(members.begin(), members.end(), same)) return;
    const auto slower = [&](const Member& m) { return m.seconds > child.seconds; };
    members.insert(std::find_if(members.begin(), members.end(), slower), std::move(child));
  }

  const Member& parent(const std::vector<Member>& members) {
    return members[std::min(random_.below(members.size()), random_.below(members.size()))];
  }

  Point child(const std::vector<Member>& members) {
    const Point& mother = parent(members).point;
    const Point& father = parent(members).point;
    Point point = mother;
    for (std::size_t d = 0; d < point.size(); ++d)
      if (random_.chance(0.5)) point[d] = father[d];
    point = repaired(std::move(point), mother);
    // A child that is known already is always changed, others are changed now and then.
    if (history_.contains(point) || random_.chance(mutation_)) point = mutated(point, 0.3);
    return point;
  }

  const std::size_t size_, children_;
  const double mutation_;
};

}  // namespace

std::unique_ptr<Strategy> make_genetic(const SearchProblem& search, StrategyOptions& options) {
  return std::make_unique<Genetic>(search, options);
}

}  // namespace kiln::runtime
