// Tuning many problems in one go.
#pragma once

#include <cstddef>
#include <exception>
#include <span>
#include <vector>

#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// A problem of a handle.
struct HandleProblem {
  ServedHandle* handle;
  Values problem;
};

/// What ranks agreed on, by job.
struct Agreed {
  std::vector<TuneOutcome> tuned;
  /// Why it could not be put in use here; null: it is in use, or take_outcome() says why not.
  std::vector<std::exception_ptr> failures;
  std::size_t compiled = 0;  ///< for all of it
};

/// As Runtime::tune with ranks. Where nothing may be measured, ranks with different records use the
/// defaults. What cannot be used is not put in use.
Agreed tune_together_and_use(detail::Engine& engine, std::span<const HandleProblem> jobs,
                             const TuneOptions& options, bool may_measure);

}  // namespace kiln::runtime
