// How a search looks to the tuner: it proposes configs and is told what became of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kiln/space.hpp"

namespace kiln::runtime {

/// Not thread-safe; lives for one search. Proposals may violate constraints: the tuner rejects
/// those and says so. The default config has been proposed already, by the tuner.
class Strategy {
 public:
  virtual ~Strategy() = default;
  /// Up to `count` configs not proposed before; empty: the search is over.
  virtual std::vector<Values> propose(std::size_t count) = 0;
  /// Seconds per launch; infinite for a candidate that cannot be used.
  virtual void observe(std::span<const std::int64_t> config, double seconds) = 0;
};

/// What a strategy may know.
struct SearchProblem {
  const DynamicSpace& space;
  const Values& default_config;  ///< of the device's kind of target
  std::span<const std::int64_t> problem;
  const DeviceLimits& limits;
  std::uint64_t seed;
};

/// @throws UserError on an unknown name; the message lists the known ones.
std::unique_ptr<Strategy> make_strategy(const std::string& name, const SearchProblem& search);
std::vector<std::string> strategy_names();

/// Every combination, in the order of the fields and their values.
std::unique_ptr<Strategy> make_exhaustive(const SearchProblem& search);

}  // namespace kiln::runtime
