#include "runtime/region/schedule.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/ranks/plan.hpp"

namespace kiln::runtime {

using ranks::kFailed;

namespace {

/// Runs in a row without a site before it is given up.
constexpr int kMostMissed = 10;
/// A candidate that is this many times slower than the best in its first timed run gets no second
/// one. During the sweep it may be slow because of what other sites are trying.
constexpr float kHopelessRun = 3;
/// How far behind the best a candidate may be and still take part in the finals. The default
/// always does.
constexpr float kFinalRunBand = 1.3F;

float middle(std::vector<float> values) {
  if (values.empty()) return kFailed;
  const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), half, values.end());
  if (values.size() % 2 == 1) return *half;
  return (*half + *std::max_element(values.begin(), half)) / 2;
}

}  // namespace

RegionSchedule::RegionSchedule(std::vector<Usable> sites, Options options,
                               std::vector<std::optional<std::size_t>> incumbents)
    : options_(options) {
  incumbents.resize(sites.size());
  for (const Usable& usable : sites) {
    Site& site = sites_.emplace_back();
    for (const bool may : usable)
      site.candidates.emplace_back().fate = may ? Fate::open : Fate::refused;
    site.incumbent = incumbents[sites_.size() - 1];
    while (sweeping(site) && site.candidates[site.turn].fate != Fate::open) ++site.turn;
  }
  go_on();
}

std::vector<RegionSchedule::Place> RegionSchedule::next() const {
  std::vector<Place> run;
  if (phase_ == Phase::done) return run;
  for (const Site& site : sites_) {
    if (phase_ == Phase::sweep && sweeping(site))
      run.push_back({site.turn, true});
    else if (phase_ == Phase::rivals && incumbents_turn() && has_rival(site))
      run.push_back({site.incumbent, false});
    else
      run.push_back({site.best, false});
  }
  if (phase_ == Phase::finals) run[final_] = {sites_[final_].finalists[place_], true};
  if (phase_ == Phase::suspects) run[suspects_.back().site] = {suspects_.back().candidate, true};
  return run;
}

void RegionSchedule::ran(std::span<const float> shared, std::span<const float> own, bool wrong,
                         float whole) {
  switch (phase_) {
    case Phase::sweep:
      after_sweep(shared, own, wrong);
      break;
    case Phase::finals:
      after_final(shared, own, wrong);
      break;
    case Phase::suspects:
      after_suspect(shared, wrong);
      break;
    case Phase::rivals:
      after_rival(shared, wrong, whole);
      break;
    case Phase::closing:
      if (wrong) hopeless_ = "the chosen configs give wrong results together";
      ++closing_;
      break;
    case Phase::done:
      break;
  }
  go_on();
}

void RegionSchedule::after_sweep(std::span<const float> shared, std::span<const float> own,
                                 bool wrong) {
  std::vector<Suspect> suspects;
  for (std::size_t s = 0; s < sites_.size(); ++s) {
    Site& site = sites_[s];
    if (!sweeping(site)) continue;
    Candidate& candidate = site.candidates[site.turn];
    if (std::isinf(shared[s])) {  // another was launched in its place
      candidate.fate = Fate::failed;
      advance(site);
      choose_best(s);
    } else if (shared[s] == 0) {
      if (++site.missed < kMostMissed) continue;
      for (; sweeping(site); ++site.turn)
        if (site.candidates[site.turn].fate == Fate::open)
          site.candidates[site.turn].fate = Fate::not_launched;
      choose_best(s);
    } else if (wrong) {
      if (!candidate.right && site.turn != 0) suspects.push_back({s, site.turn});
    } else {
      site.missed = 0;
      candidate.right = true;
      record(site, shared[s], own[s]);
      if (!sweeping(site) || &site.candidates[site.turn] != &candidate) choose_best(s);
    }
  }
  if (!wrong) return;
  if (suspects.empty()) {
    hopeless_ =
        "the results are wrong with configs that gave right results before, or with the defaults";
  } else if (suspects.size() == 1) {
    Site& site = sites_[suspects.front().site];
    site.candidates[suspects.front().candidate].fate = Fate::wrong;
    advance(site);
    choose_best(suspects.front().site);
  } else {
    accused_ = suspects;
    suspects_.assign(suspects.rbegin(), suspects.rend());
    someone_guilty_ = false;
    phase_ = Phase::suspects;
  }
}

void RegionSchedule::record(Site& site, float shared, float own) {
  Candidate& candidate = site.candidates[site.turn];
  if (site.runs++ < options_.warmup) return;
  candidate.fate = Fate::measured;
  candidate.sweep.shared.push_back(shared);
  candidate.sweep.own.push_back(own);
  const float best = site.best ? middle(site.candidates[*site.best].sweep.shared) : kFailed;
  if (site.runs == options_.warmup + options_.repeats || shared > kHopelessRun * best)
    advance(site);
}

