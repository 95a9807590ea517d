// The alternatives that take part in one problem of a choice, as one space: what the tuner, the
// records and launches know of it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kiln/detail/choice_core.hpp"
#include "kiln/detail/function_core.hpp"
#include "kiln/error.hpp"
#include "runtime/choice/contender.hpp"
#include "runtime/choice/switches.hpp"

namespace kiln::runtime {

/// A config names the alternative by a number that depends on its name and version alone, and has
/// the description's values under `<alternative>.<parameter>`; those of other alternatives are 0.
/// So a recorded candidate of another version is not in today's space, while the others still are.
struct Field {
  detail::FunctionDescription subject;
  std::vector<Entrance> entrances;  ///< by contender

  struct Place {
    std::size_t contender;
    Values candidate;
  };
  /// The contender of a config of the subject, and its own values. @pre it is one of
  /// `subject.configs`
  Place place(std::span<const std::int64_t> config) const;

  std::vector<std::int64_t> ids;   ///< by contender
  std::vector<std::size_t> first;  ///< by contender: the index of its values in a config
  std::vector<std::size_t> count;
};

/// No alternative takes part.
class NoAlternative final : public UserError {
 public:
  using UserError::UserError;
};

/// By contender. @param deterministic an alternative without a numerics class has its first
/// candidate only. @throws what `supports` throws
std::vector<Entrance> enter_all(std::span<const std::unique_ptr<Contender>> contenders,
                                std::span<const std::int64_t> problem, bool deterministic);

/// @param switches what alternatives are no contenders, and why
/// @param entrances of enter_all(). @param by_ranks whether ranks decide for launches
/// @throws NoAlternative with the reasons
Field make_field(const detail::ChoiceDescription& choice, const Switches& switches,
                 std::span<const std::unique_ptr<Contender>> contenders,
                 std::span<const std::int64_t> problem, std::vector<Entrance> entrances,
                 bool deterministic, bool by_ranks);

/// By contender: the config of a kernel that all ranks launch.
using KernelConfigs = std::vector<std::optional<Values>>;

/// Configs that were tried and may not be launched, and why.
using FailedConfigs = std::map<Values, CandidateStatus>;

/// What launches of a bucket use.
struct Decision {
  Field field;
  Values config{};         ///< of the field
  FailedConfigs failed{};  ///< of the field
  /// All ranks have decided the same. So what one rank alone lacks is no reason for it to launch
  /// anything else, and a kernel is launched with its config below, or not at all.
  bool by_ranks = false;
  /// Nothing was measured: a preparation or a tuning decides anew.
  bool unmeasured = false;
  KernelConfigs kernels{};
};

/// Whether an alternative is missing that may take part the next time. Not by ranks: they go by
/// what they have decided.
bool lacks_something_now(const Decision& decision);

}  // namespace kiln::runtime
