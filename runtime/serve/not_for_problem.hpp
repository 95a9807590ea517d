// A candidate that is not for a problem.
#pragma once

#include "kiln/error.hpp"

namespace kiln::runtime {

/// What was asked for does not support that problem, by its own rules: on any device, in any
/// process. Anything else that is in the way is another error.
class NotForProblem final : public UserError {
 public:
  using UserError::UserError;
};

}  // namespace kiln::runtime
