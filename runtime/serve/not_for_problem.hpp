// A candidate that is not for a problem.
#pragma once

#include "kiln/error.hpp"

namespace kiln::runtime {

/// What is asked for is not for that problem, by what it says of itself: on any device, in any
/// process. Whatever else is in the way is another error.
class NotForProblem final : public UserError {
 public:
  using UserError::UserError;
};

}  // namespace kiln::runtime
