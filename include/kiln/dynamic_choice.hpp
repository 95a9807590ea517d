// A choice (choice.hpp) without its types: its problems are given as values. What jobs of
// Runtime::tune hold.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "kiln/detail/choice_core.hpp"
#include "kiln/tune.hpp"

namespace kiln {

class Runtime;

/// Copies share everything, also with the TunedChoice that it was made of. May be used by several
/// threads at once.
class DynamicChoice {
 public:
  /// As TunedChoice's, which this converts from.
  void prepare(const Values& problem) const { core_->prepare(problem); }
  TuneResult tune(const Values& problem) const { return core_->tune(problem, nullptr); }
  TuneResult tune(const Values& problem, const TuneOptions& options) const {
    return core_->tune(problem, &options);
  }
  std::optional<TuneResult> known(const Values& problem) const { return core_->known(problem); }

 private:
  friend Runtime;
  friend detail::ChoiceMade;

  explicit DynamicChoice(std::shared_ptr<detail::ChoiceCore> core) : core_(std::move(core)) {}

  std::shared_ptr<detail::ChoiceCore> core_;
};

namespace detail {

/// A friend: how choice.hpp makes one.
struct ChoiceMade {
  static DynamicChoice of(std::shared_ptr<ChoiceCore> core) {
    return DynamicChoice(std::move(core));
  }
};

}  // namespace detail

}  // namespace kiln
