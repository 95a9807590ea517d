// Tuning one problem by whoever is to take part in it.
#pragma once

#include <memory>

#include "kiln/tune.hpp"
#include "runtime/tune/trial_maker.hpp"
#include "runtime/tune/tuning_session.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// The maker's problem, by `options.ranks` together, else alone. `known` is for tuning alone: ranks
/// ask each other what they know. @throws as tune_together() and tune_alone()
TuneOutcome tune_alone_or_together(Workshop& workshop, std::unique_ptr<TrialMaker> maker,
                                   const TuneOptions& options, bool for_launch,
                                   const RecordRead& known = {});

}  // namespace kiln::runtime
