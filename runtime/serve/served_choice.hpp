// A choice as prepare and seal see it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "kiln/communicator.hpp"
#include "kiln/detail/choice_core.hpp"
#include "kiln/missing.hpp"
#include "kiln/prepare.hpp"
#include "kiln/tune.hpp"

namespace kiln::runtime {

/// What launches of a problem of a choice use, and why.
struct PreparedChoice {
  PreparedState state = PreparedState::missing;
  std::string why{};
  std::string alternative{};                     ///< that launches use; empty: nothing is ready
  std::map<std::string, std::int64_t> config{};  ///< its own
  bool as_its_kernel = false;         ///< it has one candidate, whose tuning is the kernel's own
  std::optional<TuneResult> tuned{};  ///< measured for this
};

class ServedChoice : public detail::ChoiceCore {
 public:
  /// The ranks that decide on it; null: none.
  virtual std::shared_ptr<Communicator> ranks() const = 0;
  /// Whether what launches of the problem use is decided; without ranks also, whether it is on
  /// record, or forced. @throws what alternatives' functions throw
  virtual bool is_answered(Span problem) = 0;
  /// Makes an exact problem ready for launches, which stays. What is not answered is measured with
  /// kernels as they are in use, if `measure` says so. Nothing is compiled, unless ranks tune.
  /// With ranks a collective, unless they have decided before. @throws what a launch throws
  /// @param max_seconds for the measurement; nothing: as the choice's options say
  virtual PreparedChoice make_ready(Span problem, bool measure, std::optional<double> max_seconds,
                                    std::stop_token stop) = 0;
  /// Notes from now on what is launched unprepared. By one thread at a time.
  virtual void seal() = 0;
  /// Exact problems that were launched unprepared and are still not in use, and how often.
  virtual std::map<Values, std::uint64_t> launched_unprepared() const = 0;
};

}  // namespace kiln::runtime
