// Compile workers ahead of the one lane that measures.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/build/build_crew.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/support/spans.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/support/trace.hpp"

namespace kiln::runtime {

/// For one tuning run; used by one thread. Builds run on threads of a crew. The destructor drops
/// builds that have not begun.
class BuildQueue {
 public:
  struct Finished {
    std::size_t id = 0;
    Build build;
  };

  using Job = std::function<Build()>;
  /// Called by the thread that submits; the job on one of the crew.
  using Work = std::function<Job(const Values& config)>;
  using Describe = std::function<std::string(const Values& config)>;

  /// Up to `threads` jobs run at once. The trace must outlive the queue.
  /// @param crew where builds that have begun when the queue is destroyed go on, so jobs refer to
  /// nothing that does not outlive it; null: the queue has a crew of its own, and waits for them
  BuildQueue(BuildCrew* crew, unsigned threads, Work work, Describe describe, TraceLog& trace);
  BuildQueue(const BuildQueue&) = delete;
  BuildQueue& operator=(const BuildQueue&) = delete;
  ~BuildQueue();

  void submit(std::size_t id, Values config);
  std::size_t in_flight() const noexcept { return in_flight_.size(); }
  /// Waits for the `count` oldest builds (all in flight, if those are fewer) and returns exactly
  /// those, in the order submitted, so that how long compiles take does not change a search. When
  /// `stop` is requested, or at the deadline, returns those that are done. @throws what a build
  /// threw.
  std::vector<Finished> take(std::size_t count, std::stop_token stop,
                             const TimeLimit& deadline = {});
  /// Waits until any `least` builds are done (all in flight, if those are fewer) and returns up to
  /// `most` that are, in the order submitted. Else as take().
  std::vector<Finished> take_any(std::size_t least, std::size_t most, std::stop_token stop,
                                 const TimeLimit& deadline);
  /// Seconds of the longest build so far.
  double longest_build() const;

 private:
  struct State;
  void wait(std::stop_token stop, const TimeLimit& deadline, const std::function<bool()>& enough);
  Finished finish(std::size_t order);

  const std::unique_ptr<BuildCrew> own_;
  BuildCrew& crew_;
  const unsigned threads_;
  const Work work_;
  const std::shared_ptr<State> state_;  ///< shared with the builds
  std::set<std::size_t> in_flight_;     ///< numbers, in the order submitted
  std::size_t submitted_ = 0;
};

}  // namespace kiln::runtime
