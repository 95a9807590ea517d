// Tuning many problems in one go.
#pragma once

#include <cstddef>
#include <exception>
#include <span>
#include <vector>

#include "runtime/serve/served_handle.hpp"

namespace kiln::runtime {

/// The bucket that a problem is tuned as. @throws UserError when the default config of the handle's
/// device has nothing to do for it
Values bucket_to_tune(const detail::HandleCore& handle, const Values& problem);

/// A problem of a handle.
struct HandleProblem {
  ServedHandle* handle;
  Values problem;
};

/// What ranks agreed on, by job.
struct Agreed {
  std::vector<TuneResult> results;
  /// Why it could not be put in use here; null: it is in use, or take_choice() or is_unusable()
  /// says why not.
  std::vector<std::exception_ptr> failures;
  std::size_t compiled = 0;  ///< for all of it
};

/// Whether its winner was tried and cannot be used: then there is nothing to launch.
bool is_unusable(const TuneResult& result);

/// Where the runtime has ranks: remembers what a tuning with these options has chosen for a
/// problem. Whether it is to be put in use. What is used already stays where the ranks came to
/// nothing: one that took no part goes on with it. So does the default where no more agreements are
/// remembered.
bool take_choice(const detail::Engine& engine, Problems& problems, const TuneResult& result,
                 const TuneOptions& options);

/// Identifies a request to tune, and what the kernel's source is now.
Digest request_digest(detail::Engine& engine, const KernelDefinition& kernel,
                      std::span<const std::int64_t> problem, const TuneOptions& options);

/// As Runtime::tune with ranks. Where nothing may be measured, ranks with different records use the
/// defaults. What cannot be used is not put in use.
Agreed tune_together(detail::Engine& engine, std::span<const HandleProblem> jobs,
                     const TuneOptions& options, bool may_measure);

}  // namespace kiln::runtime
