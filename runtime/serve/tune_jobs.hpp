// Tuning many problems in one go.
#pragma once

#include <span>
#include <vector>

#include "kiln/detail/handle_core.hpp"

namespace kiln::runtime {

/// The bucket that a problem is tuned as. @throws UserError when the default config of the handle's
/// device has nothing to do for it
Values bucket_to_tune(const detail::HandleCore& handle, const Values& problem);

/// A problem of a handle.
struct HandleProblem {
  detail::HandleCore* handle;
  Values problem;
};

/// As Runtime::tune with ranks. Where nothing may be measured, ranks with different records use the
/// defaults.
std::vector<TuneResult> tune_together(detail::Engine& engine, std::span<const HandleProblem> jobs,
                                      const TuneOptions& options, bool may_measure);

}  // namespace kiln::runtime
