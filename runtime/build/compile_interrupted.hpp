// A compilation that was ended from outside; nothing else is known of it.
#pragma once

#include "kiln/error.hpp"

namespace kiln::runtime {

/// Every process that compiled an instance was ended from outside, as the system does where memory
/// runs out. That says nothing of the source, and another attempt may succeed.
class CompileInterrupted : public EnvironmentError {
 public:
  using EnvironmentError::EnvironmentError;
};

}  // namespace kiln::runtime
