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
};

/// @throws UserError on a name that no alternative has, with those that there are, and where
/// nothing is left, with the reasons
Switches read_switches(const detail::ChoiceDescription& choice, const ChoiceOptions& options);

}  // namespace kiln::runtime