void RegionSchedule::after_suspect(std::span<const float> shared, bool wrong) {
  const auto [s, c] = suspects_.back();
  suspects_.pop_back();
  Site& site = sites_[s];
  Candidate& candidate = site.candidates[c];
  if (std::isinf(shared[s])) {
    candidate.fate = Fate::failed;
    someone_guilty_ = true;
  } else if (wrong) {
    candidate.fate = Fate::wrong;
    someone_guilty_ = true;
  } else {
    candidate.right = shared[s] > 0;
  }
  if (suspects_.empty() && !someone_guilty_)
    for (const Suspect& suspect : accused_)
      sites_[suspect.site].candidates[suspect.candidate].fate = Fate::wrong_together;
  if (!suspects_.empty()) return;
  for (const Suspect& suspect : accused_) {
    Site& accused = sites_[suspect.site];
    const Fate fate = accused.candidates[suspect.candidate].fate;
    if (fate == Fate::open || fate == Fate::measured) continue;
    advance(accused);
    choose_best(suspect.site);
  }
  phase_ = Phase::sweep;
}

void RegionSchedule::after_final(std::span<const float> shared, std::span<const float> own,
                                 bool wrong) {
  Site& site = sites_[final_];
  const std::size_t finalist = site.finalists[place_];
  Candidate& candidate = site.candidates[finalist];
  if (std::isinf(shared[final_])) {
    candidate.fate = Fate::failed;
  } else if (wrong) {
    if (finalist == 0) {
      hopeless_ =
          "the results are wrong with the default in place of a config that gave right results";
      return;
    }
    candidate.fate = Fate::wrong;
  } else if (shared[final_] == 0) {
    if (++site.missed >= kMostMissed) site.finalists.clear();
    if (site.finalists.empty()) choose_best(final_);
    return;
  } else {
    site.missed = 0;
    if (round_ >= options_.warmup) {
      candidate.finals.shared.push_back(shared[final_]);
      candidate.finals.own.push_back(own[final_]);
    }
  }
  next_finalist();
}

void RegionSchedule::next_finalist() {
  Site& site = sites_[final_];
  const auto usable = [&](std::size_t c) { return site.candidates[c].fate == Fate::measured; };
  if (std::count_if(site.finalists.begin(), site.finalists.end(), usable) < 2) {
    site.finalists.clear();
    for (Candidate& c : site.candidates)
      c.finals = {};  // no other candidate is left to compare with
  } else {
    do {
      if (++place_ == site.finalists.size()) {
        place_ = 0;
        ++round_;
      }
    } while (!usable(site.finalists[place_]));
    if (round_ == options_.warmup + options_.repeats) site.finalists.clear();
  }
  if (site.finalists.empty()) choose_best(final_);
}

void RegionSchedule::open_finals(std::size_t s) {
  Site& site = sites_[s];
  place_ = 0;
  round_ = 0;
  site.missed = 0;
  if (options_.finalists == 0 || site.candidates.empty()) return;
  const std::vector<float> sweep = times(s);
  const float best = *std::min_element(sweep.begin(), sweep.end());
  if (std::isinf(best)) return;
  for (const std::size_t c : ranks::finalists(sweep, options_.finalists))
    if (c == 0 || sweep[c] <= kFinalRunBand * best) site.finalists.push_back(c);
  if (site.finalists.size() < 2) site.finalists.clear();
}

bool RegionSchedule::has_rival(const Site& site) const {
  return site.incumbent && site.best && site.best != site.incumbent &&
         site.candidates[*site.incumbent].fate == Fate::measured;
}

/// A site's own times leave out what its config costs the others: what the device still does for it
/// when they begin, or how late it makes a rank.
void RegionSchedule::after_rival(std::span<const float> shared, bool wrong, float whole) {
  if (wrong && !incumbents_turn()) hopeless_ = "the chosen configs give wrong results together";
  if (wrong || std::ranges::any_of(shared, [](float t) { return std::isinf(t); })) {
    rival_runs_ = all_rival_runs();  // right results are what counts
    return;
  }
  if (rival_runs_ / 2 >= options_.warmup)
    (incumbents_turn() ? at_incumbents_ : at_best_).push_back(whole);
  if (++rival_runs_ == all_rival_runs() && middle(at_best_) >= middle(at_incumbents_))
    keep_incumbents();
}

