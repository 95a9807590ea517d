#include "runtime/region/runner.hpp"

#include <algorithm>

#include "kiln/detail/format.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/kernel_loader.hpp"
#include "runtime/serve/overdue.hpp"
#include "runtime/support/trace.hpp"
#include "runtime/tune/tuner.hpp"
#include "runtime/worker/isolation.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;
using detail::RegionLaunch;
using detail::Tunable;

RegionRunner::RegionRunner(detail::Engine& engine, const std::function<void(Region&)>& region,
                           const RegionOptions& options, bool defaults)
    : engine_(engine),
      region_(region),
      options_(options),
      defaults_(defaults),
      limit_(candidate_seconds(options.candidate_seconds)),
      tell_(tell_of_overdue(engine, options.name)),
      watch_([this](double seconds) { tell(seconds, false); }) {}

std::string Site::describe() const {
  return format("{} {}", what().name(), what().describe_problem(problem));
}

Values RegionRunner::default_of(const Tunable& what, std::span<const std::int64_t> problem) const {
  return engine_.workshop().default_config(what, problem);
}

std::string RegionRunner::discover(GuardedLaunches& launches) {
  discovering_ = true;
  double seconds = 0;
  call(launches, seconds);
  discovering_ = false;
  const std::string damage = clear_semaphores(), wrong = verdict();
  return damage.empty() ? wrong : damage;
}

RegionRunner::Outcome RegionRunner::run(std::span<const Assignment> assignments,
                                        GuardedLaunches& launches) {
  Outcome outcome;
  outcome.site_seconds.resize(sites_.size());
  outcome.failures.resize(sites_.size());
  outcome.hung.resize(sites_.size());
  assignments_ = assignments;
  outcome_ = &outcome;
  texts_.assign(sites_.size(), {});
  for (std::size_t s = 0; s < sites_.size(); ++s)
    if (const Launchable* kernel = assignments_[s].kernel)
      texts_[s] = format("{} with {}", sites_[s].describe(),
                         sites_[s].what().space().describe(kernel->config));
  watches_used_ = 0;
  try {
    try {
      call(launches, outcome.seconds);
    } catch (const GivenUp& why) {
      outcome.wrong = why.what();
    }
    add_up(outcome);
    const bool ended = outcome.wrong.empty();
    const std::string damage = clear_semaphores(), wrong = ended ? verdict() : "";
    if (ended) outcome.wrong = damage.empty() ? wrong : damage;
  } catch (...) {
    outcome.thrown = std::current_exception();
    try {
      clear_semaphores();
    } catch (const std::exception&) {
      // The device is lost, which the first exception says.
    }
  }
  outcome_ = nullptr;
  return outcome;
}

void RegionRunner::call(GuardedLaunches& launches, double& seconds) {
  launches.share_failure([&] {
    if (options_.before) options_.before();
    Region region = detail::Access::region(*this, functions_);
    streams_.clear();
    workspaces_.clear();
    ++runs_;
    launches.run([&] {
      const auto start = std::chrono::steady_clock::now();
      for (int call = 0; call < options_.calls; ++call) region_(region);
      wait_for_streams();
      seconds = seconds_since(start);
    });
  });
}

void RegionRunner::wait_for_streams() try {
  const auto wait = [&] {
    for (const Stream& stream : streams_) engine_.device()->synchronize(stream);
  };
  if (outcome_)
    watched("the wait for the streams of " + tried(), false, wait);
  else
    wait();
} catch (const Error& error) {
  give_up_if_lost(error.what());
  throw;
}

void RegionRunner::add_up(Outcome& outcome) {
  std::vector<double> counts(sites_.size());
  for (std::size_t w = 0; w < watches_used_; ++w) {
    if (!watches_[w].counts) continue;
    outcome.site_seconds[watches_[w].site] += watches_[w].stopwatch->seconds();
    ++counts[watches_[w].site];
  }
  for (std::size_t s = 0; s < sites_.size(); ++s)
    if (counts[s] > 0) outcome.site_seconds[s] /= counts[s];
}

