#include "runtime/tune/measuring_lane.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "kiln/detail/format.hpp"
#include "kiln/detail/function_core.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/race.hpp"
#include "runtime/support/infinity.hpp"
#include "runtime/support/logged_span.hpp"

namespace kiln::runtime {

using kiln::detail::format;
using Phase = TuneProgress::Phase;

namespace {

/// The modules of this many of the best candidates stay loaded.
constexpr std::size_t kKept = 16;
/// A thread pool's start and the clock's own noise need a longer sample than a GPU's events.
constexpr double kHostSampleSeconds = 2e-4;
/// On a CPU that others use as well, a longer time tells more than more samples.
constexpr double kHostFinalSeconds = 3, kHostLeastFinalSeconds = 0.8;
/// Verifications of a choice's winner after it was timed: they find one that is wrong in every
/// third call, whichever call is the next.
constexpr int kLooksAtWinner = 3;
constexpr const char* kNoTimeLeft = "the budget ended before it was timed";

CandidateResources resources_of(const Trial& trial) {
  const auto* binary = std::get_if<std::shared_ptr<const codegen::Binary>>(&trial.code);
  if (!binary) return {};
  const codegen::ResourceUsage& r = (*binary)->resources;
  CandidateResources of{r.registers, r.spill_stores + r.spill_loads,
                        r.static_shared + static_cast<int>(trial.plan.launch.shared_bytes)};
  for (const codegen::BinaryEntry& step : (*binary)->steps)
    of.spill_bytes += step.resources.spill_stores + step.resources.spill_loads;
  return of;
}

/// The same candidate, not timed yet.
Contestant again(const Contestant& c) {
  Contestant fresh;
  fresh.candidate = c.candidate;
  fresh.rig = c.rig;
  fresh.host_seconds = c.host_seconds;
  return fresh;
}

}  // namespace

MeasuringLane::MeasuringLane(TrialMaker& maker, const TuneOptions& options, TuneResult& result,
                             Candidates& candidates, TraceLog& trace, Progress progress)
    : maker_(maker),
      bench_(maker.bench()),
      options_(options),
      result_(result),
      candidates_(candidates),
      trace_(trace),
      progress_(std::move(progress)) {}

std::shared_ptr<Module> MeasuringLane::module_of(std::size_t candidate) const {
  const auto found = loaded_.find(candidate);
  return found == loaded_.end() ? nullptr : maker_.module_of(*found->second.rig);
}

void MeasuringLane::measure_group(std::span<const BuildQueue::Finished> group,
                                  const TimeLimit& deadline) {
  std::vector<Contestant> contestants;
  std::size_t done = 0;
  bool more = false;
  for (const BuildQueue::Finished& finished : group) {
    if (finished.build.compiled) ++result_.compiled;
    progress_(Phase::verify, ++done, group.size());
    const bool late = deadline.passed() && (leader_ || !contestants.empty());
    // A run that is stopped has one more candidate than before, however often that happens.
    if (late || (more && options_.stop.stop_requested())) {
      if (!was_built(candidates_[finished.id])) candidates_[finished.id].reason = kNoTimeLeft;
      continue;
    }
    more = more || !was_built(candidates_[finished.id]);
    if (auto contestant = load(finished.id, finished.build); contestant && verify(*contestant))
      contestants.push_back(std::move(*contestant));
  }
  time(contestants, deadline);
}

std::optional<Contestant> MeasuringLane::load(std::size_t index, const Build& build) {
  LoggedSpan span(trace_, "load", "config", describe(index));
  Candidate& candidate = candidates_[index];
  if (const auto* failure = std::get_if<CompileFailure>(&build.outcome)) {
    candidates_.reject(index, CandidateStatus::compile_failed, failure->log);
    return {};
  }
  if (const auto* missing = std::get_if<Missing>(&build.outcome)) {
    postpone(index, missing->why);
    return {};
  }
  std::variant<std::shared_ptr<Rig>, Refusal> loaded;
  try {
    const Trial trial = maker_.trial(candidate.config, build);
    candidate.resources = resources_of(trial);
    loaded = bench_.load(trial);
  } catch (const BenchLost&) {
    throw;
  } catch (const DeviceLost&) {
    throw;
  } catch (const TrialCut& cut) {
    cut_off(index, cut);
    return {};
  } catch (const TrialFault& fault) {
    loaded = Refusal{fault.status(), fault.what()};
  } catch (const OutOfMemory& error) {
    loaded = Refusal{CandidateStatus::not_tried, error.what()};
  } catch (const Error& error) {
    loaded = Refusal{CandidateStatus::launch_failed, error.what()};
  }
  if (auto* refusal = std::get_if<Refusal>(&loaded)) {
    if (refusal->status == CandidateStatus::not_tried)
      postpone(index, refusal->reason);
    else
      candidates_.reject(index, refusal->status, std::move(refusal->reason));
    return {};
  }
  Contestant contestant;
  contestant.candidate = index;
  contestant.rig = std::get<std::shared_ptr<Rig>>(std::move(loaded));
  result_.verify_seconds += span.end();
  return contestant;
}

/// True when its outputs are right.
bool MeasuringLane::verify(const Contestant& c) {
  maker_.expect();  // its failure is not the candidate's
  LoggedSpan span(trace_, "verify", "config", describe(c.candidate));
  bool right = false;
  try {
    const Verdict verdict = bench_.verify(*c.rig);
    candidates_[c.candidate].max_error = verdict.max_error;
    candidates_[c.candidate].norm_error = verdict.norm_error;
    right = verdict.right;
    if (!right) candidates_.reject(c.candidate, CandidateStatus::wrong_result, verdict.why);
  } catch (const BenchLost&) {
    throw;
  } catch (const TrialFault& fault) {
    candidates_.reject(c.candidate, fault.status(), fault.what());
  } catch (const TrialCut& cut) {
    cut_off(c.candidate, cut);
  } catch (const OutOfMemory& error) {
    postpone(c.candidate, error.what());
  } catch (const Error& error) {
    if (bench_.lost()) lose_device(c.candidate, error.what());
    candidates_.reject(c.candidate, CandidateStatus::launch_failed, error.what());
  }
  result_.verify_seconds += span.end();
  return right;
}

void MeasuringLane::lose_device(std::size_t candidate, const std::string& why) {
  candidates_.reject(candidate, CandidateStatus::crashed, why);
  throw DeviceLost(format("{} with {}: {}", maker_.subject().describe(), describe(candidate), why));
}

/// `work` times contestants.
template <class Work>
auto MeasuringLane::guarded(std::vector<Contestant>& contestants, const Work& work) {
  try {
    return work();
  } catch (const DeviceLost& error) {
    for (const Contestant& c : contestants)
      if (c.failure == error.what()) lose_device(c.candidate, c.failure);
    throw;
  }
}

/// The best so far runs again beside every group. Times from different minutes are not compared
/// directly, but scaled by how the best's own time changed.
void MeasuringLane::time(std::vector<Contestant>& contestants, const TimeLimit& deadline) {
  if (contestants.empty()) return;
  LoggedSpan span(trace_, "time");
  const auto is_leader = [&](const Contestant& c) { return c.candidate == leader_; };
  if (leader_ && std::none_of(contestants.begin(), contestants.end(), is_leader))
    if (const auto loaded = loaded_.find(*leader_); loaded != loaded_.end())
      contestants.push_back(again(loaded->second));
  RaceOptions options = race_options();
  options.deadline = deadline;
  const RaceReport report = guarded(contestants, [&] {
    return race(
        bench_, contestants, options, [](std::size_t candidate) { return candidate == 0; },
        [&](std::size_t done, std::size_t total) { progress_(Phase::time, done, total); });
  });
  warn(report.warnings);
  const bool failed = drop_failed(contestants);
  const std::string damage = bench_.repair();
  if (const bool unchecked = bench_.take_unchecked(); unchecked || !damage.empty()) {
    // Times that were taken on damaged data do not count, if the next ones will not be.
    if (drop_culprits(contestants) || failed) {
      keep_the_best();
      std::erase_if(contestants, [&](const Contestant& c) {
        if (c.cut) cut_off(c.candidate, *c.cut);
        return c.cut.has_value();
      });
      for (Contestant& c : contestants) c = again(c);
      result_.time_seconds += span.end("on data that were damaged");
      return time(contestants, deadline);
    }
    if (!damage.empty()) warn_of(damage);
  }
  double pace = 1;
  if (const auto leader = std::find_if(contestants.begin(), contestants.end(), is_leader);
      leader != contestants.end() && !leader->samples.empty())
    pace = undisturbed(leader->samples) / candidates_.score(*leader_);
  for (Contestant& c : contestants) {
    Candidate& candidate = candidates_[c.candidate];
    if (c.samples.empty()) {
      if (c.cut)
        cut_off(c.candidate, *c.cut);
      else if (!was_built(candidate))
        candidate.reason = kNoTimeLeft;
      continue;
    }
    candidate.status = CandidateStatus::measured;
    candidate.reason.clear();
    candidate.cut_seconds = c.cut ? c.cut->seconds() : 0;
    candidate.samples = c.samples;
    candidate.seconds = median(c.samples);
    candidate.host_seconds = c.host_seconds;
    candidates_.set_score(c.candidate, undisturbed(c.samples) / pace);
    loaded_[c.candidate] = std::move(c);
  }
  keep_the_best();
  result_.time_seconds += span.end(format("{} candidates", contestants.size()));
}

RaceOptions MeasuringLane::race_options() const {
  RaceOptions options;
  options.cold_cache = options_.cold_cache;
  options.overlap_launches = options_.overlap_launches;
  options.graph_replay = options_.launching != Launching::eager;
  if (bench_.shares_cpu()) options.sample_seconds = kHostSampleSeconds;
  return options;
}

bool MeasuringLane::drop_failed(std::vector<Contestant>& contestants) {
  return 0 != std::erase_if(contestants, [&](const Contestant& c) {
           if (c.failure.empty()) return false;
           reject(c);
           return true;
         });
}

void MeasuringLane::reject(const Contestant& c) {
  loaded_.erase(c.candidate);
  if (c.failed_as == CandidateStatus::not_tried) return postpone(c.candidate, c.failure);
  candidates_.reject(c.candidate, c.failed_as, c.failure);
}

/// Time that is missing now takes nothing from a candidate whose own time is known.
void MeasuringLane::cut_off(std::size_t candidate, const TrialCut& cut) {
  Candidate& c = candidates_[candidate];
  c.cut_seconds = std::max(c.cut_seconds, cut.seconds());
  if (c.status != CandidateStatus::measured)
    candidates_.reject(candidate, CandidateStatus::not_tried, cut.what());
}

/// Nor does memory that is missing now.
void MeasuringLane::postpone(std::size_t candidate, const std::string& why) {
  if (candidates_[candidate].status == CandidateStatus::measured) return;
  postponed_.push_back(candidate);
  candidates_.reject(candidate, CandidateStatus::not_tried, why);
}

/// Finds candidates that write an input, or beyond an array, but only in later launches than the
/// one that verification makes. They are found if they do so again, or fail. False: there were
/// none.
bool MeasuringLane::drop_culprits(std::vector<Contestant>& contestants) {
  const RaceOptions options = race_options();
  return 0 != std::erase_if(contestants, [&](const Contestant& c) {
           if (c.cut) return false;  // it would take as long again
           std::vector<Contestant> alone{again(c)};
           guarded(alone, [&] {
             return race(bench_, alone, options, [](std::size_t) { return true; }, {});
           });
           const std::string why = bench_.repair();
           const Contestant& timed = alone.front();
           if (!timed.failure.empty() && timed.failed_as != CandidateStatus::not_tried) {
             reject(timed);
             return true;
           }
           if (why.empty()) return false;
           candidates_.reject(c.candidate, CandidateStatus::wrong_result,
                              "while it was timed, " + why);
           candidates_[c.candidate].samples.clear();
           candidates_[c.candidate].max_error = kInfinity;
           loaded_.erase(c.candidate);
           return true;
         });
}

void MeasuringLane::warn_of(const std::string& damage) {
  warn({format("a candidate {} while it was timed; it is not known which one", damage)});
}

void MeasuringLane::keep_the_best() {
  const std::vector<std::size_t> ranked = candidates_.ranked();
  const auto first = std::find_if(ranked.begin(), ranked.end(), [&](std::size_t i) {
    return !candidates_.comes_last(i);  // one that may hang does not run beside every group
  });
  leader_.reset();
  if (first != ranked.end()) leader_ = *first;
  const auto end = ranked.begin() + static_cast<std::ptrdiff_t>(std::min(ranked.size(), kKept));
  std::erase_if(loaded_, [&](const auto& loaded) {
    return loaded.first != 0 && std::find(ranked.begin(), end, loaded.first) == end;
  });
}

std::optional<std::size_t> MeasuringLane::hold_finals(std::span<const std::size_t> leading,
                                                      std::span<const std::size_t> others,
                                                      const TimeLimit& deadline) {
  std::vector<Contestant> finalists;
  FinalsOptions options;
  options.must_beat = 0;
  options.cold_cache = options_.cold_cache;
  options.overlap_launches = options_.overlap_launches;
  options.graph_replay = options_.launching != Launching::eager;
  if (bench_.shares_cpu()) {
    options.seconds = kHostFinalSeconds;
    options.least_seconds = kHostLeastFinalSeconds;
  } else {
    options.rest = [](double seconds) {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    };
  }
  for (const std::size_t i : leading)
    if (auto contestant = enter(i, deadline)) {
      finalists.push_back(std::move(*contestant));
      ++options.must_beat;
    }
  for (const std::size_t i : others)
    if (auto contestant = enter(i, deadline)) finalists.push_back(std::move(*contestant));
  finals_stopped_ = finals_stopped_ || options_.stop.stop_requested();
  if (finalists.size() < 2 || deadline.passed() || finals_stopped_) return {};
  options.deadline = deadline;
  LoggedSpan span(trace_, "finals");
  finals_begun_ = true;
  finalists_.clear();
  for (const Contestant& c : finalists) finalists_.push_back(c.candidate);
  progress_(Phase::finals, 0, finalists.size());
  const FinalsResult final = guarded(finalists, [&] {
    return finals(bench_, finalists, options, [this] {
      finals_stopped_ = finals_stopped_ || options_.stop.stop_requested();
      return finals_stopped_;
    });
  });
  warn(final.warnings);
  for (const Contestant& c : finalists)
    if (c.cut) cut_off(c.candidate, *c.cut);
  std::vector<Contestant> suspects;
  for (const Contestant& c : finalists)
    if (c.failure.empty())
      suspects.push_back(c);
    else
      reject(c);
  const std::string damage = bench_.repair();
  if (const bool unchecked = bench_.take_unchecked(); unchecked || !damage.empty()) {
    if (drop_culprits(suspects)) {
      keep_the_best();
      const auto was_cut = [&](std::size_t i) {
        return std::any_of(finalists.begin(), finalists.end(),
                           [i](const Contestant& c) { return c.candidate == i && c.cut; });
      };
      const auto usable = [&](std::span<const std::size_t> which) {
        std::vector<std::size_t> left;
        for (const std::size_t i : which)
          if (candidates_[i].status == CandidateStatus::measured && !was_cut(i)) left.push_back(i);
        return left;
      };
      return hold_finals(usable(leading), usable(others), deadline);
    }
    if (!damage.empty()) warn_of(damage);
  }
  if (final.rounds == 0) return {};  // nothing new: what the race said counts
  // A finalist that left early was timed in other rounds than the winner. Its time is scaled by
  // how the two compare in the rounds that both took part in.
  const double winner = median(finalists[final.winner].samples);
  for (std::size_t i = 0; i < finalists.size(); ++i) {
    const Contestant& c = finalists[i];
    if (!c.failure.empty() || c.samples.empty()) continue;
    candidates_[c.candidate].cut_seconds = c.cut ? c.cut->seconds() : 0;
    const double behind = final.behind[i].estimate - final.behind[final.winner].estimate;
    candidates_[c.candidate].samples = c.samples;
    candidates_[c.candidate].seconds = std::isfinite(behind) && std::isfinite(winner)
                                           ? winner * std::exp(behind)
                                           : median(c.samples);
  }
  result_.time_seconds += span.end(format("{} candidates", finalists.size()));
  if (!finalists[final.winner].failure.empty()) return {};
  return finalists[final.winner].candidate;
}

bool MeasuringLane::still_right(std::size_t winner, const TimeLimit& deadline) {
  const detail::Tunable subject = maker_.subject();
  const detail::FunctionDescription* const function = subject.function();
  if (!function || !function->of_a_choice || result_.end == SearchEnd::stopped) return true;
  if (!verify_again(winner, kLooksAtWinner, deadline)) return false;
  for (const std::size_t i : finalists_)
    if (i != winner && candidates_[i].status == CandidateStatus::measured && !deadline.passed())
      verify_again(i, 1, deadline);
  return true;
}

/// False: it is rejected.
bool MeasuringLane::verify_again(std::size_t candidate, int times, const TimeLimit& deadline) {
  const auto contestant = enter(candidate, deadline);
  bool right = contestant.has_value();
  for (int i = 0; i < times && right; ++i) right = verify(*contestant);
  Candidate& c = candidates_[candidate];
  if (c.status == CandidateStatus::measured) return true;  // only time or memory was missing
  if (c.status == CandidateStatus::wrong_result)
    c.reason = "its results were right at first, but wrong after it was timed: " + c.reason;
  c.samples.clear();
  loaded_.erase(candidate);
  keep_the_best();
  return false;
}

/// A candidate that is not loaded any more, or is known from an earlier run, is loaded again.
std::optional<Contestant> MeasuringLane::enter(std::size_t index, const TimeLimit& deadline) {
  if (const auto loaded = loaded_.find(index); loaded != loaded_.end())
    return again(loaded->second);
  if (deadline.passed() || options_.stop.stop_requested()) return {};
  const Build built = maker_.build(candidates_[index].config);
  if (built.compiled) ++result_.compiled;
  auto contestant = load(index, built);
  if (contestant && !verify(*contestant)) contestant.reset();
  return contestant;
}

void MeasuringLane::warn(const std::vector<std::string>& texts) {
  result_.warnings.insert(result_.warnings.end(), texts.begin(), texts.end());
}

std::string MeasuringLane::describe(std::size_t index) const {
  return maker_.subject().space().describe(candidates_[index].config);
}

}  // namespace kiln::runtime