void RegionSchedule::keep_incumbents() {
  for (std::size_t s = 0; s < sites_.size(); ++s)
    if (has_rival(sites_[s])) {
      sites_[s].kept = true;
      choose_best(s);
    }
}

void RegionSchedule::advance(Site& site) {
  site.runs = 0;
  site.missed = 0;
  do ++site.turn;
  while (sweeping(site) && site.candidates[site.turn].fate != Fate::open);
}

void RegionSchedule::choose_best(std::size_t s) {
  Site& site = sites_[s];
  const ranks::Pick pick = ranks::select(times(s), options_.margin);
  site.best.reset();
  if (std::isfinite(pick.seconds)) site.best = pick.candidate;
}

/// To the next phase that has something to do.
void RegionSchedule::go_on() {
  if (!hopeless_.empty()) phase_ = Phase::done;
  if (phase_ == Phase::sweep &&
      std::none_of(sites_.begin(), sites_.end(), [&](const Site& s) { return sweeping(s); })) {
    phase_ = Phase::finals;
    final_ = 0;
    if (!sites_.empty()) open_finals(0);
  }
  if (phase_ == Phase::finals) {
    while (final_ < sites_.size() && sites_[final_].finalists.empty())
      if (++final_ < sites_.size()) open_finals(final_);
    if (final_ == sites_.size()) {
      const bool chosen = std::any_of(sites_.begin(), sites_.end(),
                                      [](const Site& s) { return s.candidates.size() > 1; });
      phase_ = !chosen ? Phase::done
               : std::ranges::any_of(sites_, [&](const Site& s) { return has_rival(s); })
                   ? Phase::rivals
                   : Phase::closing;
    }
  }
  if (phase_ == Phase::rivals && rival_runs_ == all_rival_runs()) phase_ = Phase::closing;
  if (phase_ == Phase::closing && closing_ == options_.warmup + options_.repeats)
    phase_ = Phase::done;
}

void RegionSchedule::end() {
  if (phase_ != Phase::closing && phase_ != Phase::done) {
    for (std::size_t s = 0; s < sites_.size(); ++s) choose_best(s);
    keep_incumbents();
  }
  phase_ = Phase::done;
}

RegionSchedule::Fate RegionSchedule::fate(std::size_t site, std::size_t candidate) const {
  return sites_[site].candidates[candidate].fate;
}

std::vector<float> RegionSchedule::times(std::size_t s) const {
  const Site& site = sites_[s];
  std::vector<float> result = own_times(site);
  if (!site.kept) return result;
  const float kept = result[*site.incumbent],
              least = std::nextafter(kept * (1 + options_.margin), kFailed);
  for (std::size_t c = 0; c < result.size(); ++c)
    if (c != site.incumbent) result[c] = std::max(result[c], least);
  return result;
}

std::vector<float> RegionSchedule::own_times(const Site& site) const {
  std::vector<float> result;
  for (const Candidate& c : site.candidates)
    result.push_back(c.fate == Fate::measured ? middle(c.sweep.shared) : kFailed);
  if (result.empty()) return result;
  const float in_band = kFinalRunBand * *std::min_element(result.begin(), result.end());
  std::vector<float> paces;
  float best = kFailed, slowest = 0;
  for (std::size_t c = 0; c < result.size(); ++c) {
    const Candidate& candidate = site.candidates[c];
    if (candidate.fate != Fate::measured || candidate.finals.shared.empty()) continue;
    const float time = middle(candidate.finals.shared);
    paces.push_back(time / result[c]);
    best = std::min(best, time);
    if (result[c] <= in_band) slowest = std::max(slowest, time);  // not there as the default only
    result[c] = time;
  }
  if (paces.empty()) return result;
  // A candidate that was not in the finals cannot be chosen by its times in the sweep.
  const float least = std::max(slowest, std::nextafter(best * (1 + options_.margin), kFailed));
  for (std::size_t c = 0; c < result.size(); ++c)
    if (site.candidates[c].finals.shared.empty())
      result[c] = std::max(result[c] * middle(paces), least);
  return result;
}

std::vector<float> RegionSchedule::samples(std::size_t site, std::size_t candidate) const {
  const Candidate& c = sites_[site].candidates[candidate];
  return c.finals.own.empty() ? c.sweep.own : c.finals.own;
}

std::size_t RegionSchedule::done() const noexcept {
  std::size_t count = 0;
  for (const Site& site : sites_)
    for (std::size_t c = 0; c < site.candidates.size(); ++c) count += c < site.turn;
  return count;
}

std::size_t RegionSchedule::total() const noexcept {
  std::size_t count = 0;
  for (const Site& site : sites_) count += site.candidates.size();
  return count;
}

}  // namespace kiln::runtime
