// How a search looks to the tuner: it proposes configs and is told what became of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/search/search_space.hpp"

namespace kiln::runtime {

/// Not thread-safe; lives for one search.
class Strategy {
 public:
  virtual ~Strategy() = default;
  /// Returns up to `count` (> 0) allowed configs that were neither proposed nor observed before.
  /// Fewer are returned if the strategy first wants results of earlier ones, but at least one
  /// unless the search is over. An empty list means that it is over, and it stays so.
  virtual std::vector<Values> propose(std::size_t count) = 0;
  /// Seconds per launch; infinite for a candidate that cannot be used. In any order, at any time
  /// after the proposal; also of configs that it did not propose (the default, earlier runs').
  virtual void observe(std::span<const std::int64_t> config, double seconds) = 0;
};

/// What was measured of the same kernel for another problem or on another device. It is a hint: a
/// strategy may begin with it, and must find out by itself how far it holds.
struct Evidence {
  struct Result {
    Values config;   ///< in the order of the space's parameters
    double seconds;  ///< infinite: it cannot be used
  };
  std::vector<Result> results;
  /// Parameters whose values were not told, by place; empty: all were. What stands for them in
  /// `config` means nothing.
  std::vector<bool> unknown = {};
  /// From the problem that is searched, in factors of two of its size.
  double distance = 0;
};

/// What a strategy may know.
struct SearchProblem {
  const SearchSpace& space;
  std::uint64_t seed = 1;
  /// Evaluations that will be paid for; 0: not limited. Then a strategy ends when more would hardly
  /// help (or, if it cannot tell, when every allowed config was proposed).
  std::size_t budget = 0;
  /// A cost model's guess in seconds, right at best in its order; empty: there is none.
  std::function<double(std::span<const std::int64_t> config)> predicted = {};
  /// Must outlive the strategy. Those that learn from nothing but their own results ignore it.
  std::span<const Evidence> evidence = {};
};

/// The most configs that a search without a budget tries, given how many can be listed: one in
/// fifteen, within bounds.
inline constexpr std::size_t kMostWithoutBudget = 400;
constexpr std::size_t most_without_budget(std::size_t listed) noexcept {
  return std::clamp<std::size_t>(listed / 15, 64, kMostWithoutBudget);
}

/// `default_strategy()` or a name of `strategy_names()`. @throws UserError on an unknown name; the
/// message lists the known ones.
std::unique_ptr<Strategy> make_strategy(const std::string& name, const SearchProblem& search);
/// Checks the name only. An empty name means the default. @throws as make_strategy does on a name.
void check_strategy(const std::string& name);
std::vector<std::string> strategy_names();
/// The name of the one that wins on measured spaces.
const std::string& default_strategy();

}  // namespace kiln::runtime
