// The exchanges between the vote and the comparison of plans.
#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/ranks/agreement.hpp"

namespace kiln::runtime::ranks {

namespace {

/// Lockstep: samples of each finalist, and how long one is to take.
constexpr std::size_t kFinalSamples = 7;
constexpr float kSampleSeconds = 2e-3F, kMostInARow = 32;

bool usable(float time) { return time > 0 && std::isfinite(time); }

}  // namespace

// --- tuning -------------------------------------------------------------------------------------

Agreement::Actions Agreement::begin_tuning(Time now) {
  tune_until_ = now + in_.options.tune_seconds;
  for (std::size_t p = 0; p < problems_.size(); ++p)
    if (tuned(p)) problems_[p].mine.assign(in_.problems[p].candidates, kFailed);
  if (next_tuned(0) == problems_.size()) return choose(now);
  if (in_.options.lockstep) {
    for (std::size_t p = 0; p < problems_.size(); ++p)
      if (tuned(p)) problems_[p].agreed.assign(in_.problems[p].candidates, kUntried);
    current_ = next_tuned(0);
    return begin_lockstep();
  }
  if (!sharded()) return time_shares(now);
  Exchange e = exchange(Phase::costs, Exchange::Kind::reduce_max, now + in_.options.step_seconds);
  for (std::size_t p = 0; p < problems_.size(); ++p) {
    if (!tuned(p)) continue;
    std::vector<Cost> costs = in_.problems[p].costs;
    costs.resize(in_.problems[p].candidates);
    for (const Cost& c : costs)
      for (const float seconds : {c.compile, c.run})
        e.values.push_back(usable(seconds) ? seconds : 0);
  }
  e.values.push_back(static_cast<float>(in_.compile_threads));
  e.values.push_back(in_.overlap ? 1 : 0);
  return {std::move(e)};
}

Agreement::Actions Agreement::read_costs(std::span<const float> values, Time now) {
  if (values.size() < 2)
    return give_up({RankFailure::Kind::system, {}, "a reduction of the wrong size"}, now);
  // All split the candidates alike, whatever each has.
  const ShardOptions split{in_.size, static_cast<int>(values[values.size() - 2]),
                           values.back() != 0};
  values = values.first(values.size() - 2);
  std::vector<Cost> costs(values.size() / 2);
  std::size_t known = 0, wanted = 0;
  Cost sum;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    costs[i] = {usable(values[2 * i]) ? values[2 * i] : 0,
                usable(values[2 * i + 1]) ? values[2 * i + 1] : 0};
    if (costs[i].compile + costs[i].run > 0) {
      ++known;
      sum.compile += costs[i].compile;
      sum.run += costs[i].run;
    }
  }
  const auto parts = static_cast<float>(known);
  for (Cost& c : costs)  // a rank of which nothing is known is like the others
    if (known > 0 && c.compile + c.run == 0) c = {sum.compile / parts, sum.run / parts};
  std::vector<std::size_t> candidates;
  for (std::size_t p = 0; p < problems_.size(); ++p)
    if (tuned(p)) {
      candidates.push_back(in_.problems[p].candidates);
      wanted += candidates.back();
    }
  if (wanted != costs.size())
    return give_up({RankFailure::Kind::system, {}, "a reduction of the wrong size"}, now);
  std::vector<std::vector<int>> owners = assign(candidates, costs, split);
  owners_.resize(problems_.size());
  auto next = owners.begin();
  for (std::size_t p = 0; p < problems_.size(); ++p)
    if (tuned(p)) owners_[p] = std::move(*next++);
  return time_shares(now);
}

/// Only what this rank is to time; neutral values stand for what others time.
Agreement::Actions Agreement::time_shares(Time now) {
  const bool idle = in_.options.strategy == RankStrategy::leader && in_.rank != in_.options.leader;
  std::vector<Work::Item> items;
  for (std::size_t p = 0; p < problems_.size(); ++p) {
    if (!tuned(p) || idle) continue;
    Work::Item item{p, {}};
    for (std::size_t c = 0; c < in_.problems[p].candidates; ++c) {
      const bool mine = owners_.empty() || owners_[p][c] == in_.rank;
      if (mine)
        item.candidates.push_back(c);
      else
        problems_[p].mine[c] = 0;
    }
    if (!item.candidates.empty()) items.push_back(std::move(item));
  }
  phase_ = Phase::tune;
  if (items.empty()) return worked({}, now);
  return {work(Phase::tune, Work::Kind::time, std::move(items), tune_until_)};
}

