// Tuning one problem of a handle: what is asked for, and whether launches get what comes of it.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>

#include "kiln/detail/handle_core.hpp"
#include "kiln/key.hpp"
#include "kiln/tune.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/problems.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/tuning_session.hpp"

namespace kiln::runtime {

/// For a rank that throws out of an agreement on a problem: the others go on without it, and do not
/// answer when its next launch asks again. Where launches have nothing, they throw the same.
void remember_absence(const detail::Engine& engine, Problems& problems,
                      std::span<const std::int64_t> problem, const TuneOptions& options,
                      std::exception_ptr why);

/// The same for the bucket of `exact`. Launches of what has no bucket ask nobody.
void remember_absence(const detail::Engine& engine, Problems& problems,
                      const KernelDefinition& kernel, std::span<const std::int64_t> exact,
                      const TuneOptions& options, std::exception_ptr why) noexcept;

/// The bucket that a problem is tuned as. @throws UserError when the default config of the handle's
/// device has nothing to do for it, or the bucket is in another bucket
Values bucket_to_tune(const detail::HandleCore& handle, std::span<const std::int64_t> problem);

/// One problem with a maker of its own, alone or with the ranks of `options`.
TuneOutcome tune_one(detail::Engine& engine, const KernelDefinition& kernel,
                     std::span<const std::int64_t> problem, const TuneOptions& options,
                     bool for_launch, const RecordRead& known = {});

/// As tune_one. Without ranks a tuning that has failed throws the same error again at once,
/// until the kernel's source or the options change, or the caller asks for a retry. Ranks are asked
/// each time: the others take part in the agreement, whatever has failed here. Launches, for which
/// they do not, get what it throws from Problems::throw_if_none().
TuneOutcome tune_or_fail_again(detail::Engine& engine, Problems& problems,
                               const KernelDefinition& kernel,
                               std::span<const std::int64_t> problem, const TuneOptions& options,
                               bool for_launch, const RecordRead& known = {});

/// How tuning a problem here has failed, if all that there is was tried and none of it can be used:
/// with other limits nothing would be found, either. Until the kernel's source changes.
std::optional<TuningFailedError> none_usable(detail::Engine& engine, const Problems& problems,
                                             const KernelDefinition& kernel,
                                             std::span<const std::int64_t> problem);

/// What comes of a tuning for the launches of its problem.
enum class Taken {
  chosen,   ///< they get the winner: where ranks came to nothing, that is the default
  kept,     ///< what they get stays: nothing was measured, or ranks came to nothing
  unusable  ///< the winner must not be launched; what they get stays, if they get anything
};

/// @param held whether something is in use or agreed on, which stays where ranks came to nothing:
/// a rank that took no part goes on with it
Taken taken_of(Ending ending, bool held);

/// Every explicit tuning of a kernel's problem ends here, and with ranks every launch's; functions,
/// choices and regions, which remember what they use elsewhere, ask taken_of(). Where the runtime
/// has ranks, launches ask none of them again, so this remembers for them:
///   chosen    that config; `kept`, with a warning, where no more agreements are remembered
///   kept      nothing: what is in use or agreed on stays
///   unusable  that there is none, until one is found; nothing where something is in use
Taken take_outcome(detail::Engine& engine, Problems& problems, const KernelDefinition& kernel,
                   const TuneOutcome& tuned, const TuneOptions& options);

/// Whether a caller is told by an exception that nothing can be used. The same on all ranks that
/// hold one plan; where they came to nothing, each knows of its own failures. Where a stop or a
/// limit left something untried, the result tells it.
bool is_failure(const TuneOutcome& tuned);

}  // namespace kiln::runtime
