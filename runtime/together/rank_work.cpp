#include "runtime/together/rank_work.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <stop_token>
#include <string>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/support/parallel.hpp"
#include "runtime/together/measuring_together.hpp"
#include "runtime/tune/candidates.hpp"

namespace kiln::runtime {

using ranks::kFailed;
using ranks::kUntried;
using ranks::Work;
using ranks::Worked;

namespace {

/// The part of a limit in seconds that is spent first, when the best candidates are measured once
/// more after it.
constexpr double kFirstPart = 0.7;

bool is_dangerous(const Candidate& c) {
  return c.status == CandidateStatus::crashed || c.status == CandidateStatus::hung;
}

/// A finalist, as it was measured before, with one more sample. Its first one takes the place of
/// those by which it came into the finals.
Candidate with_sample(Candidate candidate, double seconds, bool first) {
  if (first) candidate.samples.clear();
  candidate.samples.push_back(seconds);
  candidate.seconds = median(candidate.samples);
  return candidate;
}

}  // namespace

RankWork::RankWork(Workshop& workshop, std::span<const TunableProblem> problems,
                   const std::vector<CandidateList>& lists, const TuneOptions& options,
                   Trials& trials, int size, bool may_measure)
    : workshop_(workshop),
      problems_(problems),
      lists_(lists),
      options_(options),
      trials_(trials),
      second_look_(options.together.strategy == RankStrategy::shard &&
                   options.together.finalists > 0 && size > 1),
      may_measure_(may_measure),
      seen_(problems.size()),
      left_out_(problems.size()) {}

void RankWork::heed(std::size_t s, const TuneResult& record) {
  const double budget = options_.max_seconds.value_or(0);
  for (const Candidate& c : record.candidates) {
    const bool cut = c.status == CandidateStatus::not_tried && c.cut_seconds > 0;
    if (is_dangerous(c) || (cut && !gets_more_time(c, budget))) left_out_[s].emplace(c.config, c);
  }
}

const Candidate* RankWork::seen(std::size_t s, std::size_t c) const {
  const auto found = seen_[s].find(c);
  return found == seen_[s].end() ? nullptr : &found->second;
}

/// What the record says of a candidate that this rank does not try; null: it tries it.
const Candidate* RankWork::left_out(std::size_t s, std::size_t c) const {
  const auto found = left_out_[s].find(lists_[s].configs[c]);
  return found == left_out_[s].end() ? nullptr : &found->second;
}

bool RankWork::measured(std::size_t s) const {
  return std::ranges::any_of(
      seen_[s], [](const auto& seen) { return seen.second.status == CandidateStatus::measured; });
}

void RankWork::count_candidates(Counters& counters) const {
  for (const auto& of_problem : seen_)
    for (const auto& [place, candidate] : of_problem)
      if (candidate.status != CandidateStatus::not_tried)
        counters.candidates.add(to_string(candidate.status));
}

Worked RankWork::perform(const Work& work, Deadline deadline) {
  const MeasuringTogether measuring;
  // The clock starts only now, because this rank may have waited for others.
  if (!start_) start_ = std::chrono::steady_clock::now();
  Worked done;
  if (!may_measure_ || work.builds()) {
    std::stop_token stop;
    if (may_measure_ && work.kind == Work::Kind::build) {
      stop = options_.stop;
      // What is built has to be timed, too.
      const auto now = std::chrono::steady_clock::now();
      if (const Deadline end = end_of(1); end != Deadline::max())
        deadline = std::min(deadline, now + (end - now) / 2);
    }
    for (const auto& [s, candidates] : work.items) {
      done.times.push_back(make_all_ready(s, candidates, work.kind, deadline, stop));
      const ranks::Times& times = done.times.back();
      if (work.kind == Work::Kind::prepare && done.trouble.empty() && !ranks::is_time(times[0]))
        done.trouble = detail::format("cannot build the chosen config of {}: {}",
                                      problems_[s].what.name(), seen(s, candidates[0])->reason);
    }
    done.stop = stop.stop_requested();
    return done;
  }
  if (work.kind == Work::Kind::lockstep) return in_step(work, deadline);
  std::vector<Request> requests;
  for (const auto& [s, candidates] : work.items) {
    // No rank measures once more what this rank alone has.
    const bool whole = candidates.size() == lists_[s].configs.size();
    Request request{s, {}, {}, work.kind == Work::Kind::finals || !second_look_ || whole};
    for (const std::size_t c : candidates) {
      const Candidate* const known = left_out(s, c);
      if (known && trials_.always_in_step())
        request.refused[request.configs.size()] = {known->status, known->reason};
      else if (known)
        continue;
      if (c == lists_[s].incumbent) request.incumbent = request.configs.size();
      request.configs.push_back(lists_[s].configs[c]);
    }
    if (!request.configs.empty()) requests.push_back(std::move(request));
  }
  if (!requests.empty())
    deadline = std::min(deadline, end_of_round(std::ranges::all_of(requests, &Request::decides)));
  std::vector<std::vector<Candidate>> measured = trials_.measure(requests, deadline);
  std::vector<Candidate> tried;
  for (std::vector<Candidate>& some : measured)
    std::move(some.begin(), some.end(), std::back_inserter(tried));
  auto next = tried.begin();
  for (const auto& [s, candidates] : work.items) {
    ranks::Times& times = done.times.emplace_back();
    for (const std::size_t c : candidates) {
      const Candidate* const known = left_out(s, c);
      if (!known || trials_.always_in_step()) keep(s, c, std::move(*next++));
      if (known) keep(s, c, *known);
      times.push_back(time_of(s, c));
    }
  }
  return done;
}

/// When this part of the budget in seconds is over.
Deadline RankWork::end_of(double part) const {
  const double seconds = options_.max_seconds.value_or(0);
  return seconds > 0 ? deadline_after(*start_, seconds * part) : Deadline::max();
}

/// Candidates that are measured once more get what the first round has left of the budget, and a
/// little where it has left nothing.
Deadline RankWork::end_of_round(bool decides) const {
  if (!decides) return end_of(kFirstPart);
  const double least = options_.max_seconds.value_or(0) * (1 - kFirstPart) / 2;
  return std::max(end_of(1), deadline_in(least));
}

Worked RankWork::in_step(const Work& work, Deadline deadline) {
  const auto& [s, candidates] = work.items.front();
  const std::size_t c = candidates.front();
  const Values& config = lists_[s].configs[c];
  Worked done;
  if (work.sample) {
    const TimingPolicy timing{
        .warm_up = 1, .launches = 1, .in_a_row = work.sample->in_a_row, .verify = false};
    Candidate now = trials_.measure_in_step(s, config, timing, deadline);
    const bool measured = now.status == CandidateStatus::measured;
    const double sample = now.seconds;
    if (measured) now = with_sample(*seen(s, c), sample, work.sample->index == 0);
    keep(s, c, std::move(now));
    done.times = {{measured ? static_cast<float>(sample) : time_of(s, c)}};
  } else {
    keep(s, c, trials_.measure_in_step(s, config, {}, deadline));
    done.times = {{time_of(s, c)}};
  }
  // This candidate is not left out on one rank alone; but the next one can be on all.
  done.stop = options_.stop.stop_requested() || std::chrono::steady_clock::now() >= end_of(1);
  return done;
}

/// 1 for what could be launched. Nothing is begun after the deadline or a stop.
ranks::Times RankWork::make_all_ready(std::size_t s, const std::vector<std::size_t>& candidates,
                                      Work::Kind kind, Deadline deadline,
                                      const std::stop_token& stop) {
  const bool for_lockstep = kind == Work::Kind::build && options_.together.lockstep;
  const Refusal late{CandidateStatus::not_tried, "it was not built in time"};
  std::vector<std::optional<Refusal>> refusals(candidates.size(), late);
  std::stop_source time_over;
  const auto look = [&](std::size_t) {
    if (stop.stop_requested() || std::chrono::steady_clock::now() >= deadline)
      time_over.request_stop();
  };
  look(0);
  std::optional<Refusal> lacking;
  if (for_lockstep) {  // before anything ends this rank's work: others may make it with this rank
    const MeasuringTogether measuring;
    lacking = trials_.make_data(s);
  }
  const auto threads = static_cast<unsigned>(std::clamp<std::size_t>(
      candidates.size(), 1, std::max(1U, workshop_.builder().builds_at_once())));
  for_each_index(
      threads, candidates.size(), time_over.get_token(),
      [&, part_of = SpanScope::here()](std::size_t i) {
        const SpanParent parent(part_of);
        const MeasuringTogether measuring;  // the program's functions may launch
        const Values& config = lists_[s].configs[candidates[i]];
        const Candidate* const known = left_out(s, candidates[i]);
        if (kind == Work::Kind::build && known && is_dangerous(*known))
          refusals[i] = Refusal{known->status, known->reason};
        else
          refusals[i] = lacking ? lacking : trials_.make_ready(s, config, for_lockstep);
      },
      look);
  ranks::Times times;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (!refusals[i]) {
      times.push_back(1);
      continue;
    }
    Candidate& candidate = seen_[s][candidates[i]];
    candidate.config = lists_[s].configs[candidates[i]];
    candidate.status = refusals[i]->status;
    candidate.reason = refusals[i]->reason;
    times.push_back(time_of(s, candidates[i]));
    const detail::Tunable& what = problems_[s].what;
    workshop_.log(LogLevel::info,
                  detail::format("{} with {}: {}", what.name(),
                                 what.space().describe(candidate.config), candidate.reason));
  }
  return times;
}

