// Tuning one problem beside others: waiting for them, continuing what is on record, saving.
#pragma once

#include "kiln/tune.hpp"
#include "runtime/tune/tuner.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// What a caller has read of a problem's record, a moment ago; by default it has not read any.
struct RecordRead {
  bool done = false;
  std::optional<Recall> recall{};  ///< nothing: there is none
};

/// From the store if that answers the request, else measured and remembered. A launch is content
/// with an unfinished search. The budget begins now: it covers waiting for other tunings, of other
/// threads and processes. A launch waits for half of it at most, so that there is something left to
/// tune with; where WhileBusy says so, it does not wait at all. When the time ends in waiting, the
/// result is what is known, else the default, not tried. Without ranks: see together/.
/// @throws UserError where the mode forbids to tune; as runtime::tune
TuneOutcome tune_alone(Workshop& workshop, TrialMaker& maker, const TuneOptions& options,
                       bool for_launch, const RecordRead& known = {});

/// Verifies and times the default config alone, and remembers nothing.
/// @throws UserError where the mode forbids to time; as runtime::tune
TuneResult time_default(Workshop& workshop, TrialMaker& maker, const TuneOptions& options);

}  // namespace kiln::runtime
