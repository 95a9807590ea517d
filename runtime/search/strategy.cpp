#include "runtime/search/strategy.hpp"

#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/search/strategies/strategies.hpp"

namespace kiln::runtime {

namespace {

using Maker = std::unique_ptr<Strategy> (*)(const SearchProblem&, StrategyOptions&);

/// One line per strategy; each lives in its own file.
constexpr std::pair<const char*, Maker> kStrategies[] = {
    {"model", make_model},
    {"exhaustive", make_exhaustive},
    {"random", make_random},
    {"local_search", make_local_search},
    {"coordinate_descent", make_coordinate_descent},
    {"iterated_local_search", make_iterated_local_search},
    {"simulated_annealing", make_simulated_annealing},
    {"genetic", make_genetic},
    {"differential_evolution", make_differential_evolution},
};

}  // namespace

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kStrategies) names.emplace_back(name);
  return names;
}

const std::string& default_strategy() {
  static const std::string name = "model";
  return name;
}

void check_strategy(const std::string& name) {
  if (name.empty()) return;
  DynamicSpace space;
  space.parameter("any", {0}, 0);
  const DeviceLimits limits;
  make_strategy(name, {SearchSpace(space, {}, limits)});
}

std::unique_ptr<Strategy> make_strategy(const std::string& name, const SearchProblem& search) {
  StrategyOptions options(name);
  const std::string& wanted =
      options.strategy() == "auto" ? default_strategy() : options.strategy();
  std::string known;
  for (const auto& [known_name, make] : kStrategies) {
    if (wanted == known_name) {
      auto strategy = make(search, options);
      options.finish();
      return strategy;
    }
    if (!known.empty()) known += ", ";
    known += known_name;
  }
  throw UserError(
      detail::format("unknown strategy '{}' (known: auto, {})", options.strategy(), known));
}

}  // namespace kiln::runtime
