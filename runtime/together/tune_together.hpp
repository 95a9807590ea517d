// The choice of all ranks: from records if they agree, else measured together.
#pragma once

#include <span>
#include <vector>

#include "kiln/tune.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/together/trials.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// One result per problem, chosen together with `options.ranks` (null: alone) by the protocol of
/// runtime/ranks: from the store if every rank has the same there, else measured by `trials`. Saved
/// once per store. Where nothing may be measured, by the mode or by `may_measure` (the same on all
/// ranks), ranks with different records use defaults. Fills in RankReport. A collective call: every
/// rank makes it with the same problems.
/// @throws UserError on options that make no sense. With one rank also whatever fails; with
/// several, what this rank's own functions throw, once the others have heard of it. That another
/// rank has failed is in the results.
std::vector<TuneResult> tune_together(Workshop& workshop, std::span<const TunableProblem> problems,
                                      const TuneOptions& options, Trials& trials,
                                      bool for_launch = false, bool may_measure = true);

}  // namespace kiln::runtime