Agreement::Actions Agreement::worked(const Worked& e, Time now) {
  if (phase_ == Phase::prepare) return prepared(e, now);
  const bool expected = phase_ == Phase::tune || phase_ == Phase::finals ||
                        phase_ == Phase::build || phase_ == Phase::lockstep ||
                        phase_ == Phase::lockstep_finals;
  if (!expected) return {};
  if (!e.trouble.empty() && trouble_.empty()) trouble_ = e.trouble;
  for (std::size_t i = 0; i < items_.size(); ++i)
    for (std::size_t k = 0; k < items_[i].candidates.size(); ++k) {
      const bool there = e.trouble.empty() && i < e.times.size() && k < e.times[i].size();
      problems_[items_[i].problem].mine[items_[i].candidates[k]] =
          there ? sanitized(e.times[i][k]) : kFailed;
    }
  items_.clear();
  const float stop = !trouble_.empty() || e.stop || now >= tune_until_ ? 1.0F : 0.0F;
  const Time patience = std::max(now, tune_until_) + 2 * in_.options.step_seconds;
  switch (phase_) {
    case Phase::tune:
      phase_ = Phase::reduce;
      current_ = 0;
      return reduce_next(now);
    case Phase::finals:
      phase_ = Phase::reduce_finals;
      current_ = 0;
      return reduce_next(now);
    case Phase::build: {
      Exchange out = exchange(Phase::ready, Exchange::Kind::reduce_max, patience);
      out.values = problems_[current_].mine;
      out.values.push_back(stop);
      return {std::move(out)};
    }
    default: {
      const Phase next = phase_ == Phase::lockstep ? Phase::reduce_one : Phase::reduce_final;
      Exchange out = exchange(next, reduction(), patience);
      out.values = {problems_[current_].mine[candidate_], stop};
      return {std::move(out)};
    }
  }
}

Agreement::Actions Agreement::reduce_next(Time now) {
  const bool first = current_ == 0;
  current_ = next_tuned(current_);
  while (phase_ == Phase::reduce_finals && current_ < problems_.size() && !divided(current_))
    current_ = next_tuned(current_ + 1);
  if (current_ == problems_.size()) {
    if (phase_ == Phase::reduce && in_.options.finalists > 0 && any_divided())
      return begin_finals(now);
    return choose(now);
  }
  const Time patience = (first ? std::max(now, tune_until_) + in_.options.step_seconds : now) +
                        in_.options.step_seconds;
  const Times& mine = problems_[current_].mine;
  if (in_.options.strategy == RankStrategy::leader) {
    Exchange e = exchange(phase_, Exchange::Kind::broadcast, patience);
    e.root = in_.options.leader;
    e.bytes = encode_record({mine, 0});
    return {std::move(e)};
  }
  // What only one rank timed has no mean.
  const bool one_each = sharded() && phase_ == Phase::reduce;
  Exchange e = exchange(phase_, one_each ? Exchange::Kind::reduce_max : reduction(), patience);
  e.values = mine;
  return {std::move(e)};
}

Agreement::Actions Agreement::read_reduced(const Completed& e, Time now) {
  const bool led = in_.options.strategy == RankStrategy::leader;
  const Times received =
      led ? decode_record(e.bytes).times : Times(e.values.begin(), e.values.end());
  Problem& problem = problems_[current_];
  if (received.size() != problem.agreed.size())
    return give_up({RankFailure::Kind::system, {}, "a reduction of the wrong size"}, now);
  if (phase_ == Phase::reduce_finals) problem.first_round = problem.agreed;
  std::transform(received.begin(), received.end(), problem.agreed.begin(), sanitized);
  ++current_;
  return reduce_next(now);
}

Agreement::Actions Agreement::begin_finals(Time now) {
  std::vector<Work::Item> items;
  for (std::size_t p = 0; p < problems_.size(); ++p) {
    if (!divided(p)) continue;
    problems_[p].mine.assign(problems_[p].mine.size(), kFailed);
    problems_[p].again = finalists(problems_[p].agreed, in_.options.finalists);
    Work::Item item{p, problems_[p].again};
    if (!item.candidates.empty()) items.push_back(std::move(item));
  }
  tune_until_ = now + in_.options.tune_seconds;
  phase_ = Phase::finals;
  if (items.empty()) return worked({}, now);
  return {work(Phase::finals, Work::Kind::finals, std::move(items), tune_until_)};
}

// --- lockstep -----------------------------------------------------------------------------------

Agreement::Actions Agreement::begin_lockstep() {
  ShardOptions share{1, in_.compile_threads, in_.overlap};
  int place = 0;  // among the ranks of this store
  for (int rank = 0; in_.store != 0 && rank < in_.size; ++rank) {
    if (rank == in_.rank ||
        stores_[static_cast<std::size_t>(rank)] != stores_[static_cast<std::size_t>(in_.rank)])
      continue;
    ++share.ranks;
    if (rank < in_.rank) ++place;
  }
  Work::Item item{current_, build_order(in_.problems[current_].candidates, place, share)};
  Work w = work(Phase::build, Work::Kind::build, {std::move(item)}, tune_until_);
  return {std::move(w)};
}

Agreement::Actions Agreement::read_ready(std::span<const float> values, Time now) {
  Problem& problem = problems_[current_];
  if (values.size() != problem.agreed.size() + 1)
    return give_up({RankFailure::Kind::system, {}, "a reduction of the wrong size"}, now);
  if (values.back() != 0) return choose(now);  // someone cannot or may not go on
  problem.ready.assign(values.begin(), values.end() - 1);
  for (std::size_t c = 0; c < problem.ready.size(); ++c)
    if (!is_time(problem.ready[c])) problem.agreed[c] = problem.ready[c];
  candidate_ = 0;
  // A rank that has given up waiting may have sent its part before, so the exchange succeeds on a
  // rank that comes too late. Here a rank takes part only after the first exchange has succeeded.
  Exchange go = exchange(Phase::go, Exchange::Kind::reduce_max, now + in_.options.step_seconds);
  go.values = {1};
  return {std::move(go)};
}

