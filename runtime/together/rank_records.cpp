#include "runtime/together/rank_records.hpp"

#include <utility>

#include "runtime/tune/tuner.hpp"

namespace kiln::runtime {

RankRecords::RankRecords(Workshop& workshop, std::span<const TunableProblem> problems,
                         const TuneOptions& options)
    : workshop_(workshop), problems_(problems), options_(options), kept_(problems.size()) {}

std::optional<Recall> RankRecords::read(std::size_t s, bool for_launch) {
  const auto& [what, problem] = problems_[s];
  RecordBook& records = workshop_.records();
  kept_[s] = {records.key(what, problem), records.versions(what)};
  return records.recall(what, problem, options_, for_launch);
}

bool RankRecords::has_faulted(std::size_t s, const std::optional<Recall>& known) const {
  return workshop_.faults().contains(kept_[s].key.digest) ||
         (known && runtime::has_faulted(*known));
}

std::optional<Recall> RankRecords::latest(std::size_t s) const {
  const auto& [what, problem] = problems_[s];
  return workshop_.records().latest(kept_[s].key, what, problem, options_, false);
}

void RankRecords::remember(std::size_t s, const TuneResult& result, bool faulted) {
  const auto& [key, versions] = kept_[s];
  workshop_.records().remember(key, problems_[s].what, result, versions, policy_of(options_),
                               faulted && !result.complete);
  if (result.complete) workshop_.faults().remove(key.digest);
}

void RankRecords::save(std::size_t s, const TuneResult& result, bool anew) {
  const auto latest = this->latest(s);
  remember(s, joined(latest, result, options_, anew), latest && latest->faulted);
}

void RankRecords::save_fault(std::size_t s, TuneResult seen) {
  workshop_.faults().add(kept_[s].key.digest);
  seen.complete = false;
  seen.end = SearchEnd::stopped;
  const auto latest = this->latest(s);
  if (seen.winner().status == CandidateStatus::measured) {
    // Not even a tuning that measures anew replaces an earlier winner before its end.
    remember(s, joined(latest, seen, options_, false), true);
  } else if (may_join(latest, options_)) {
    TuneResult stays = latest->result;
    add_missing(stays, seen);
    remember(s, stays, true);
  }
}

}  // namespace kiln::runtime
