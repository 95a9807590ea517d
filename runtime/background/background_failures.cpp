// What becomes of a problem that cannot be tuned behind its launches, and of all when the device is
// lost on which they are measured.
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "runtime/background/background_tuning.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/provisional.hpp"

namespace kiln::runtime {

using detail::format;

namespace {

constexpr int kAttempts = 3;
/// Before the second attempt, and how many times as long before each further one: what stood in the
/// way, such as memory that the program has taken, needs time to go.
constexpr std::chrono::milliseconds kRetryAfter{500};
constexpr int kRetryGrowth = 4;

}  // namespace

/// `may_pass`: what stood in the way may be gone at the next attempt.
BackgroundTuning::Then BackgroundTuning::failed(Job& job, std::shared_ptr<ServedHandle>& handle,
                                                bool may_pass, const std::string& why) noexcept {
  count_error();
  if (may_pass && ++job.attempts < kAttempts) {
    auto pause = kRetryAfter;
    for (int i = 1; i < job.attempts; ++i) pause *= kRetryGrowth;
    job.not_before = times_->now() + pause;
    return Then::measure_later;
  }
  if (!handle) handle = job.handle.lock();
  if (!handle) return Then::over;
  const bool ranks = engine_.options().tuning.ranks != nullptr;
  try {
    say(LogLevel::warning,
        format("{} {}: what is in use stays{}, because tuning it behind the launches has failed: "
               "{}",
               job.kernel->name, job.kernel->describe_problem(job.problem),
               ranks ? " unless another rank finds something" : "", why));
  } catch (...) {
    count_error();
  }
  if (ranks)
    give_up(handle.get(), job.problem);
  else
    keep_in_use(handle, job.problem);
  return Then::over;
}

/// Nothing better will be found here. What was found still waits for its commit.
void BackgroundTuning::device_lost(const std::string& why) noexcept {
  count_error();
  times_->end();
  say(LogLevel::error,
      "the background ends, because a candidate has taken the device with it: " + why);
  {
    const std::lock_guard lock(jobs_->mutex);
    for (auto& [place, one] : jobs_->unsettled) one.given_up = true;
  }
  settle_given_up();
}

/// Without ranks: what is in use is final where nothing better is looked for. Where another device
/// has measured, this one still launches. What was found comes first, so that all handles of its
/// kernel get it, and a commit that has begun ends with this. What a launch is just putting in use
/// is left to the next call.
void BackgroundTuning::settle_given_up() noexcept {
  const std::unique_lock alone(committing_, std::try_to_lock);
  if (alone) settle_given_up(alone);
}
void BackgroundTuning::settle_given_up(const std::unique_lock<std::mutex>&) noexcept {
  if (engine_.options().tuning.ranks || !times_->ended()) return;
  std::vector<std::pair<std::shared_ptr<ServedHandle>, Values>> over;  // one may keep the engine
  try {
    const std::lock_guard lock(jobs_->mutex);
    if (!jobs_->found.empty()) return;
    for (const auto& [place, one] : jobs_->unsettled) {
      if (!one.given_up) continue;
      over.push_back({nullptr, place.second});
      over.back().first = one.handle.lock();
    }
  } catch (...) {  // no memory
    count_error();
  }
  for (const auto& [handle, problem] : over)
    if (handle && in_use(*handle, problem) != InUse::awaited) keep_in_use(handle, problem);
}

/// With ranks. The next commit tells the others, and decides: until then captures of the problem
/// can be refreshed on all of them.
void BackgroundTuning::give_up(const void* handle, const Values& problem) noexcept {
  const std::lock_guard lock(jobs_->mutex);
  for (auto& [place, one] : jobs_->unsettled)
    if (place.first == handle && place.second == problem) one.given_up = true;
}

void BackgroundTuning::keep_in_use(const std::shared_ptr<ServedHandle>& handle,
                                   const Values& problem) noexcept try {
  const detail::Ready ready = handle->find(problem);
  if (ready && ready->provisional)
    publish(handle, launchable_of(*ready), ready);
  else
    drop(handle.get(), problem);
} catch (...) {
  count_error();
  drop(handle.get(), problem);
}

}  // namespace kiln::runtime