Agreement::Actions Agreement::lockstep_next(Time now) {
  const Times& ready = problems_[current_].ready;
  while (candidate_ < ready.size() && !is_time(ready[candidate_])) ++candidate_;
  if (candidate_ == ready.size()) return name_finalists(now);
  return {work(Phase::lockstep, Work::Kind::lockstep, {{current_, {candidate_}}},
               now + in_.options.step_seconds)};
}

Agreement::Actions Agreement::read_one(std::span<const float> values, Time now) {
  if (values.size() != 2)
    return give_up({RankFailure::Kind::system, {}, "a reduction of the wrong size"}, now);
  problems_[current_].agreed[candidate_] = sanitized(values[0]);
  // Ranks may disagree on the last bits of a mean, but must agree on what comes next.
  if (values[1] * static_cast<float>(in_.size) > 0.5F) return choose(now);
  ++candidate_;
  return lockstep_next(now);
}

/// The first times are few launches each. The best take turns, with more launches in a row, so that
/// it counts little how late another rank begins. So do the best of each kind: what communicates in
/// one launch is compared with what takes several. Means may differ in their last bits between
/// ranks: so they agree on the finalists and on the launches.
Agreement::Actions Agreement::name_finalists(Time now) {
  if (in_.options.finalists == 0) return next_in_lockstep(now);
  const Times& agreed = problems_[current_].agreed;
  Exchange out =
      exchange(Phase::finalists, Exchange::Kind::reduce_max, now + in_.options.step_seconds);
  out.values.assign(agreed.size(), 0);
  for (const std::size_t c : finalists(agreed, in_.options.finalists, in_.problems[current_].kinds))
    out.values[c] = 1;
  const float best = *std::min_element(agreed.begin(), agreed.end());
  out.values.push_back(std::clamp(std::round(kSampleSeconds / best), 1.0F, kMostInARow));
  return {std::move(out)};
}

Agreement::Actions Agreement::read_finalists(std::span<const float> values, Time now) {
  const Times& agreed = problems_[current_].agreed;
  if (values.size() != agreed.size() + 1)
    return give_up({RankFailure::Kind::system, {}, "a reduction of the wrong size"}, now);
  finalists_.clear();
  turn_ = 0;
  for (std::size_t c = 0; c < agreed.size(); ++c)
    if (values[c] > 0) finalists_.push_back({c, {}});
  in_a_row_ = static_cast<std::size_t>(std::clamp(values.back(), 1.0F, kMostInARow));
  return finalists_.size() < 2 ? next_in_lockstep(now) : next_final(now);
}

Agreement::Actions Agreement::next_final(Time now) {
  const auto failed = [&](std::size_t turn) {
    const Times& times = finalists_[turn % finalists_.size()].second;
    return !times.empty() && !is_time(times.back());
  };
  const std::size_t turns = kFinalSamples * finalists_.size();
  while (turn_ < turns && failed(turn_)) ++turn_;
  if (turn_ == turns) {
    end_lockstep_finals();
    return next_in_lockstep(now);
  }
  const auto& [candidate, times] = finalists_[turn_ % finalists_.size()];
  candidate_ = candidate;
  Work sample = work(Phase::lockstep_finals, Work::Kind::lockstep, {{current_, {candidate_}}},
                     now + in_.options.step_seconds);
  sample.sample = {times.size(), in_a_row_};
  return {std::move(sample)};
}

Agreement::Actions Agreement::read_final(std::span<const float> values, Time now) {
  if (values.size() != 2)
    return give_up({RankFailure::Kind::system, {}, "a reduction of the wrong size"}, now);
  finalists_[turn_ % finalists_.size()].second.push_back(sanitized(values[0]));
  ++turn_;
  if (values[1] * static_cast<float>(in_.size) <= 0.5F) return next_final(now);
  end_lockstep_finals();
  return choose(now);
}

/// Finals that ended before all had their turn decide nothing.
void Agreement::end_lockstep_finals() {
  Problem& problem = problems_[current_];
  Times medians(problem.agreed.size(), kUntried);
  std::vector<std::size_t> again;
  for (auto& [candidate, times] : finalists_) {
    if (times.empty()) return;
    again.push_back(candidate);
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    const float last = times.back();
    std::nth_element(times.begin(), middle, times.end());
    medians[candidate] = is_time(last) ? *middle : last;
  }
  problem.first_round = std::exchange(problem.agreed, std::move(medians));
  problem.again = std::move(again);
}

Agreement::Actions Agreement::next_in_lockstep(Time now) {
  current_ = next_tuned(current_ + 1);
  return current_ == problems_.size() ? choose(now) : begin_lockstep();
}

}  // namespace kiln::runtime::ranks
