// Tunes one problem, alone or with the ranks that take part.
#pragma once

#include <memory>

#include "kiln/tune.hpp"
#include "runtime/tune/trial_maker.hpp"
#include "runtime/tune/tuning_session.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// Tunes the maker's problem with `options.ranks`, else alone. `known` is for tuning alone: ranks
/// ask each other what they know. @throws as tune_together() and tune_alone()
TuneOutcome tune_alone_or_together(Workshop& workshop, std::unique_ptr<TrialMaker> maker,
                                   const TuneOptions& options, bool for_launch,
                                   const RecordRead& known = {});

}  // namespace kiln::runtime
