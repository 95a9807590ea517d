#include "runtime/measure/call_watch.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

namespace kiln::runtime {

namespace {

constexpr double kLeastLimit = 30, kTimesLongest = 20, kFirstLimit = 300;
constexpr double kLongestLimit = 1e7;

Clock::duration of_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::min(seconds, kLongestLimit)));
}

}  // namespace

double usual_limit(double longest) noexcept {
  return longest > 0 ? std::max(kLeastLimit, kTimesLongest * longest) : kFirstLimit;
}

CallWatch::CallWatch(std::function<void(double)> tell) : tell_(std::move(tell)) {}

CallWatch::~CallWatch() = default;

void CallWatch::begin(double limit) {
  const std::lock_guard lock(mutex_);
  calling_ = true;
  begin_ = Clock::now();
  pause_ = of_seconds(limit);
  next_ = begin_ + pause_;
  if (!thread_.joinable()) try {
      thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
    } catch (const std::system_error&) {
      // There are no more threads: this call is not told of.
    }
  else if (next_ < wakes_)  // else it wakes in time, which saves a switch of threads
    changed_.notify_one();
}

double CallWatch::end() noexcept {
  const std::lock_guard lock(mutex_);
  calling_ = false;
  return seconds_since(begin_);
}

void CallWatch::watch(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    const auto now = Clock::now();
    if (calling_ && now >= next_) {
      try {
        tell_(std::chrono::duration<double>(now - begin_).count());
      } catch (...) {
        // It is the program's exception, and this thread cannot end the call.
      }
      next_ = now + (now - begin_);
    }
    wakes_ = calling_ ? next_ : now + pause_;
    changed_.wait_until(lock, stop, wakes_, [this] { return calling_ && next_ < wakes_; });
  }
}

}  // namespace kiln::runtime
