// Whether ranks try candidates in workers: those that run in step on all ranks alike, and those
// that each measures by itself after a fault on any of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kiln/tune.hpp"
#include "runtime/ranks/messages.hpp"
#include "runtime/together/trials.hpp"

namespace kiln::runtime {

/// For one agreement.
class RankWorkers {
 public:
  /// @param in_step whether candidates are to be measured, and in step
  RankWorkers(Trials& trials, Isolation asked, bool in_step)
      : trials_(trials), asked_(asked), in_step_(in_step) {}

  /// Notes a fault over one of the problems. Without one, `after_fault` does not isolate.
  void note_fault() noexcept { faulted_ = true; }
  /// What this rank tells the others.
  std::uint64_t wish();
  /// By what all have told.
  void decide(std::span<const ranks::HeldMessage> all);
  /// Has trials run in workers, if that was decided.
  void begin() const {
    if (agreed_) trials_.isolate_in_step();
    if (alone_ && asked_ == Isolation::after_fault) trials_.isolate();
  }
  /// Adds a warning if this rank or another one is asked to isolate, and not all can.
  void warn(TuneResult& result) const;

 private:
  Trials& trials_;
  const Isolation asked_;
  const bool in_step_;
  bool faulted_ = false;
  bool agreed_ = false;  ///< in step
  bool alone_ = false;   ///< not in step: there was a fault
  std::string own_;      ///< why this rank cannot; empty: it can
  std::string why_not_;  ///< why none does, where one is asked to
};

}  // namespace kiln::runtime
