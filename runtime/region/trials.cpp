#include "runtime/region/trials.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <stop_token>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/build/compile_interrupted.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/ranks/plan.hpp"
#include "runtime/support/guarded_launches.hpp"
#include "runtime/support/parallel.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;
using ranks::kFailed;
using Fate = RegionSchedule::Fate;

namespace {

constexpr const char* kElsewhere = "it failed on another rank";
/// Compiling gets at most this part of the time: binaries are of no use without runs.
constexpr double kBuildShare = 0.5;
/// What a rank says about what comes next; the highest counts. Between the two: 1 + SearchEnd.
constexpr float kGoOn = 0, kBroken = 100;
/// What stands for a candidate that was not built in time.
constexpr float kNotBuilt = 1;

double seconds_between(Deadline start, Deadline end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

void RegionExchange::share(std::vector<float>& values, std::size_t times, Deadline deadline) const {
  if (!communicator_) return;
  Communicator::Failure failure;
  if (times == 0 || options_.reduction == RankReduction::max) {
    failure = communicator_->reduce(values, Reduction::max, deadline);
  } else {
    // A reduction may sum in another order on each rank, and a run must not depend on that.
    const auto ranks = static_cast<std::size_t>(communicator_->size());
    const std::vector<float> mine = values;
    std::vector<float> all(ranks * mine.size());
    failure = communicator_->gather(std::as_bytes(std::span(mine)),
                                    std::as_writable_bytes(std::span(all)), deadline);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      float sum = 0, count = 0, most = all[i];
      for (std::size_t r = 0; r < ranks; ++r) {
        const float value = all[r * mine.size() + i];
        most = std::max(most, value);
        sum += value;
        count += value != 0 ? 1.0F : 0.0F;
      }
      values[i] = i < times && count > 0 ? sum / count : most;
    }
  }
  if (failure) throw EnvironmentError(failure->describe());
}

RegionTrials::RegionTrials(detail::Engine& engine, RegionRunner& runner,
                           const RegionOptions& options, const RegionExchange& exchange,
                           RankLog& log)
    : engine_(engine),
      runner_(runner),
      options_(options),
      exchange_(exchange),
      log_(log),
      sites_(runner.sites().size()),
      wrongs_(runner.sites().size()) {}

std::optional<Refusal> RegionTrials::make_ready(std::size_t s, const Values& config,
                                                bool /*for_lockstep*/) {
  Candidate candidate;
  candidate.config = config;
  try_to_build(runner_.sites()[s], candidate);
  if (!candidate.reason.empty() && engine_.device()->lost()) throw DeviceLost(candidate.reason);
  if (candidate.reason.empty()) return {};
  return Refusal{candidate.status, std::move(candidate.reason)};
}

std::vector<std::vector<Candidate>> RegionTrials::measure(std::span<const Request> requests,
                                                          Deadline deadline) {
  Deadline until = deadline;
  if (options_.max_seconds > 0)
    until = std::min(until, deadline_after(start_, options_.max_seconds));
  for (Prepared& site : sites_) site = {};
  for (const Request& request : requests) {
    Prepared& site = sites_[request.problem];
    site.request = &request;
    for (const Values& config : request.configs) site.candidates.emplace_back().config = config;
    for (const auto& [c, refusal] : request.refused) {
      site.candidates[c].status = refusal.status;
      site.candidates[c].reason = refusal.reason;
    }
  }
  end_ = SearchEnd::finished;
  bool going_on = build(until, deadline);

  std::vector<RegionSchedule::Usable> usable;
  std::vector<std::optional<std::size_t>> incumbents;
  for (const Prepared& site : sites_) {
    incumbents.push_back(site.request ? site.request->incumbent : std::nullopt);
    auto& may = usable.emplace_back();
    for (const Candidate& c : site.candidates) may.push_back(c.reason.empty());
  }
  RegionSchedule schedule(
      std::move(usable),
      {options_.warmup, options_.repeats, options_.finalists, options_.together.margin},
      std::move(incumbents));
  while (going_on && schedule.phase() != RegionSchedule::Phase::done)
    going_on = run_once(schedule, until);
  schedule.end();
  if (!schedule.hopeless().empty()) throw std::runtime_error(schedule.hopeless());
  describe(schedule);
  std::vector<std::vector<Candidate>> results;
  for (const Request& request : requests) results.push_back(sites_[request.problem].candidates);
  for (Prepared& site : sites_) site.loaded.clear();
  return results;
}

Candidate RegionTrials::measure_in_step(std::size_t s, const Values& config,
                                        TimingPolicy /*timing*/, Deadline deadline) {
  const Request request{s, {config}};
  return measure({&request, 1}, deadline).front().front();
}

// --- before the runs ----------------------------------------------------------------------------

/// Builds all candidates. A candidate that fails on one rank is left out by all. False: there is no
/// time left.
bool RegionTrials::build(Deadline until, Deadline last) {
  const Deadline begin = Clock::now();
  build_all(until);
  compile_seconds_ += seconds_between(begin, Clock::now());
  std::vector<float> told;
  for (const Prepared& site : sites_)
    for (const Candidate& c : site.candidates)
      told.push_back(c.reason.empty()                         ? 0
                     : c.status == CandidateStatus::not_tried ? kNotBuilt
                                                              : kFailed);
  told.push_back(end_wanted(until));
  exchange_.share(told, 0, deadline_after(std::max(last, Clock::now()), exchange_.step_seconds()));
  // As in an agreement: nobody launches what a rank that has given up would have to answer.
  std::vector<float> go{kGoOn};
  exchange_.share(go, 0, deadline_after(Clock::now(), exchange_.step_seconds()));
  std::size_t next = 0;
  for (Prepared& site : sites_)
    for (Candidate& c : site.candidates) {
      const float worst = told[next++];
      if (worst == 0 || !c.reason.empty()) continue;
      c.status = worst == kNotBuilt ? CandidateStatus::not_tried : CandidateStatus::compile_failed;
      c.reason = worst == kNotBuilt ? "the time ran out before all ranks had built it" : kElsewhere;
    }
  return heed(told.back());
}

/// The first candidates of all sites first.
void RegionTrials::build_all(Deadline until) {
  std::vector<std::pair<std::size_t, std::size_t>> order;
  std::size_t most = 0;
  for (const Prepared& site : sites_) most = std::max(most, site.candidates.size());
  for (std::size_t c = 0; c < most; ++c)
    for (std::size_t s = 0; s < sites_.size(); ++s)
      if (c < sites_[s].candidates.size() && !sites_[s].request->refused.contains(c)) {
        order.emplace_back(s, c);
        sites_[s].candidates[c].reason = "the time ran out before it was built";
      }
  const Deadline now = Clock::now();
  const Deadline enough = deadline_after(now, seconds_between(now, until) * kBuildShare);
  std::stop_source time_over;
  const auto look = [&](std::size_t) {
    if (Clock::now() >= enough || options_.stop.stop_requested()) time_over.request_stop();
  };
  look(0);
  for_each_index(
      std::max(1U, engine_.builder().builds_at_once()), order.size(), time_over.get_token(),
      [&](std::size_t i) {
        const auto [s, c] = order[i];
        try_to_build(runner_.sites()[s], sites_[s].candidates[c]);
      },
      look);
}

/// Also on other threads.
void RegionTrials::try_to_build(const Site& site, Candidate& candidate) const {
  candidate.status = CandidateStatus::exceeds_limits;
  const DeviceLimits& limits = engine_.device()->info().limits;
  candidate.reason = site.what().launch_obstacle(candidate.config, site.problem, limits);
  if (!candidate.reason.empty()) return;
  candidate.status = CandidateStatus::compile_failed;
  try {
    const auto made = site.handles.front()->load(site.problem, candidate.config);
    if (const auto* missing = std::get_if<Missing>(&made)) {
      candidate.reason = missing->explain();
    } else if (const void* loaded = std::get<Launchable>(made).loaded) {
      const auto& module = *static_cast<const Module*>(loaded);
      const codegen::ResourceUsage& usage = module.resources();
      const auto plan = *site.what().plan(candidate.config, site.problem, limits);
      std::vector<codegen::ResourceUsage> entries{usage};
      for (std::size_t i = 0; i < plan.steps.size(); ++i)
        entries.push_back(module.step(i).resources());
      candidate.resources = {usage.registers, usage.spill_stores + usage.spill_loads,
                             static_cast<int>(usage.static_shared + plan.launch.shared_bytes)};
      candidate.status = CandidateStatus::exceeds_limits;
      candidate.reason = resource_obstacle(entries, plan, limits);
    }
  } catch (const CompileError& error) {
    candidate.reason = error.what();
  } catch (const CompileInterrupted& error) {
    candidate.status = CandidateStatus::not_tried;
    candidate.reason = error.what();
  } catch (const Error& error) {
    candidate.status = CandidateStatus::launch_failed;
    candidate.reason = error.what();
  }
}

const Launchable* RegionTrials::load(std::size_t s, std::size_t c, std::string& why) {
  auto& loaded = sites_[s].loaded;
  if (const auto found = loaded.find(c); found != loaded.end()) return &found->second;
  const Site& site = runner_.sites()[s];
  try {
    auto made = site.handles.front()->load(site.problem, sites_[s].candidates[c].config);
    if (const auto* missing = std::get_if<Missing>(&made))
      why = missing->explain();
    else
      return &loaded.emplace(c, std::get<Launchable>(std::move(made))).first->second;
  } catch (const Error& error) {
    if (engine_.device()->lost()) throw DeviceLost(error.what());
    why = error.what();
  }
  return nullptr;
}

// --- the runs -----------------------------------------------------------------------------------

/// A run that had to be ended counts as one with wrong results: so its candidates are tried again
/// one by one. Whatever happens here, this rank takes part in the exchange. False: no more runs.
bool RegionTrials::run_once(RegionSchedule& schedule, Deadline until) {
  const std::vector<RegionSchedule::Place> places = schedule.next();
  RegionRunner::Outcome outcome;
  std::vector<std::string> unloaded(sites_.size());
  GuardedLaunches launches(options_.together.guard);
  try {
    launches.share_failure([&] {
      forget_others(places, schedule);
      std::vector<RegionRunner::Assignment> assignments(sites_.size());
      for (std::size_t s = 0; s < sites_.size(); ++s)
        if (places[s].candidate)
          assignments[s] = {load(s, *places[s].candidate, unloaded[s]), places[s].tried};
      outcome = runner_.run(assignments, launches);
    });
  } catch (...) {
    outcome.thrown = std::current_exception();
  }
  outcome.site_seconds.resize(sites_.size());
  outcome.failures.resize(sites_.size());
  outcome.hung.resize(sites_.size());
  longest_run_ = std::max(longest_run_, outcome.seconds);
  run_seconds_ += outcome.seconds;

  std::vector<float> told;
  for (std::size_t s = 0; s < sites_.size(); ++s) {
    std::string& failure = outcome.failures[s];
    if (failure.empty()) failure = unloaded[s];
    const double seconds = outcome.site_seconds[s];
    told.push_back(!failure.empty() ? kFailed : static_cast<float>(seconds));
  }
  const std::vector<float> own = told;
  told.push_back(static_cast<float>(outcome.seconds));
  told.push_back(outcome.wrong.empty() ? 0.0F : 1.0F);
  if (!outcome.thrown && options_.progress) try {
      options_.progress({runner_.runs(), schedule.done(), schedule.total()});
    } catch (...) {
      outcome.thrown = std::current_exception();
    }
  told.push_back(outcome.thrown ? kBroken : end_wanted(until));
  const auto patience = deadline_after(Clock::now(), exchange_.step_seconds());
  try {
    exchange_.share(told, sites_.size() + 1, patience);
  } catch (...) {
    if (!outcome.thrown) throw;
  }
  if (outcome.thrown) {
    thrown_ = outcome.thrown;
    std::rethrow_exception(thrown_);
  }
  const float end = told.back();
  const bool wrong = told[told.size() - 2] != 0;
  const std::span<const float> shared(told.data(), sites_.size());
  write_log(places, outcome, shared);
  if (end == kBroken) return false;  // that rank says why

  for (std::size_t s = 0; s < sites_.size(); ++s) {
    if (!places[s].candidate) continue;
    Candidate& candidate = sites_[s].candidates[*places[s].candidate];
    if (std::isinf(shared[s]))
      candidate.reason = outcome.failures[s].empty() ? kElsewhere : outcome.failures[s];
    if (outcome.hung[s]) candidate.status = CandidateStatus::hung;
    if (wrong && places[s].tried)
      wrongs_[s] = outcome.wrong.empty() ? "its results were wrong on another rank" : outcome.wrong;
  }
  std::vector<float> seen(own);
  for (std::size_t s = 0; s < seen.size(); ++s)
    if (seen[s] == 0 || std::isinf(seen[s])) seen[s] = shared[s];
  if (!wrong) keep_seconds(places, schedule, outcome);
  schedule.ran(shared, seen, wrong, told[sites_.size()]);
  for (std::size_t s = 0; s < sites_.size(); ++s) {
    if (!places[s].tried || !wrong) continue;
    Candidate& candidate = sites_[s].candidates[*places[s].candidate];
    const Fate fate = schedule.fate(s, *places[s].candidate);
    if (candidate.reason.empty() && (fate == Fate::wrong || fate == Fate::wrong_together))
      candidate.reason = wrongs_[s];
  }
  return heed(end);
}

/// What all ranks heard. False: no more runs.
bool RegionTrials::heed(float end) {
  if (end != kGoOn) end_ = static_cast<SearchEnd>(static_cast<int>(end) - 1);
  return end == kGoOn;
}

float RegionTrials::end_wanted(Deadline until) const {
  std::optional<SearchEnd> why;
  if (options_.stop.stop_requested())
    why = SearchEnd::stopped;
  else if (options_.max_runs > 0 && runner_.runs() >= options_.max_runs)
    why = SearchEnd::evaluations;
  else if (deadline_after(Clock::now(), longest_run_) >= until)
    why = SearchEnd::seconds;
  return why ? 1 + static_cast<float>(*why) : kGoOn;
}

/// The sweep needs no candidate a second time.
void RegionTrials::forget_others(std::span<const RegionSchedule::Place> places,
                                 const RegionSchedule& schedule) {
  if (schedule.phase() != RegionSchedule::Phase::sweep) return;
  for (std::size_t s = 0; s < sites_.size(); ++s)
    std::erase_if(sites_[s].loaded, [&](const auto& item) {
      return item.first != places[s].candidate && item.first != schedule.best(s);
    });
}

/// Keeps the times of runs with all defaults, and of runs with what was chosen.
void RegionTrials::keep_seconds(std::span<const RegionSchedule::Place> places,
                                const RegionSchedule& schedule,
                                const RegionRunner::Outcome& outcome) {
  const auto warmup = static_cast<std::size_t>(options_.warmup);
  if (schedule.phase() == RegionSchedule::Phase::closing) {
    chosen_seconds_.push_back(outcome.seconds);
    return;
  }
  if (schedule.phase() != RegionSchedule::Phase::sweep) return;
  for (std::size_t s = 0; s < sites_.size(); ++s) {
    const Site& site = runner_.sites()[s];
    const Values untuned = engine_.workshop().default_config(site.what(), site.problem);
    const Values& used =
        places[s].candidate ? sites_[s].candidates[*places[s].candidate].config : site.base.config;
    if (used != untuned) return;
  }
  if (default_runs_++ >= warmup) default_seconds_.push_back(outcome.seconds);
}

// --- after the runs -----------------------------------------------------------------------------

void RegionTrials::describe(const RegionSchedule& schedule) {
  for (std::size_t s = 0; s < sites_.size(); ++s) {
    if (sites_[s].candidates.empty()) continue;
    // All ranks tell the agreement the same: so what was best here is what is chosen.
    const std::vector<float> times = schedule.times(s);
    for (std::size_t c = 0; c < sites_[s].candidates.size(); ++c) {
      Candidate& candidate = sites_[s].candidates[c];
      for (const float sample : schedule.samples(s, c)) candidate.samples.push_back(sample);
      switch (schedule.fate(s, c)) {
        case Fate::measured:
          candidate.status = CandidateStatus::measured;
          candidate.seconds = times[c];
          candidate.reason.clear();
          break;
        case Fate::refused:
          break;  // why is known
        case Fate::failed:
          if (candidate.status != CandidateStatus::hung)
            candidate.status = CandidateStatus::launch_failed;
          break;
        case Fate::wrong:
          candidate.status = CandidateStatus::wrong_result;
          break;
        case Fate::wrong_together:
          candidate.status = CandidateStatus::wrong_result;
          candidate.reason += ": alone it is right, but not together with other candidates";
          break;
        case Fate::not_launched:
          candidate.status = CandidateStatus::not_tried;
          candidate.reason = "runs of the region did not launch this kernel";
          break;
        case Fate::open:
          candidate.status = CandidateStatus::not_tried;
          candidate.reason = "the tuning ended before it was measured";
          break;
      }
    }
  }
}

void RegionTrials::write_log(std::span<const RegionSchedule::Place> places,
                             const RegionRunner::Outcome& outcome, std::span<const float> shared) {
  if (!log_) return;
  log_.line(format("run {}: {:.6g} ms{}", runner_.runs(), outcome.seconds * 1e3,
                   outcome.wrong.empty() ? "" : ", wrong: " + outcome.wrong));
  for (std::size_t s = 0; s < sites_.size(); ++s) {
    if (!places[s].tried) continue;
    const Site& site = runner_.sites()[s];
    log_.line(
        format("run {}: {} with {}: {}", runner_.runs(), site.describe(),
               site.what().space().describe(sites_[s].candidates[*places[s].candidate].config),
               !outcome.failures[s].empty()
                   ? outcome.failures[s]
                   : format("{:.6g} ms here, {:.6g} ms by all ranks", outcome.site_seconds[s] * 1e3,
                            static_cast<double>(shared[s]) * 1e3)));
  }
}

void RegionTrials::annotate(std::size_t s, TuneResult& result) const {
  const auto share = [&](double seconds) { return seconds / static_cast<double>(sites_.size()); };
  result.compile_seconds = share(compile_seconds_);
  result.time_seconds = share(run_seconds_);
  result.end = end_;
  result.complete = end_ == SearchEnd::finished;
  for (const Candidate& c : sites_[s].candidates)
    result.evaluated += c.status != CandidateStatus::not_tried;
}

}  // namespace kiln::runtime
