#include "runtime/build/build_queue.hpp"

#include <algorithm>
#include <utility>

namespace kiln::runtime {

BuildQueue::BuildQueue(unsigned threads, Work work, Describe describe, TraceLog& trace)
    : threads_(threads), work_(std::move(work)), describe_(std::move(describe)), trace_(trace) {}

BuildQueue::~BuildQueue() {
  for (std::jthread& worker : workers_) worker.request_stop();
}

void BuildQueue::submit(std::size_t id, Values config) {
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back({id, submitted_++, std::move(config)});
  }
  // There are as many workers as builds, up to the limit.
  if (++in_flight_ > workers_.size() && workers_.size() < threads_)
    workers_.emplace_back([this, worker = static_cast<unsigned>(workers_.size())](
                              std::stop_token stop) { work(stop, worker); });
  changed_.notify_all();
}

void BuildQueue::work(std::stop_token stop, unsigned worker) {
  const SpanParent parent(part_of_);
  const std::string lane = "compiler " + std::to_string(worker);
  for (;;) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [&] { return !waiting_.empty(); }) || stop.stop_requested())
      return;
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    Finished finished{job.id, {}};
    std::exception_ptr failure;
    const auto begin = Clock::now();
    try {
      finished.build = work_(job.config);
      if (finished.build.binary() || finished.build.compiled)
        trace_.add(finished.build.compiled ? "compile" : "find", lane, describe_(job.config),
                   begin);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    longest_build_ = std::max(longest_build_, seconds_since(begin));
    done_.emplace(job.order, std::move(finished));
    lock.unlock();
    changed_.notify_all();
  }
}

double BuildQueue::longest_build() const {
  std::lock_guard lock(mutex_);
  return longest_build_;
}

std::vector<BuildQueue::Finished> BuildQueue::take(std::size_t count, std::stop_token stop,
                                                   const TimeLimit& deadline) {
  const std::size_t end = taken_ + std::min(count, in_flight_);
  std::vector<Finished> finished;
  std::unique_lock lock(mutex_);
  const auto all_done = [&] {
    for (std::size_t order = taken_; order < end; ++order)
      if (!done_.count(order)) return failure_ != nullptr;
    return true;
  };
  if (deadline.at())
    changed_.wait_until(lock, stop, *deadline.at(), all_done);
  else
    changed_.wait(lock, stop, all_done);
  if (failure_) std::rethrow_exception(failure_);
  for (; taken_ < end; ++taken_) {
    const auto done = done_.find(taken_);
    if (done == done_.end()) break;
    finished.push_back(std::move(done->second));
    done_.erase(done);
  }
  in_flight_ -= finished.size();
  return finished;
}

}  // namespace kiln::runtime