void RankWork::keep(std::size_t s, std::size_t c, Candidate candidate) {
  seen_[s].insert_or_assign(c, std::move(candidate));
}

void RankWork::keep(const TrialLostDevice& lost) {
  const std::size_t s = lost.problem();
  for (const Candidate& candidate : lost.seen()) {
    const auto place = std::ranges::find(lists_[s].configs, candidate.config);
    if (place == lists_[s].configs.end()) continue;
    const auto c = static_cast<std::size_t>(place - lists_[s].configs.begin());
    // What has a time from an earlier round was not tried in this one.
    if (candidate.status == CandidateStatus::not_tried && seen_[s].contains(c)) continue;
    keep(s, c, candidate);
  }
}

ranks::Record RankWork::own(std::size_t s) const {
  ranks::Times times(lists_[s].configs.size(), kUntried);
  for (const auto& [c, candidate] : seen_[s]) times[c] = time_of(s, c);
  const std::size_t winner = ranks::select(times, options_.together.margin).candidate;
  return {std::move(times), winner};
}

float RankWork::time_of(std::size_t s, std::size_t c) const {
  const Candidate& candidate = seen_[s].at(c);
  if (candidate.status == CandidateStatus::not_tried) return kUntried;
  return candidate.status == CandidateStatus::measured ? static_cast<float>(candidate.seconds)
                                                       : kFailed;
}

}  // namespace kiln::runtime
