// What ranks tell each other beside an agreement: before it, which winners each holds, or that it
// takes no part.
#pragma once

#include <algorithm>
#include <exception>
#include <span>
#include <string_view>
#include <vector>

#include "kiln/communicator.hpp"
#include "kiln/ranks.hpp"
#include "kiln/tune.hpp"
#include "runtime/ranks/messages.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// Fills in all ranks' messages. Never throws on account of the communicator.
Communicator::Failure exchange_held(Communicator& communicator, const RankOptions& options,
                                    const ranks::HeldMessage& mine,
                                    std::vector<ranks::HeldMessage>& all);

/// Instead of an agreement: the others are told why, and need not wait. True if all ranks refuse,
/// so that there is nothing that others agree on without this one.
bool refuse(Communicator& communicator, const RankOptions& options, std::string_view why);

/// For a rank that has no problem where others may have some: they need not wait for it, and use
/// defaults. Where all ranks have none, they all call this, and it returns true.
bool announce_absence(const TuneOptions& options, const char* why);

/// Makes each value the greatest that any rank has there. A collective call, with as many values on
/// every rank. False when a rank does not take part in time: that breaks this rank's end. Never
/// throws on account of the communicator.
bool take_greatest(Workshop& workshop, const TuneOptions& options, std::span<float> values);

/// Whether `mine` is true on every rank. Also false when a rank does not say it in time. A
/// collective call.
bool holds_on_all(Workshop& workshop, const TuneOptions& options, bool mine);

/// For agreements before which the others may have to compile.
inline TuneOptions patient(TuneOptions options) {
  RankOptions& together = options.together;
  together.first_seconds = std::max(together.first_seconds, together.tune_seconds);
  return options;
}

/// So that nothing else is tuned in this process meanwhile. Does not wait for it longer than the
/// other ranks wait for this one. @throws EnvironmentError when it does not come in time
TuningTurn::Hold take_turn(TuningTurn& turn, const TuneOptions& options,
                           TuningTurn::Kind kind = TuningTurn::Kind::kept);

/// Calls `work`, which comes before an agreement. If it throws, the other ranks are told first, and
/// `left_out` is called with the exception unless every rank refused: then nothing was agreed on
/// without this one.
template <class Work, class LeftOut>
auto tell_if_it_throws(const TuneOptions& options, const Work& work, const LeftOut& left_out) {
  const auto tell = [&](const char* why) {
    if (const std::exception_ptr error = std::current_exception(); !announce_absence(options, why))
      left_out(error);
  };
  try {
    return work();
  } catch (const std::exception& error) {
    tell(error.what());
    throw;
  } catch (...) {
    tell(kForeignException);
    throw;
  }
}

template <class Work>
auto tell_if_it_throws(const TuneOptions& options, const Work& work) {
  return tell_if_it_throws(options, work, [](const std::exception_ptr&) {});
}

}  // namespace kiln::runtime
