#include "runtime/serve/background.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <variant>

#include <sys/resource.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "runtime/serve/commit.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/tune/candidate_list.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;

namespace {

constexpr int kPriority = 10;       ///< of the thread, as nice(1) has it
constexpr std::size_t kAhead = 32;  ///< configs that are compiled ahead, per problem
constexpr int kAttempts = 3;

/// The owner of a launchable that is in use while something better is looked for.
struct Provisional {
  Launchable untuned;
  Captures& captures;
  const Device& device;
  std::weak_ptr<detail::RegionHandle> handle;
};

void start_provisional(const Launchable& ready, const Launch& launch,
                       std::span<const std::int64_t> problem, Stream stream, void** args) {
  const auto& self = *static_cast<const Provisional*>(ready.owner.get());
  if (!self.device.capturing(stream))
    return self.untuned.start(self.untuned, launch, problem, stream, args);
  if (!self.captures.records(stream))
    throw self.captures.counted(
        "a launch on this stream would make a capture fail, because another stream that waits for "
        "it is being captured, or its own capture has failed: launch on a stream of its own");
  self.captures.launch_stand_in(self.handle, self.untuned, self.untuned.problem, launch, problem,
                                stream, args);
}

/// Of this thread alone, where the system has such.
void lower_priority() noexcept {
  setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kPriority);
}

}  // namespace

Background::Background(detail::Engine& engine)
    : engine_(engine),
      times_(std::make_shared<MeasuringTimes>(engine.options().background.duty)),
      jobs_(std::make_shared<Jobs>()) {
  engine_.workshop().turn().when_wanted([times = times_] { times->interrupt(); });
}

