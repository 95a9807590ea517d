#include "runtime/build/build_crew.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <unistd.h>

namespace kiln::runtime {

/// Ends crews when the process exits: a thread that is inside a compiler then would find its data
/// destroyed.
class LiveCrews {
 public:
  static LiveCrews& of_process() {
    static auto* const crews = new LiveCrews;  // never destroyed
    return *crews;
  }
  void add(BuildCrew* crew) {
    const std::lock_guard lock(mutex_);
    crews_.insert(crew);
  }
  void remove(BuildCrew* crew) {
    const std::lock_guard lock(mutex_);
    crews_.erase(crew);
  }

 private:
  LiveCrews() {
    std::atexit([] { of_process().end(); });
  }
  void end() {
    if (::getpid() != process_) return;  // a fork has none of the threads
    const std::lock_guard lock(mutex_);
    for (BuildCrew* const crew : crews_) crew->end();
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::set<BuildCrew*> crews_;
};

BuildCrew::BuildCrew() { LiveCrews::of_process().add(this); }

BuildCrew::~BuildCrew() {
  LiveCrews::of_process().remove(this);
  end();
}

void BuildCrew::end() noexcept {
  std::deque<Waiting> dropped;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    dropped.swap(waiting_);
    for (const Waiting& job : dropped) unfinished_.erase(job.number);
    finished_.notify_all();
  }
  for (Worker& worker : workers_)
    if (worker.thread.joinable()) worker.thread.join();
}

void BuildCrew::submit(unsigned limit, Job job) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  waiting_.push_back({submitted_, std::max(limit, 1u), std::move(job)});
  unfinished_.insert(submitted_++);
  if (working_ >= waiting_.front().limit) return;
  try {
    start_worker();
  } catch (...) {
    if (working_ != 0) return;  // those that there are will do it
    unfinished_.erase(waiting_.back().number);
    waiting_.pop_back();
    throw;
  }
}

void BuildCrew::wait() {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [this, end = submitted_] {
    return unfinished_.empty() || *unfinished_.begin() >= end;
  });
}

void BuildCrew::start_worker() {
  const auto free = std::ranges::find(workers_, true, &Worker::ended);
  const auto number = static_cast<unsigned>(free - workers_.begin());
  if (free == workers_.end()) workers_.emplace_back();
  Worker& worker = workers_[number];
  if (worker.thread.joinable()) worker.thread.join();
  worker.thread = std::thread([this, number] { work(number); });
  worker.ended = false;
  ++working_;
}

void BuildCrew::work(unsigned number) {
  for (;;) {
    Waiting next;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty() || working_ > waiting_.front().limit) {
        workers_[number].ended = true;
        --working_;
        return;
      }
      next = std::move(waiting_.front());
      waiting_.pop_front();
    }
    next.job(number);
    next.job = {};
    const std::lock_guard lock(mutex_);
    unfinished_.erase(next.number);
    finished_.notify_all();
  }
}

}  // namespace kiln::runtime
