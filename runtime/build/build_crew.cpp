#include "runtime/build/build_crew.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <set>
#include <utility>

#include "kiln/error.hpp"

namespace kiln::runtime {

namespace {

std::atomic<bool> compiled_once{false};

}  // namespace

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
  /// Ends the crews at exit, before anything that exists by now is destroyed.
  static bool end_at_exit() {
    return std::atexit([] { of_process().end(); }) == 0;
  }

 private:
  LiveCrews() = default;
  void end() {
    if (process_.is_forked()) return;  // it has none of the threads
    const std::lock_guard lock(mutex_);
    for (BuildCrew* const crew : crews_) crew->end();
  }

  const OwnProcess process_;
  std::mutex mutex_;
  std::set<BuildCrew*> crews_;
};

bool BuildCrew::may_be_left() noexcept { return compiled_once; }

void BuildCrew::note_compiled() {
  static std::once_flag once;
  std::call_once(once, [] { compiled_once = LiveCrews::end_at_exit(); });
}

BuildCrew::BuildCrew() { LiveCrews::of_process().add(this); }

BuildCrew::~BuildCrew() {
  if (process_.is_forked()) {
    leave();
  } else {
    LiveCrews::of_process().remove(this);
    end();
  }
}

void BuildCrew::end() noexcept {
  std::deque<Waiting> dropped;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    dropped.swap(waiting_);
    for (const Waiting& job : dropped) unfinished_.erase(job.number);
    finished_->notify_all();
  }
  for (Worker& worker : workers_) {
    if (worker.thread.get_id() == std::this_thread::get_id())
      worker.thread.detach();  // a job exits the process
    else if (worker.thread.joinable())
      worker.thread.join();
  }
}

/// Lets go of the threads, in a fork of the process that made the crew.
void BuildCrew::leave() noexcept {
  for (Worker& worker : workers_) forget_thread(worker.thread);
  // Its destructor would wait for the threads that waited in the process.
  [[maybe_unused]] const auto* left = finished_.release();
}

void BuildCrew::submit(unsigned limit, Job job) {
  if (process_.is_forked()) return job(0);  // also the mutex may be a thread's that is not here
  const std::lock_guard lock(mutex_);
  if (ended_) throw EnvironmentError("nothing is compiled any more: the process is exiting");
  waiting_.push_back({submitted_, std::max(limit, 1u), std::move(job)});
  unfinished_.insert(submitted_++);
  try {
    start_worker_if_needed();
  } catch (...) {
    if (working_ != 0) return;  // those that there are will do it
    unfinished_.erase(waiting_.back().number);
    waiting_.pop_back();
    throw;
  }
}

bool BuildCrew::is_own_thread() const {
  return std::ranges::any_of(workers_, [](const Worker& worker) {
    return worker.thread.get_id() == std::this_thread::get_id();
  });
}

void BuildCrew::wait() {
  if (process_.is_forked()) return;
  std::unique_lock lock(mutex_);
  if (is_own_thread()) return;
  finished_->wait(lock, [this, end = submitted_] {
    return unfinished_.empty() || *unfinished_.begin() >= end;
  });
}

void BuildCrew::start_worker_if_needed() {
  if (waiting_.size() > starting_ && working_ < waiting_.front().limit) start_worker();
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
  ++starting_;
}

void BuildCrew::work(unsigned number) {
  std::unique_lock lock(mutex_);
  --starting_;
  while (!waiting_.empty() && working_ <= waiting_.front().limit) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    try {
      start_worker_if_needed();
    } catch (const std::exception&) {  // this one will come to it
    }
    lock.unlock();
    next.job(number);
    next.job = {};
    lock.lock();
    unfinished_.erase(next.number);
    finished_->notify_all();
  }
  workers_[number].ended = true;
  --working_;
}

}  // namespace kiln::runtime
