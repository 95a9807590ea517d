// Which alternatives a program, or its environment, lets take part.
#pragma once

#include <string>
#include <vector>

#include "kiln/choice.hpp"

namespace kiln::runtime {

struct Switches {
  std::vector<bool> on;  ///< by alternative
  std::vector<std::string> why_not;
  bool forced = false;
  std::string forced_by;  ///< `KILN_CHOOSE_GEMM`; empty: the options
  /// Where the first candidate takes less, no other alternative is tried; 0: no gate.
  double gate_seconds = 0;
  /// Set where the variable of all choices names no alternative of this one: it may be misspelt.
  std::string warning{};
};

/// @param deterministic only one numerics class is let in
/// @throws UserError on a name that no alternative has, with those that there are; where nothing is
/// left, with the reasons; on a gate without sense
Switches read_switches(const detail::ChoiceDescription& choice, const ChoiceOptions& options,
                       bool deterministic);

}  // namespace kiln::runtime
