#include <algorithm>

#include "kiln/tune.hpp"

namespace kiln {

const char* to_string(RankReport::Outcome outcome) noexcept {
  return outcome == RankReport::Outcome::plan ? "plan" : "defaults";
}

const char* to_string(CandidateStatus status) noexcept {
  switch (status) {
    case CandidateStatus::measured:
      return "measured";
    case CandidateStatus::violates_constraint:
      return "violates_constraint";
    case CandidateStatus::exceeds_limits:
      return "exceeds_limits";
    case CandidateStatus::compile_failed:
      return "compile_failed";
    case CandidateStatus::launch_failed:
      return "launch_failed";
    case CandidateStatus::wrong_result:
      return "wrong_result";
    case CandidateStatus::crashed:
      return "crashed";
    case CandidateStatus::hung:
      return "hung";
    case CandidateStatus::out_of_memory:
      return "out_of_memory";
    case CandidateStatus::not_tried:
      return "not_tried";
  }
  return "not_tried";
}

const char* to_string(SearchEnd end) noexcept {
  switch (end) {
    case SearchEnd::finished:
      return "finished";
    case SearchEnd::evaluations:
      return "evaluations";
    case SearchEnd::seconds:
      return "seconds";
    case SearchEnd::target:
      return "target";
    case SearchEnd::stopped:
      return "stopped";
  }
  return "finished";
}

std::size_t TuneResult::count(CandidateStatus status) const noexcept {
  return static_cast<std::size_t>(
      std::count_if(candidates.begin(), candidates.end(),
                    [&](const Candidate& c) { return c.status == status; }));
}

double TuneResult::speedup() const noexcept {
  const Candidate& base = default_candidate();
  return base.status == CandidateStatus::measured ? base.seconds / winner().seconds : 1.0;
}

std::string TuneResult::describe(const Candidate& candidate) const {
  std::string text;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    text += (i ? "," : "") + parameters[i] + "=" + show(i, candidate.config[i]);
  return text;
}

std::string TuneResult::show(std::size_t parameter, std::int64_t value) const {
  if (const auto named = enumerators.find(parameters[parameter]); named != enumerators.end())
    if (const auto name = named->second.find(value); name != named->second.end())
      return name->second;
  return std::to_string(value);
}

}  // namespace kiln
