#include "runtime/strategy.hpp"

#include <utility>

#include "kiln/error.hpp"

namespace kiln::runtime {

namespace {

using Maker = std::unique_ptr<Strategy> (*)(const SearchProblem&);

/// One line per strategy; each lives in its own file under strategies/.
constexpr std::pair<const char*, Maker> kStrategies[] = {
    {"exhaustive", make_exhaustive},
};

}  // namespace

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kStrategies) names.emplace_back(name);
  return names;
}

std::unique_ptr<Strategy> make_strategy(const std::string& name, const SearchProblem& search) {
  std::string known;
  for (const auto& [known_name, make] : kStrategies) {
    if (name == known_name) return make(search);
    known += (known.empty() ? "" : ", ") + std::string(known_name);
  }
  throw UserError("unknown strategy '" + name + "' (known: " + known + ")");
}

}  // namespace kiln::runtime
