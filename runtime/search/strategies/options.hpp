// The options that a strategy's name may carry: `coordinate_descent:radius=2,all_directions=1`.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace kiln::runtime {

/// Each strategy takes those it knows, then `finish` refuses the rest. Values are numbers.
class StrategyOptions {
 public:
  /// Parses a name with its options. @throws UserError when they are not `key=number,...`.
  explicit StrategyOptions(const std::string& text);

  const std::string& strategy() const noexcept { return strategy_; }
  /// The option's value, or `fallback` when it is not given.
  /// @throws UserError when it lies outside [least, most].
  double take(const std::string& key, double fallback, double least, double most);
  /// The same for a number of things: whole, at least `least`.
  std::size_t count(const std::string& key, std::size_t fallback, std::size_t least = 1);
  /// @throws UserError naming an option that nobody took and those that exist.
  void finish() const;

 private:
  std::string strategy_;
  std::vector<std::pair<std::string, double>> given_;
  std::vector<std::string> known_;
};

}  // namespace kiln::runtime
