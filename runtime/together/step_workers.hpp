// Whether candidates that run in step do so in workers, on all ranks alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kiln/tune.hpp"
#include "runtime/ranks/messages.hpp"
#include "runtime/together/trials.hpp"

namespace kiln::runtime {

/// For one agreement.
class StepWorkers {
 public:
  /// @param in_step whether candidates are to be measured, and in step
  StepWorkers(Trials& trials, Isolation asked, bool in_step)
      : trials_(trials), asked_(asked), in_step_(in_step) {}

  /// Notes a fault over one of the problems. Without one, `after_fault` does not isolate.
  void note_fault() noexcept { faulted_ = true; }
  /// What this rank tells the others.
  std::uint64_t wish();
  /// By what all have told.
  void decide(std::span<const ranks::HeldMessage> all);
  /// Has trials run in workers, if all ranks do.
  void begin() const {
    if (agreed_) trials_.isolate_in_step();
  }
  /// Adds a warning if this rank or another one is asked to isolate, and not all can.
  void warn(TuneResult& result) const;

 private:
  Trials& trials_;
  const Isolation asked_;
  const bool in_step_;
  bool faulted_ = false, agreed_ = false;
  std::string own_;      ///< why this rank cannot; empty: it can
  std::string why_not_;  ///< why none does, where one is asked to
};

}  // namespace kiln::runtime
