#include "runtime/background/background_tuning.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include <sys/resource.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/provisional.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/tune/candidate_list.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuner.hpp"
#include "runtime/tune/tuning_session.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;

namespace {

constexpr int kPriority = 10;       ///< of the thread, as nice(1) has it
constexpr std::size_t kAhead = 32;  ///< configs that are compiled ahead, per problem
constexpr double kMostSlices = 1 << 20;
/// Time between two checks whether a problem's launchable is in use.
constexpr std::chrono::milliseconds kUntilInUse{5};
/// Attempts at finals after which the best so far is used, where the program never gives the time
/// for finals.
constexpr int kMostFinals = 8;

/// Lowers that of this thread alone, on systems where threads have priorities of their own.
void lower_priority() noexcept {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kPriority);
}

}  // namespace

InUse in_use(ServedHandle& handle, const Values& problem) {
  const detail::Ready ready = handle.find(problem);
  if (ready && ready->provisional) return InUse::provisional;
  const bool remade = handle.problems().state(problem) == ProblemState::being_remade;
  return ready && !remade ? InUse::final : InUse::awaited;
}

BackgroundTuning::BackgroundTuning(detail::Engine& engine, std::shared_ptr<Device> device)
    : engine_(engine),
      other_device_(std::move(device)),
      times_(other_device_ ? std::make_shared<MeasuringTimes>(MeasuringTimes::AtAllTimes{})
                           : std::make_shared<MeasuringTimes>(engine.options().background.duty)),
      jobs_(std::make_shared<Jobs>()) {
  engine_.workshop().turn().when_wanted([times = times_] { times->interrupt(); });
}

