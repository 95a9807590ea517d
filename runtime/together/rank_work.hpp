// One rank's part of tuning together: measures what the agreement asks for, and keeps what it saw.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <stop_token>
#include <vector>

#include "runtime/ranks/steps.hpp"
#include "runtime/together/trials.hpp"
#include "runtime/tune/candidate_list.hpp"
#include "runtime/tune/workshop.hpp"

namespace kiln::runtime {

/// On one thread. What it is given must outlive it.
class RankWork {
 public:
  /// `lists[s]`: the candidates of problem s. Without `may_measure` what can be launched counts.
  RankWork(Workshop& workshop, std::span<const TunableProblem> problems,
           const std::vector<CandidateList>& lists, const TuneOptions& options, Trials& trials,
           int size, bool may_measure);

  /// This rank does not try a candidate that its record says hung or crashed. Nor, unless ranks
  /// tune in lockstep, one that was cut off, if it has no more time now.
  void heed(std::size_t s, const TuneResult& record);
  /// All ranks measure anew, because at least one of them was asked to.
  void heed_nothing() { left_out_.assign(left_out_.size(), {}); }

  ranks::Worked perform(const ranks::Work& work, Deadline deadline);

  /// What became of candidates on this rank before it lost its device.
  void keep(const TrialLostDevice& lost);
  /// This rank's own times of problem `s`, and what it would choose by them.
  ranks::Record own(std::size_t s) const;
  /// What became here of candidate `c` of problem `s`; null: nothing yet.
  const Candidate* seen(std::size_t s, std::size_t c) const;
  /// Whether any candidate of problem `s` was measured here.
  bool measured(std::size_t s) const;
  /// Those that were tried here.
  void count_candidates(Counters& counters) const;

 private:
  ranks::Times make_all_ready(std::size_t s, const std::vector<std::size_t>& candidates,
                              ranks::Work::Kind kind, Deadline deadline,
                              const std::stop_token& stop);
  Deadline end_of(double part) const;
  Deadline end_of_round(bool decides) const;
  ranks::Worked in_step(const ranks::Work& work, Deadline deadline);
  const Candidate* left_out(std::size_t s, std::size_t c) const;
  void keep(std::size_t s, std::size_t c, Candidate candidate);
  float time_of(std::size_t s, std::size_t c) const;

  Workshop& workshop_;
  std::span<const TunableProblem> problems_;
  const std::vector<CandidateList>& lists_;
  const TuneOptions& options_;
  Trials& trials_;
  const bool second_look_, may_measure_;
  std::optional<Deadline> start_;                       ///< of `max_seconds`
  std::vector<std::map<std::size_t, Candidate>> seen_;  ///< by place in the list
  std::vector<std::map<Values, Candidate>> left_out_;
};

}  // namespace kiln::runtime
