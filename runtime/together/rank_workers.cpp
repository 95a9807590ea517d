#include "runtime/together/rank_workers.hpp"

#include <algorithm>
#include <exception>
#include <iterator>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

using ranks::HeldMessage;
using ranks::RankIsolation;

std::uint64_t RankWorkers::wish() {
  const auto wish = [&] {
    if (!in_step_) return faulted_ ? RankIsolation::wants : RankIsolation::no;
    if (asked_ == Isolation::off) {
      own_ = "isolation is off on this rank";
      return RankIsolation::no;
    }
    try {
      own_ = trials_.why_not_in_workers();
    } catch (const std::exception& error) {
      own_ = error.what();
    }
    if (!own_.empty()) return RankIsolation::no;
    return asked_ == Isolation::always || faulted_ ? RankIsolation::wants : RankIsolation::may;
  };
  return static_cast<std::uint64_t>(wish());
}

void RankWorkers::decide(std::span<const HeldMessage> all) {
  const auto first_that = [&](RankIsolation says) {
    return std::ranges::find(all, static_cast<std::uint64_t>(says), &HeldMessage::isolation) -
           all.begin();
  };
  const auto none = std::ssize(all), refuses = first_that(RankIsolation::no);
  const bool any_wants = first_that(RankIsolation::wants) != none;
  if (!in_step_) {
    alone_ = any_wants;
    return;
  }
  const bool wanted =
      any_wants || asked_ == Isolation::always || (asked_ == Isolation::after_fault && faulted_);
  agreed_ = wanted && refuses == none;
  if (!wanted || agreed_) return;
  why_not_ =
      own_.empty() ? detail::format("rank {} tries its candidates in no worker", refuses) : own_;
}

void RankWorkers::warn(TuneResult& result) const {
  if (!why_not_.empty())
    result.warnings.push_back(
        detail::format("candidates run in this process, not in workers: {}", why_not_));
}

}  // namespace kiln::runtime