std::string RegionRunner::verdict() const {
  if (!options_.check) return {};
  try {
    return options_.check();
  } catch (const std::exception& error) {
    return *error.what() ? error.what() : "`check` threw an exception";
  }
}

/// Problems of a handle may share a workspace: runs with one candidate at a time tell which
/// problem's candidate it was.
std::string RegionRunner::clear_semaphores() {
  std::string found;
  for (const UsedWorkspace& used : workspaces_)
    if (const auto left = KernelLoader::clear_semaphores(used.kernel, used.stream); left > 0)
      found += format("{}a launch of kernel {} left {} of its workspace's semaphores nonzero",
                      found.empty() ? "" : "; ", used.name, left);
  workspaces_.clear();
  return found;
}

/// A candidate of this run may have broken the device.
void RegionRunner::give_up_if_lost(const std::string& why) {
  if (!engine_.device()->lost()) return;
  throw DeviceLost(format("{}, while the region ran {}", why, tried()));
}

/// The candidates of this run.
std::string RegionRunner::tried() const {
  std::string all;
  for (std::size_t s = 0; outcome_ && s < sites_.size(); ++s)
    if (assignments_[s].timed && assignments_[s].kernel)
      all += format("{}{}", all.empty() ? "" : ", ", texts_[s]);
  return all.empty() ? "the configs in use" : all;
}

/// The calling thread waits in the launch, or has returned from it.
void RegionRunner::tell(double seconds, bool returned) {
  told_ = true;
  static const Values nothing;
  tell_({nothing, *at_work_, seconds, allowed_, rejects_, returned});
  if (!returned && options_.progress) options_.progress({runs_, 0, 0, *at_work_, seconds});
}

/// Returns the seconds that the work took; 0 inside of a launch that is watched already.
template <class Work>
double RegionRunner::watched(const std::string& text, bool rejects, const Work& work) {
  if (at_work_) return work(), 0;
  at_work_ = &text;
  rejects_ = rejects;
  told_ = false;
  watch_.begin(allowed_ = limit_ > 0 ? limit_ : usual_limit(longest_));
  const auto end = [&] {
    const double seconds = watch_.end();
    longest_ = std::max(longest_, seconds);
    if (told_) tell(seconds, true);
    at_work_ = nullptr;
    return seconds;
  };
  try {
    work();
  } catch (...) {
    end();
    throw;
  }
  return end();
}

void RegionRunner::launch_candidate(std::size_t s, const RegionLaunch& launch) {
  const Assignment& assigned = assignments_[s];
  double seconds = 0;
  if (!assigned.timed) {
    seconds = watched(texts_[s], limit_ > 0, [&] { start(*assigned.kernel, launch); });
  } else {
    // Launches inside of this one take further watches.
    const std::size_t w = watches_used_++;
    if (w == watches_.size()) watches_.push_back({engine_.device()->stopwatch()});
    Stopwatch& stopwatch = *watches_[w].stopwatch;
    watches_[w].site = s;
    watches_[w].counts = false;
    seconds = watched(texts_[s], limit_ > 0, [&] {
      stopwatch.start(launch.stream);
      start(*assigned.kernel, launch);
      stopwatch.stop(launch.stream);
    });
    watches_[w].counts = true;
  }
  if (!(limit_ > 0) || seconds <= limit_) return;
  outcome_->hung[s] = true;
  outcome_->failures[s] =
      format("its launch returned after {:.3g} s, and {:.3g} s is the limit", seconds, limit_);
}

void RegionRunner::launch(const RegionLaunch& launch) {
  const Tunable what = launch.handle.what();
  const auto untuned = what.launch(default_of(what, launch.problem), launch.problem,
                                   engine_.device()->info().limits);
  if (untuned && empty(*untuned)) return;
  if (engine_.device()->capturing(launch.stream))
    throw engine_.captures().counted(
        format("{} for {}: its stream is being captured, but what a region tunes must run: call "
               "tune_region before the capture",
               what.describe(), what.describe_problem(launch.problem)));
  if (std::none_of(streams_.begin(), streams_.end(),
                   [&](const Stream& s) { return s.handle == launch.stream.handle; }))
    streams_.push_back(launch.stream);
  const auto place = site_of(launch);
  if (!place)
    start(late_bases_.at({&launch.handle, {launch.bucket.begin(), launch.bucket.end()}}), launch);
  else if (discovering_)
    ++sites_[*place].launches, start(sites_[*place].base, launch);
  else
    launch_at(*place, launch);
}

