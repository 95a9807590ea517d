#include "runtime/build/build_queue.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

namespace kiln::runtime {

struct BuildQueue::State {
  State(Describe describe_, TraceLog& trace_) : describe(std::move(describe_)), trace(trace_) {}

  /// Without throwing.
  void run(std::size_t order, std::size_t id, const Values& config, const Job& job,
           unsigned worker);

  const Describe describe;                               ///< a config, for the trace
  TraceLog& trace;                                       ///< not to be used when closed
  const SpanScope::Context part_of = SpanScope::here();  ///< what builds are a part of
  std::mutex mutex;
  std::condition_variable_any changed;
  bool closed = false;
  std::map<std::size_t, Finished> done;  ///< by order
  std::exception_ptr failure;
  double longest_build = 0;
};

void BuildQueue::State::run(std::size_t order, std::size_t id, const Values& config, const Job& job,
                            unsigned worker) {
  {
    const std::lock_guard lock(mutex);
    if (closed) return;
  }
  const SpanParent parent(part_of);
  Finished finished{id, {}};
  std::exception_ptr thrown;
  const auto begin = Clock::now();
  try {
    finished.build = job();
  } catch (...) {
    thrown = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex);
    if (closed) return;
    longest_build = std::max(longest_build, seconds_since(begin));
    try {
      if (finished.build.binary() || finished.build.compiled)
        trace.add(finished.build.compiled ? "compile" : "find",
                  "compiler " + std::to_string(worker), describe(config), begin);
    } catch (...) {
      thrown = std::current_exception();
    }
    if (thrown && !failure) failure = std::move(thrown);
    done.emplace(order, std::move(finished));
  }
  changed.notify_all();
}

BuildQueue::BuildQueue(BuildCrew* crew, unsigned threads, Work work, Describe describe,
                       TraceLog& trace)
    : own_(crew ? nullptr : std::make_unique<BuildCrew>()),
      crew_(crew ? *crew : *own_),
      threads_(threads),
      work_(std::move(work)),
      state_(std::make_shared<State>(std::move(describe), trace)) {}

BuildQueue::~BuildQueue() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
  }
  if (!own_ && !BuildCrew::may_be_left()) crew_.wait();
}

void BuildQueue::submit(std::size_t id, Values config) {
  Job job = work_(config);
  const std::size_t order = submitted_++;
  crew_.submit(threads_,
               [state = state_, order, id, job = std::move(job), config = std::move(config)](
                   unsigned worker) { state->run(order, id, config, job, worker); });
  in_flight_.insert(order);
}

double BuildQueue::longest_build() const {
  const std::lock_guard lock(state_->mutex);
  return state_->longest_build;
}

void BuildQueue::wait(std::stop_token stop, const TimeLimit& deadline,
                      const std::function<bool()>& enough) {
  std::unique_lock lock(state_->mutex);
  const auto over = [&] { return state_->failure || enough(); };
  if (deadline.at())
    state_->changed.wait_until(lock, stop, *deadline.at(), over);
  else
    state_->changed.wait(lock, stop, over);
  // No reference is left here: the exception ends with the search that catches it.
  if (state_->failure) std::rethrow_exception(std::exchange(state_->failure, nullptr));
}

BuildQueue::Finished BuildQueue::finish(std::size_t order) {
  auto node = state_->done.extract(order);
  in_flight_.erase(order);
  return std::move(node.mapped());
}

std::vector<BuildQueue::Finished> BuildQueue::take(std::size_t count, std::stop_token stop,
                                                   const TimeLimit& deadline) {
  const auto end = std::next(in_flight_.begin(),
                             static_cast<std::ptrdiff_t>(std::min(count, in_flight_.size())));
  std::vector<std::size_t> wanted(in_flight_.begin(), end);
  const auto is_done = [&](std::size_t order) { return state_->done.contains(order); };
  wait(std::move(stop), deadline, [&] { return std::ranges::all_of(wanted, is_done); });
  const std::lock_guard lock(state_->mutex);
  std::vector<Finished> finished;
  for (const std::size_t order : wanted) {
    if (!is_done(order)) break;
    finished.push_back(finish(order));
  }
  return finished;
}

std::vector<BuildQueue::Finished> BuildQueue::take_any(std::size_t least, std::size_t most,
                                                       std::stop_token stop,
                                                       const TimeLimit& deadline) {
  least = std::min(least, in_flight_.size());
  wait(std::move(stop), deadline, [&] { return state_->done.size() >= least; });
  const std::lock_guard lock(state_->mutex);
  std::vector<Finished> finished;
  while (finished.size() < most && !state_->done.empty())
    finished.push_back(finish(state_->done.begin()->first));
  return finished;
}

}  // namespace kiln::runtime
