// Compile workers ahead of the one lane that measures.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "runtime/build/builder.hpp"
#include "runtime/support/spans.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/support/trace.hpp"

namespace kiln::runtime {

/// For one tuning run; used by one thread. Builds run on threads of the queue. The destructor drops
/// builds that have not begun and waits for the others.
class BuildQueue {
 public:
  struct Finished {
    std::size_t id = 0;
    Build build;
  };

  using Work = std::function<Build(const Values& config)>;
  using Describe = std::function<std::string(const Values& config)>;

  /// `work` is called on up to `threads` threads. The trace must outlive the queue.
  BuildQueue(unsigned threads, Work work, Describe describe, TraceLog& trace);
  ~BuildQueue();

  void submit(std::size_t id, Values config);
  std::size_t in_flight() const noexcept { return in_flight_; }
  /// Waits for the `count` oldest builds (all in flight, if those are fewer) and returns exactly
  /// those, in the order submitted, so that how long compiles take does not change a search. When
  /// `stop` is requested, or at the deadline, returns those that are done. @throws what a build
  /// threw.
  std::vector<Finished> take(std::size_t count, std::stop_token stop,
                             const TimeLimit& deadline = {});
  /// Seconds of the longest build so far.
  double longest_build() const;

 private:
  struct Job {
    std::size_t id, order;
    Values config;
  };
  void work(std::stop_token stop, unsigned worker);

  const unsigned threads_;
  const Work work_;
  const Describe describe_;  ///< a config, for the trace
  TraceLog& trace_;
  const SpanScope::Context part_of_ = SpanScope::here();  ///< what builds are a part of
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Job> waiting_;
  std::map<std::size_t, Finished> done_;  ///< by order
  std::exception_ptr failure_;
  double longest_build_ = 0;
  std::size_t in_flight_ = 0, submitted_ = 0, taken_ = 0;
  std::vector<std::jthread> workers_;  ///< last: they end before anything they use
};

}  // namespace kiln::runtime
