#include "runtime/together/lockstep_workers.hpp"

#include <algorithm>
#include <exception>
#include <iterator>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

using ranks::HeldMessage;
using ranks::LockstepIsolation;

std::uint64_t LockstepWorkers::wish() {
  const auto wish = [&] {
    if (!in_step_) return LockstepIsolation::no;
    if (asked_ == Isolation::off) {
      own_ = "isolation is off on this rank";
      return LockstepIsolation::no;
    }
    try {
      own_ = trials_.why_not_in_workers();
    } catch (const std::exception& error) {
      own_ = error.what();
    }
    if (!own_.empty()) return LockstepIsolation::no;
    return asked_ == Isolation::always || faulted_ ? LockstepIsolation::wants
                                                   : LockstepIsolation::may;
  };
  return static_cast<std::uint64_t>(wish());
}

void LockstepWorkers::decide(std::span<const HeldMessage> all) {
  const auto first_that = [&](LockstepIsolation says) {
    return std::ranges::find(all, static_cast<std::uint64_t>(says), &HeldMessage::isolation) -
           all.begin();
  };
  const auto none = std::ssize(all), refuses = first_that(LockstepIsolation::no);
  const bool wanted =
      first_that(LockstepIsolation::wants) != none ||
      (in_step_ && (asked_ == Isolation::always || (asked_ == Isolation::after_fault && faulted_)));
  agreed_ = wanted && refuses == none;
  if (!wanted || agreed_) return;
  why_not_ =
      own_.empty() ? detail::format("rank {} tries its candidates in no worker", refuses) : own_;
}

void LockstepWorkers::warn(TuneResult& result) const {
  if (!why_not_.empty())
    result.warnings.push_back(
        detail::format("candidates run in this process, not in workers: {}", why_not_));
}

}  // namespace kiln::runtime