BackgroundTuning::~BackgroundTuning() {
  if (process_.is_forked()) {
    forget_thread(thread_);
    return;
  }
  times_->end();
  if (!thread_.joinable()) return;
  // The thread may have held the last handle, and with it the engine.
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

/// Starts the thread at the first call. The mutex is held.
bool BackgroundTuning::has_thread(std::string& why_not) try {
  if (times_->ended()) return false;  // its device was lost
  if (!thread_.joinable())
    thread_ = std::thread([this, jobs = jobs_, times = times_] { work(jobs, times); });
  return true;
} catch (const std::system_error& error) {
  why_not = error.what();
  return false;
}

Launchable BackgroundTuning::provisional(Launchable launchable,
                                         const std::shared_ptr<ServedHandle>& handle) {
  const bool ranks = engine_.options().tuning.ranks != nullptr;
  const Values problem = launchable.problem;
  Launchable wrapped = runtime::provisional(std::move(launchable), engine_.captures(), handle);
  std::string why_not;
  bool is_tuned = false;
  {
    const std::lock_guard lock(jobs_->mutex);
    is_tuned = has_thread(why_not);  // first: where there is none, nothing waits for one
    // The other ranks may find something for it.
    if ((is_tuned || ranks) &&
        jobs_->unsettled.try_emplace({handle.get(), problem}, Unsettled{handle, !is_tuned})
            .second &&
        is_tuned) {
      Job& job = jobs_->waiting.emplace_back();
      job.handle = handle;
      job.place = handle.get();
      job.kernel = handle->kept_definition();
      job.problem = problem;
      jobs_->count = jobs_->waiting.size();
    }
  }
  if (is_tuned) {
    times_->notify();
    return wrapped;
  }
  if (!why_not.empty() && !told_of_no_thread_.exchange(true))
    say(LogLevel::warning, format("the background has no thread, so what is launched for the "
                                  "first time stays untuned: {}",
                                  why_not));
  return ranks ? wrapped : launchable_of(wrapped);
}

/// Moves proposals out of what was found. The mutex is held.
template <class Which>
void BackgroundTuning::take_found(std::vector<Proposal>& taken, const Which& which) {
  std::vector<Proposal> kept;
  for (Proposal& proposal : jobs_->found)
    (which(proposal) ? taken : kept).push_back(std::move(proposal));
  jobs_->found.swap(kept);
}

void BackgroundTuning::drop(const void* handle, const Values& problem) {
  std::vector<Proposal> dropped;  // outlives the lock: unloading may wait for running kernels
  const std::lock_guard lock(jobs_->mutex);
  jobs_->unsettled.erase({handle, problem});
  take_found(dropped, [&](const Proposal& proposal) {
    return proposal.place == handle && proposal.launchable.problem == problem;
  });
  std::erase_if(jobs_->waiting,
                [&](const Job& job) { return job.problem == problem && job.place == handle; });
  jobs_->count = jobs_->waiting.size();
}

void BackgroundTuning::forget(const void* handle) {
  jobs_->pending.forget(handle);
  std::vector<Proposal> dropped;  // as above
  const std::lock_guard lock(jobs_->mutex);
  std::erase_if(jobs_->unsettled, [&](const auto& one) { return one.first.first == handle; });
  take_found(dropped, [&](const Proposal& proposal) { return proposal.place == handle; });
  std::erase_if(jobs_->waiting, [&](const Job& job) { return job.place == handle; });
  jobs_->count = jobs_->waiting.size();
  if (jobs_->at_hand == handle) times_->interrupt();
}

void BackgroundTuning::withdraw(const void* handle, std::vector<Values>& problems) {
  const std::lock_guard lock(jobs_->mutex);
  std::set<Values> waiting;
  for (const Job& job : jobs_->waiting)
    if (job.place == handle && !job.begun) waiting.insert(job.problem);
  // With ranks a problem is settled on all of them or on none.
  std::erase_if(problems, [&](const Values& problem) {
    return jobs_->unsettled.contains({handle, problem}) &&
           (engine_.options().tuning.ranks || !waiting.contains(problem));
  });
  const std::set<Values> leaving(problems.begin(), problems.end());
  std::erase_if(jobs_->waiting, [&](const Job& job) {
    return job.place == handle && leaving.contains(job.problem);
  });
  for (const Values& problem : problems) jobs_->unsettled.erase({handle, problem});
  jobs_->count = jobs_->waiting.size();
}

TuneOptions BackgroundTuning::search_options() const {
  TuneOptions tuning = engine_.options().tuning;
  tuning.ranks = nullptr;  // the ranks meet in commit()
  tuning.together = {};
  if (tuning.max_evaluations.value_or(0) == 0)
    tuning.max_evaluations = engine_.options().background.max_evaluations;
  return tuning;
}

bool BackgroundTuning::goes_on(const Recall& known) const {
  TuneOptions tuning = search_options();
  tuning.retune = false;
  return !answers(known, tuning, false);
}

bool BackgroundTuning::settled() {
  if (engine_.options().tuning.ranks) return all_settled_;
  if (times_->ended()) settle_given_up();
  const std::lock_guard lock(jobs_->mutex);
  return jobs_->unsettled.empty();
}

bool BackgroundTuning::holds_back(const KernelDefinition& kernel,
                                  std::span<const std::int64_t> problem) const {
  const RuntimeOptions& options = engine_.options();
  if (options.background.publish != Publish::at_commit || options.tuning.ranks) return false;
  const Values values(problem.begin(), problem.end());
  std::optional<Key> key;
  for (const auto& other : engine_.serving().handles()) {
    if (other->fixed() || other->definition().name != kernel.name ||
        !unsettled(other.get(), values))
      continue;
    if (!key) key = engine_.records().key(kernel, values);
    if (engine_.records().key(other->definition(), values) == *key) return true;
  }
  return false;
}

/// Nothing of this object is used once the handle of a job has been let go: it may have been the
/// last that kept the engine.
void BackgroundTuning::work(const std::shared_ptr<Jobs>& jobs,
                            const std::shared_ptr<MeasuringTimes>& times) {
  lower_priority();
  JobData data;
  Definitions definitions;  // of what is pending
  for (;;) {
    times->wait([&] { return jobs->count > 0 || jobs->pending.any_waiting(); });
    if (times->ended()) return;
    const unsigned long seen = times->changes();
    const bool loaded = load_pending(*jobs, *times, definitions);
    if (!loaded || !jobs->pending.any_waiting()) definitions = {};
    if (loaded) continue;
    auto next_try = Clock::time_point::max();  // of a job that is to be tried again
    Job job;
    {
      const std::lock_guard lock(jobs->mutex);
      const auto now = times->now();
      const auto next =
          std::find_if(jobs->waiting.begin(), jobs->waiting.end(),
                       [now](const Job& waiting) { return waiting.not_before <= now; });
      for (const Job& waiting : jobs->waiting)
        if (waiting.not_before > now) next_try = std::min(next_try, waiting.not_before);
      if (next != jobs->waiting.end()) {
        job = std::move(*next);
        jobs->waiting.erase(next);
        jobs->at_hand = job.place;
      }
      jobs->count = jobs->waiting.size();
    }
    if (!job.kernel) {  // settled meanwhile, or all are to be tried again later
      times->doze(seen, next_try);
      continue;
    }
    std::shared_ptr<ServedHandle> handle = job.handle.lock();
    const InUse what = handle ? in_use(*handle, job.problem) : InUse::provisional;
    Then then = Then::measure_later;
    if (what == InUse::awaited) {
      job.not_before = times->now() + kUntilInUse;
    } else if (what == InUse::final) {
      drop(handle.get(), job.problem);
      then = Then::over;
    } else {
      handle.reset();
      if (times->ended()) return;
      then = attend(job, data, handle);
    }
    if (then == Then::over && data.of(job)) data = {};
    {
      const std::lock_guard lock(jobs->mutex);
      jobs->at_hand = nullptr;
      if (!jobs->unsettled.contains({job.place, job.problem})) continue;
      // A job that has nothing to compile lets others compile, and waits to be measured.
      if (then == Then::wait && !std::all_of(jobs->waiting.begin(), jobs->waiting.end(),
                                             [now = times->now()](const Job& other) {
                                               return other.not_before > now ||
                                                      (other.filled && other.to_compile.empty());
                                             }))
        then = Then::measure_later;
      if (then == Then::measure_later)
        jobs->waiting.push_back(std::move(job));
      else if (then != Then::over)
        jobs->waiting.push_front(std::move(job));
      jobs->count = jobs->waiting.size();
    }
    if (then == Then::wait) times->doze(seen, next_try);
  }
}

BackgroundTuning::Then BackgroundTuning::attend(Job& job, JobData& data,
                                                std::shared_ptr<ServedHandle>& handle) try {
  if (job.handle.expired()) return Then::over;
  const TuningTurn& turn = engine_.workshop().turn();
  if (turn.waiting() == 0 && !turn.is_anothers() && times_->may_measure())
    return measure(job, data, handle);
  return compile_ahead(job) ? Then::compile_more : Then::wait;
} catch (const DeviceLost& error) {
  device_lost(error.what());
  return Then::over;
} catch (const EnvironmentError& error) {
  return failed(job, handle, true, error.what());
} catch (const std::system_error& error) {  // no thread that would end a slice
  return failed(job, handle, true, error.what());
} catch (const std::exception& error) {
  return failed(job, handle, false, error.what());
} catch (...) {
  return failed(job, handle, false, kForeignException);
}

bool BackgroundTuning::compile_ahead(Job& job) try {
  const KernelDefinition& kernel = *job.kernel;
  const DeviceInfo& device = engine_.device()->info();
  if (!job.filled) {
    job.filled = true;
    const TuneOptions& tuning = engine_.options().tuning;
    for (Values& config : candidate_list(kernel, job.problem, device, kAhead, tuning.seed).configs)
      job.to_compile.push_back(std::move(config));
  }
  if (job.to_compile.empty()) return false;
  const Values config = std::move(job.to_compile.front());
  job.to_compile.pop_front();
  engine_.builder().build(kernel, config, device.target);
  return true;
} catch (const std::exception& error) {
  job.to_compile.clear();
  count_error();
  say(LogLevel::debug,
      format("{}: nothing more is compiled ahead: {}", job.kernel->name, error.what()));
  return false;
}

/// What needs no device is done first, outside of the stretch: closing a window does not wait for
/// it.
BackgroundTuning::Then BackgroundTuning::measure(Job& job, JobData& data,
                                                 std::shared_ptr<ServedHandle>& handle) {
  const bool in_worker = engine_.workshop().isolation() == Isolation::always;
  if (!data.of(job)) {
    data = {};
    data.draws = in_worker
                     ? std::vector<KernelData>()
                     : make_expected_draws(*job.kernel, job.problem, engine_.options().tuning.seed);
    data.kernel = job.kernel;
    data.problem = job.problem;
  }
  const auto stretch = times_->begin(job.slices);
  // This is checked only now, because forget() stops a stretch that has begun.
  if (job.handle.expired()) return Then::over;
  return stretch ? search(job, data, *stretch, handle) : Then::measure_more;
}

BackgroundTuning::Then BackgroundTuning::search(Job& job, const JobData& data,
                                                MeasuringTimes::Stretch& stretch,
                                                std::shared_ptr<ServedHandle>& handle) {
  const BackgroundOptions& options = engine_.options().background;
  TuneOptions tuning = search_options();
  tuning.progress = {};
  tuning.stop = stretch.stop();
  if (other_device_ && other_device_->lost()) throw DeviceLost(other_device_->info().id);
  if (job.begun) tuning.retune = false;  // this search goes on
  const auto maker = engine_.maker(*job.kernel, job.problem, tuning, other_device_);
  maker->use_data(data.draws);
  maker->when_device_is_left([&stretch] { stretch.left_device(); });
  TuneOutcome tuned = tune_alone(engine_.workshop(), *maker, tuning, false);
  const bool cut = tuned.result.end == SearchEnd::stopped && tuning.stop.stop_requested();
  if (tuned.ending == Ending::undecided && !cut)
    return Then::measure_later;  // another process is at it
  const Candidate& winner = tuned.result.winner();
  const bool anew = is_measured_anew(tuned.result);
  job.begun = job.begun || anew;
  job.in_finals = job.in_finals || tuned.finals_begun;
  if (cut) {
    job.cut_finals += job.in_finals ? 1 : 0;
    const bool decides =
        winner.status == CandidateStatus::measured && job.cut_finals >= kMostFinals;
    if (tuned.result.evaluated > 0 && !decides) return Then::measure_more;
    if (stretch.by_duty()) job.slices = std::min(2 * job.slices, kMostSlices);
    if (!decides) return Then::measure_later;
  }
  if (winner.status != CandidateStatus::measured)
    throw EnvironmentError(winner.reason.empty() ? "nothing could be measured" : winner.reason);
  handle = job.handle.lock();
  if (!handle) return Then::over;
  if (engine_.options().tuning.retune && anew) handle->problems().note_measured_anew(job.problem);
  if (other_device_) tuned.module.reset();  // it is loaded there
  Problems::Loaded made = handle->load_config(job.problem, winner.config, std::move(tuned.module));
  if (const auto* missing = std::get_if<Missing>(&made)) throw MissingError(*missing);
  auto& launchable = std::get<Launchable>(made);
  const detail::Ready seen = handle->find(job.problem);
  if (!seen || !seen->provisional) {  // decided meanwhile
    drop(handle.get(), job.problem);
    return Then::over;
  }
  if (!unsettled(handle.get(), job.problem)) return Then::over;
  if (options.publish == Publish::at_once && !engine_.options().tuning.ranks) {
    const std::lock_guard alone(committing_);  // a commit reports the generation that it has made
    if (publish(handle, std::move(launchable), seen)) ++generation_;
  } else {
    const std::lock_guard lock(jobs_->mutex);
    if (jobs_->unsettled.contains({handle.get(), job.problem}))
      jobs_->found.push_back({handle, handle.get(), std::move(launchable)});
  }
  return Then::over;
}

/// A log is the program's, and its exceptions must not end the thread.
void BackgroundTuning::say(LogLevel level, const std::string& text) noexcept {
  try {
    engine_.log(level, text);
  } catch (...) {
    count_error();
  }
}

void BackgroundTuning::count_error() noexcept {
  ++engine_.workshop().telemetry().counters.background_errors;
}

bool BackgroundTuning::unsettled(const void* handle, const Values& problem) const {
  const std::lock_guard lock(jobs_->mutex);
  return jobs_->unsettled.contains({handle, problem});
}

/// False: something else was chosen since `seen` was in use, and stays.
bool BackgroundTuning::publish(const std::shared_ptr<ServedHandle>& handle, Launchable launchable,
                               const detail::Ready& seen) {
  const Values problem = launchable.problem;
  const bool published = handle->problems().choose_over(seen, std::move(launchable));
  drop(handle.get(), problem);
  return published;
}

}  // namespace kiln::runtime
