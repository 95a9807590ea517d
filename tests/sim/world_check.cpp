// What must hold at the end of every scenario.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kiln/detail/format.hpp"
#include "world.hpp"

namespace sim {

using kiln::detail::format;
using ranks::Conclusion;

bool World::decided(int r) const {
  const auto& d = states_[static_cast<std::size_t>(r)].machine->conclusion();
  return d && d->kind == Conclusion::Kind::plan;
}

void World::check() {
  const ranks::AgreementInput& in = scenario_.ranks[0].input;
  int alive = 0, first_plan = -1, first_default = -1;
  bool settled_divergence = false;
  std::vector<std::uint32_t> counts;
  for (int r = 0; r < size_; ++r) {
    State& s = state(r);
    outcome_.ended.push_back(s.ended && !s.dead ? s.ended_at
                                                : std::numeric_limits<double>::infinity());
    if (s.dead) {
      ++outcome_.crashed;
      continue;
    }
    ++alive;
    if (!s.ended) {
      violation(format("rank {} never ends: {}", r, s.machine->phase()));
      continue;
    }
    const auto& d = s.machine->conclusion();
    const bool plan = s.skipped || s.deaf || (d && d->kind == Conclusion::Kind::plan);
    if (plan) {
      ++outcome_.plans;
      if (first_plan < 0) first_plan = r;
      const auto& first = state(first_plan).machine->conclusion();
      if (d && first && d->kind == first->kind && d->digest != first->digest)
        violation(format("ranks {} and {} hold different plans", first_plan, r));
    } else {
      ++outcome_.defaults;
      if (first_default < 0) first_default = r;
      if (r != scenario_.out_of_reach) settled_divergence = true;
      if (d->why.text.empty()) violation(format("rank {} does not say why", r));
    }
    if (!d) continue;
    counts.push_back(s.machine->exchanges());
    outcome_.exchanges = std::max(outcome_.exchanges, s.machine->exchanges());
    const kiln::RankOptions& o = rank(r).input.options;
    const double steps = s.machine->exchanges() + 3.0;
    const double bound = o.first_seconds + 2 * o.tune_seconds + steps * (3 * o.step_seconds + 1) +
                         s.stalled_for + (o.lockstep ? 40 * rank(r).slowness : 0) +
                         (rank(r).overruns ? rank(r).slowness : 0);
    if (s.ended_at - s.began > bound)
      violation(format("rank {} took {} s, more than {}", r, s.ended_at - s.began, bound));
  }
  const bool plans = outcome_.plans > 0;
  outcome_.divergent = plans && outcome_.defaults > 0;
  if (outcome_.divergent) {
    if (in.settles && settled_divergence)
      violation(format("rank {} holds a plan, rank {} the defaults", first_plan, first_default));
    if (!in.settles) {
      for (int r = 0; r < size_; ++r) {  // only a failure in the last exchange may do this
        const State& s = state(r);
        if (s.dead || !s.ended || !s.machine->conclusion()) continue;
        if (s.machine->conclusion()->kind != Conclusion::Kind::defaults) continue;
        if (!s.machine->conclusion()->broken) violation(format("rank {} was not fenced off", r));
        const auto& a = state(first_plan).machine;
        if (s.machine->exchanges() != a->exchanges())
          violation(format("rank {} failed early, yet rank {} holds a plan", r, first_plan));
      }
    }
  }
  const bool calm = !outcome_.faulted && alive == size_;
  if (calm) {
    if (!std::all_of(counts.begin(), counts.end(), [&](auto c) { return c == counts[0]; }))
      violation("ranks made different numbers of collectives");
    for (int r = 0; r < size_; ++r)
      if (!state(r).used) violation(format("rank {} cannot go on with the communicator", r));
  }
  bool troubled = false, slow = false, stopped = false, cached = false;
  std::vector<int> unprepared;
  int faults = 0, crashed = -1;
  for (int r = 0; r < size_; ++r) {
    troubled |= !rank(r).trouble.empty();
    if (state(r).unprepared) unprepared.push_back(r);
    slow |= rank(r).slowness != 1 || rank(r).start > 2;
    stopped |= std::isfinite(rank(r).stops_at);
    faults += rank(r).fault.kind != Fault::Kind::none;
    if (rank(r).fault.kind == Fault::Kind::crash && state(r).dead) crashed = r;
    for (const auto& p : rank(r).input.problems) cached |= p.record.has_value();
  }
  const bool even =
      in.options.reduction == kiln::RankReduction::max || scenario_.network.equal_sums;
  if (plans && !unprepared.empty())
    violation(format("rank {} holds a plan that rank {} has not built", first_plan, unprepared[0]));
  if (calm && !unprepared.empty() && !troubled && even)
    for (int r = 0; r < size_; ++r)
      if (state(r).machine->conclusion()->why.ranks != unprepared)
        violation(format("rank {} does not say which ranks cannot build", r));
  if (calm && !scenario_.odd_rank && !troubled && unprepared.empty() && even &&
      outcome_.plans != size_)
    violation("nothing went wrong, yet there is no plan");
  if (calm && scenario_.odd_rank) {
    const Conclusion& d = *state(0).machine->conclusion();
    if (outcome_.defaults != size_) violation("an odd rank went unnoticed");
    if (size_ > 2 && d.why.ranks != std::vector<int>{scenario_.odd})
      violation(format("rank {} is odd, but not named: {}", scenario_.odd, d.why.text));
  }
  if (crashed >= 0 && faults == 1 && !slow && scenario_.network.names_late &&
      scenario_.network.keeps_deadlines && scenario_.network.loss == 0 &&
      scenario_.network.spike == 0)
    for (int r = 0; r < size_; ++r) {
      const auto& d = state(r).machine->conclusion();
      if (!d || !d->broken || d->kind != Conclusion::Kind::defaults) continue;
      const auto& named = d->why.ranks;
      if (d->why.text.find("last exchange") == std::string::npos &&
          d->why.text.find("settle") == std::string::npos &&
          std::find(named.begin(), named.end(), crashed) == named.end())
        violation(format("rank {} died, but rank {} does not name it", crashed, r));
    }
  if (plans && !slow && !stopped && !cached &&
      in.options.strategy == kiln::RankStrategy::replicate && even && !in.options.lockstep &&
      faults == 0 && decided(first_plan))
    for (std::size_t p = 0; p < in.problems.size(); ++p) {
      ranks::Times all(in.problems[p].candidates, 0);
      for (std::size_t c = 0; c < all.size(); ++c)
        for (int r = 0; r < size_; ++r) {
          const float t = rank(r).times[p][c];
          all[c] =
              in.options.reduction == kiln::RankReduction::max ? std::max(all[c], t) : all[c] + t;
        }
      if (in.options.reduction == kiln::RankReduction::mean)
        for (float& t : all) t /= static_cast<float>(size_);
      const auto& chosen = state(first_plan).machine->conclusion()->plan.picks[p];
      if (chosen != ranks::select(all, in.options.margin))
        violation(format("problem {}: the choice is not the best of the numbers", p));
    }
}

}  // namespace sim
