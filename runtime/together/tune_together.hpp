// The choice of all ranks: from records if they agree, else measured together.
#pragma once

#include <exception>
#include <span>
#include <vector>

#include "kiln/tune.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/together/trials.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// One result per subject, chosen together with `options.ranks` (null: alone) by the protocol of
/// runtime/ranks: from the store if every rank has the same there, else measured by `trials`. Saved
/// once per store. Where nothing may be measured, by the mode or by `may_measure` (the same on all
/// ranks), ranks with different records use defaults. Fills in RankReport. A collective call: every
/// rank makes it with the same subjects.
/// @throws UserError on options that make no sense; a rank that fails is no exception.
std::vector<TuneResult> tune_together(Workshop& workshop, std::span<const Subject> subjects,
                                      const TuneOptions& options, Trials& trials,
                                      bool for_launch = false, bool may_measure = true);

/// For a rank that has no subject where others may have some: they need not wait for it, and use
/// defaults. Where all ranks have none, they all call this.
void take_no_part(Workshop& workshop, const TuneOptions& options, const char* why);

/// Whether `mine` is true on every rank. Also false when a rank does not say it in time. A
/// collective call.
bool holds_on_all(Workshop& workshop, const TuneOptions& options, bool mine);

/// Calls `work`, which comes before an agreement. If it throws, the other ranks are told first.
template <class Work>
auto tell_if_it_throws(Workshop& workshop, const TuneOptions& options, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    take_no_part(workshop, options, error.what());
    throw;
  } catch (...) {
    take_no_part(workshop, options, kForeignException);
    throw;
  }
}

}  // namespace kiln::runtime