void RegionRunner::launch_at(std::size_t s, const RegionLaunch& launch) {
  const Assignment& assigned = assignments_[s];
  std::string& failure = outcome_->failures[s];
  if (assigned.kernel && failure.empty()) {
    try {
      return launch_candidate(s, launch);
    } catch (const std::exception& error) {
      failure = *error.what() ? error.what() : "the launch failed";
      give_up_if_lost(failure);
      // Its entry may have been launched before one of its steps was refused.
      KernelLoader::clear_semaphores(*assigned.kernel, launch.stream);
    }
  }
  start(sites_[s].base, launch);
}

void RegionRunner::start(const Launchable& ready, const RegionLaunch& launch) {
  const Tunable what = launch.handle.what();
  // The limits hold for the problem that is launched, not for its bucket.
  const DeviceLimits& limits = engine_.device()->info().limits;
  if (const auto why = what.launch_obstacle(ready.config, launch.problem, limits); !why.empty())
    throw UserError(format("{} with {} for {}: {}", what.describe(),
                           what.space().describe(ready.config),
                           what.describe_problem(launch.problem), why));
  if (ready.whole &&
      std::none_of(workspaces_.begin(), workspaces_.end(), [&](const UsedWorkspace& used) {
        return used.kernel.loader == ready.loader && used.stream.handle == launch.stream.handle;
      }))
    workspaces_.push_back({what.name(), ready, launch.stream});
  const auto description = what.launch(ready.config, launch.problem, limits);
  ready.launch(description.value_or(Launch{}), launch.problem, launch.stream, launch.args);
}

/// Two handles of the same kernel share their sites, as they share their records.
std::optional<std::size_t> RegionRunner::site_of(const RegionLaunch& launch) {
  HandleAndProblem key{&launch.handle, {launch.bucket.begin(), launch.bucket.end()}};
  if (const auto found = places_.find(key); found != places_.end()) return found->second;
  const Tunable what = launch.handle.what();
  if (&launch.handle.engine() != &engine_)
    throw UserError(
        format("{}: its handle belongs to another runtime than the region", what.describe()));
  if (launch.handle.fixed()) {  // nothing is left to be tuned
    late_bases_.emplace(key, *launch.handle.current(launch.bucket));
    late_handles_.push_back(launch.handle.shared_from_this());
    return places_.emplace(std::move(key), std::nullopt).first->second;
  }
  const Key record = engine_.records().key(what, launch.bucket);
  const auto known = std::find(keys_.begin(), keys_.end(), record);
  std::optional<std::size_t> place;
  if (known != keys_.end()) {
    place = static_cast<std::size_t>(known - keys_.begin());
    sites_[*place].handles.push_back(launch.handle.shared_from_this());
  } else if (discovering_) {
    Launchable base = base_of(launch);
    place = sites_.size();
    sites_.push_back({{launch.handle.shared_from_this()}, key.second, std::move(base), 0});
    keys_.push_back(record);
  } else {
    late_bases_.emplace(key, base_of(launch));
    late_handles_.push_back(launch.handle.shared_from_this());
    late_.push_back(format("{} {}", what.name(), what.describe_problem(launch.bucket)));
  }
  places_.emplace(std::move(key), place);
  return place;
}

Launchable RegionRunner::base_of(const RegionLaunch& launch) const {
  if (!defaults_) return *launch.handle.current(launch.bucket);
  auto made = launch.handle.load(launch.bucket, default_of(launch.handle.what(), launch.bucket));
  if (auto* missing = std::get_if<Missing>(&made)) throw MissingError(std::move(*missing));
  return std::get<Launchable>(std::move(made));
}

}  // namespace kiln::runtime
