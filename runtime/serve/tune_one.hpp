// Tuning one problem of a handle: what is asked for, and whether launches get what comes of it.
#pragma once

#include <cstdint>
#include <span>

#include "kiln/detail/handle_core.hpp"
#include "kiln/key.hpp"
#include "kiln/tune.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/problems.hpp"

namespace kiln::runtime {

/// The bucket that a problem is tuned as. @throws UserError when the default config of the handle's
/// device has nothing to do for it
Values bucket_to_tune(const detail::HandleCore& handle, const Values& problem);

/// Identifies a request to tune, and what the kernel's source is now.
Digest request_digest(detail::Engine& engine, const KernelDefinition& kernel,
                      std::span<const std::int64_t> problem, const TuneOptions& options);

/// Whether its winner was tried and cannot be used: then there is nothing to launch.
bool is_unusable(const TuneResult& result);

/// Where the runtime has ranks: remembers what a tuning with these options has chosen for a
/// problem. Whether it is to be put in use. What is used already stays where the ranks came to
/// nothing: one that took no part goes on with it. So does the default where no more agreements are
/// remembered.
bool take_choice(const detail::Engine& engine, Problems& problems, const TuneResult& result,
                 const TuneOptions& options);

}  // namespace kiln::runtime
