#include "runtime/together/step_workers.hpp"

#include <algorithm>
#include <exception>
#include <iterator>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

using ranks::HeldMessage;
using ranks::StepIsolation;

std::uint64_t StepWorkers::wish() {
  const auto wish = [&] {
    if (!in_step_) return StepIsolation::no;
    if (asked_ == Isolation::off) {
      own_ = "isolation is off on this rank";
      return StepIsolation::no;
    }
    try {
      own_ = trials_.why_not_in_workers();
    } catch (const std::exception& error) {
      own_ = error.what();
    }
    if (!own_.empty()) return StepIsolation::no;
    return asked_ == Isolation::always || faulted_ ? StepIsolation::wants : StepIsolation::may;
  };
  return static_cast<std::uint64_t>(wish());
}

void StepWorkers::decide(std::span<const HeldMessage> all) {
  const auto first_that = [&](StepIsolation says) {
    return std::ranges::find(all, static_cast<std::uint64_t>(says), &HeldMessage::isolation) -
           all.begin();
  };
  const auto none = std::ssize(all), refuses = first_that(StepIsolation::no);
  const bool wanted =
      first_that(StepIsolation::wants) != none ||
      (in_step_ && (asked_ == Isolation::always || (asked_ == Isolation::after_fault && faulted_)));
  agreed_ = wanted && refuses == none;
  if (!wanted || agreed_) return;
  why_not_ =
      own_.empty() ? detail::format("rank {} tries its candidates in no worker", refuses) : own_;
}

void StepWorkers::warn(TuneResult& result) const {
  if (!why_not_.empty())
    result.warnings.push_back(
        detail::format("candidates run in this process, not in workers: {}", why_not_));
}

}  // namespace kiln::runtime