Background::~Background() {
  times_->end();
  if (!thread_.joinable()) return;
  // The thread may have held the last handle, and with it the engine.
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

Launchable Background::provisional(Launchable untuned,
                                   const std::shared_ptr<ServedHandle>& handle) {
  Launchable wrapped = untuned;
  wrapped.provisional = true;
  wrapped.start = start_provisional;
  const Values problem = untuned.problem;
  wrapped.owner = std::make_shared<const Provisional>(
      Provisional{std::move(untuned), engine_.captures(), *engine_.device(), handle});
  {
    const std::lock_guard lock(jobs_->mutex);
    if (!jobs_->unsettled.emplace(handle.get(), problem).second) return wrapped;
    jobs_->waiting.push_back({handle, handle.get(), problem, {}});
    jobs_->count = jobs_->waiting.size();
    if (!thread_.joinable())
      thread_ = std::thread([this, jobs = jobs_, times = times_] { work(jobs, times); });
  }
  times_->notify();
  return wrapped;
}

void Background::settle(const void* handle, const Values& problem) {
  const std::lock_guard lock(jobs_->mutex);
  jobs_->unsettled.erase({handle, problem});
  std::erase_if(jobs_->found, [&](const Proposal& proposal) {
    return proposal.place == handle && proposal.launchable.problem == problem;
  });
  std::erase_if(jobs_->waiting,
                [&](const Job& job) { return job.problem == problem && job.place == handle; });
  jobs_->count = jobs_->waiting.size();
}

void Background::forget(const void* handle) {
  const std::lock_guard lock(jobs_->mutex);
  std::erase_if(jobs_->unsettled, [&](const auto& place) { return place.first == handle; });
  std::erase_if(jobs_->found, [&](const Proposal& proposal) { return proposal.place == handle; });
}

bool Background::settled() const {
  const std::lock_guard lock(jobs_->mutex);
  return jobs_->unsettled.empty();
}

/// Nothing of this object is used once the handle of a job has been let go: it may have been the last
/// that kept the engine.
void Background::work(const std::shared_ptr<Jobs>& jobs,
                      const std::shared_ptr<MeasuringTimes>& times) {
  lower_priority();
  for (;;) {
    times->wait([&] { return jobs->count > 0; });
    if (times->ended()) return;
    Job job;
    {
      const std::lock_guard lock(jobs->mutex);
      if (jobs->waiting.empty()) continue;  // settled meanwhile
      job = std::move(jobs->waiting.front());
      jobs->waiting.pop_front();
      jobs->count = jobs->waiting.size();
    }
    enum class Then { nothing, compile_more, measure_later, wait } then = Then::nothing;
    if (const auto handle = job.handle.lock()) {
      const TuningTurn& turn = engine_.workshop().turn();
      const auto stretch = turn.waiting() > 0 || turn.is_anothers() ? nullptr : times->begin();
      if (stretch)
        then = measure(job, handle, stretch->stop()) ? Then::measure_later : Then::nothing;
      else
        then = compile_ahead(job, *handle) ? Then::compile_more : Then::wait;
    }
    {
      const std::lock_guard lock(jobs->mutex);
      if (!jobs->unsettled.contains({job.place, job.problem})) continue;
      // A job that has nothing to compile lets others compile, and waits to be measured.
      if (then == Then::wait &&
          !std::all_of(jobs->waiting.begin(), jobs->waiting.end(),
                       [](const Job& other) { return other.listed && other.to_compile.empty(); }))
        then = Then::measure_later;
      if (then == Then::measure_later)
        jobs->waiting.push_back(std::move(job));
      else if (then != Then::nothing)
        jobs->waiting.push_front(std::move(job));
      jobs->count = jobs->waiting.size();
    }
    if (then == Then::wait) times->doze();
  }
}

bool Background::compile_ahead(Job& job, const ServedHandle& handle) try {
  const KernelDefinition& kernel = handle.definition();
  const DeviceInfo& device = engine_.device()->info();
  if (!job.listed) {
    job.listed = true;
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
  engine_.log(LogLevel::debug, format("{}: nothing more is compiled ahead: {}",
                                      handle.definition().name, error.what()));
  return false;
}

bool Background::measure(Job& job, const std::shared_ptr<ServedHandle>& handle,
                         std::stop_token stop) try {
  TuneOptions tuning = engine_.options().tuning;
  tuning.ranks = nullptr;  // the ranks meet in commit()
  tuning.together = {};
  tuning.progress = {};
  tuning.stop = stop;
  if (job.begun) tuning.retune = false;  // this search goes on
  if (tuning.max_evaluations == 0)
    tuning.max_evaluations = engine_.options().background.max_evaluations;
  TuneOutcome tuned = engine_.tune(handle->definition(), job.problem, tuning);
  if (tuned.result.winner().status == CandidateStatus::measured) job.begun = true;
  if (tuned.result.end == SearchEnd::stopped && stop.stop_requested()) return true;
  const Candidate& winner = tuned.result.winner();
  if (winner.status != CandidateStatus::measured)
    throw EnvironmentError(winner.reason.empty() ? "nothing could be measured" : winner.reason);
  Problems::Loaded made = handle->load_config(job.problem, winner.config, std::move(tuned.module));
  if (const auto* missing = std::get_if<Missing>(&made)) throw MissingError(*missing);
  auto& launchable = std::get<Launchable>(made);
  if (!unsettled(handle.get(), job.problem)) return false;  // decided by the program or the ranks
  if (engine_.options().background.publish == Publish::at_once && !engine_.options().tuning.ranks) {
    publish(handle, std::move(launchable));
    ++generation_;
  } else {
    const std::lock_guard lock(jobs_->mutex);
    jobs_->found.push_back({handle, handle.get(), std::move(launchable)});
  }
  return false;
} catch (const DeviceLost& error) {
  engine_.log(LogLevel::error,
              format("the background ends, because a candidate has taken the device "
                     "with it: {}",
                     error.what()));
  times_->end();
  const std::lock_guard lock(jobs_->mutex);
  jobs_->unsettled.clear();  // nothing better will be found
  return false;
} catch (const EnvironmentError& error) {
  if (++job.attempts < kAttempts) return true;
  give_up(job, handle, error.what());
  return false;
} catch (const std::exception& error) {
  give_up(job, handle, error.what());
  return false;
}

void Background::give_up(const Job& job, const std::shared_ptr<ServedHandle>& handle,
                         const std::string& why) {
  engine_.log(
      LogLevel::warning,
      format("{} {}: it stays untuned, because tuning it behind the launches has failed: {}",
             handle->definition().name, handle->definition().describe_problem(job.problem), why));
  stay_untuned(handle, job.problem);
}

void Background::stay_untuned(const std::shared_ptr<ServedHandle>& handle, const Values& problem) {
  const Launchable* const ready = handle->find(problem);
  if (ready && ready->provisional)
    publish(handle, static_cast<const Provisional*>(ready->owner.get())->untuned);
}

bool Background::unsettled(const void* handle, const Values& problem) const {
  const std::lock_guard lock(jobs_->mutex);
  return jobs_->unsettled.contains({handle, problem});
}

void Background::publish(const std::shared_ptr<ServedHandle>& handle, Launchable launchable) {
  const Values problem = launchable.problem;
  handle->publish(std::move(launchable));
  settle(handle.get(), problem);
}

CommitReport Background::commit() {
  const std::lock_guard alone(committing_);
  std::vector<Proposal> found;
  {
    const std::lock_guard lock(jobs_->mutex);
    found.swap(jobs_->found);
  }
  CommitReport report;
  std::vector<Proposal> agreed;
  try {
    agreed = agree_on_commit(engine_, found, generation_, report);
  } catch (...) {
    const std::lock_guard lock(jobs_->mutex);
    std::move(found.begin(), found.end(), std::back_inserter(jobs_->found));
    throw;
  }
  for (Proposal& one : agreed)
    if (const auto handle = one.handle.lock()) publish(handle, std::move(one.launchable));
  for (const Proposal& one : found)
    if (const auto handle = one.handle.lock();
        handle && unsettled(handle.get(), one.launchable.problem))
      stay_untuned(handle, one.launchable.problem);
  if (!report.changes.empty()) ++generation_;
  return report;
}

}  // namespace kiln::runtime
