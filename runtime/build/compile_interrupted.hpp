// A compilation of which nothing is known but that it was ended from outside.
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
