// The workers of all ranks, for kernels that communicate: what ends one of them costs a candidate,
// on all ranks alike.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/communicator.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/support/rank_exchange.hpp"
#include "runtime/worker/isolated_bench.hpp"

namespace kiln::runtime {

/// How long a group waits, in seconds. Ranks may differ in them.
struct GroupSeconds {
  double candidate = 0;  ///< for all launches of one; then all ranks give it up
  double exchange = 30;  ///< for the other ranks to come to an exchange
  double make = 600;     ///< for them to make their data, and for the programs' own checks
};

/// One rank's end. Workers never speak to each other: what they must know of each other's symmetric
/// memory goes through this process, over the communicator of the ranks. Each function that is
/// collective makes the same exchanges on all ranks, with a deadline each, and decides by what all
/// have said. So it returns the same on all ranks, or throws EnvironmentError once the communicator
/// has failed. Not thread-safe: for the thread that tunes.
class WorkerGroup {
 public:
  WorkerGroup(std::shared_ptr<Communicator> ranks, const GroupSeconds& seconds);
  ~WorkerGroup();

  /// Collective, before the first measure(). Starts the workers of all ranks, which reach each
  /// other's symmetric memory. Where one ends meanwhile, all are replaced once; where one ends
  /// again, measure() tries nothing, because workers that end are no reason to run candidates
  /// without them.
  /// @param bench of this rank; null: `why` there is none
  /// Returns why there can be no group; empty: there was one, or workers have ended.
  std::string begin(IsolatedBench* bench, const std::string& why);
  /// begin() has returned nothing: from now on no candidate may run in the ranks' own processes.
  bool begun() const noexcept { return begun_; }
  /// Why measure() tries nothing any more; empty: it does.
  const std::string& lost() const noexcept { return lost_; }
  /// Collective. Tries one candidate in the workers of all ranks. One that fails on any rank is
  /// rejected on all, for that rank's reason. When a worker ends, all are replaced before the next
  /// launch. As with one worker, the candidate then runs once more by itself, unless it was the
  /// first in these workers and nobody else has ended them.
  /// @param bench of this rank; null: `why` there is none, which all ranks throw
  /// @param trial null: `why` there is none
  Candidate measure(IsolatedBench* bench, const Trial* trial, const Refusal& why,
                    const Values& config);
  /// Collective, where there is no group: whether all ranks can launch a candidate in their own
  /// processes. What is wrong with it; nothing: they can.
  std::optional<Candidate> meet(const std::optional<Refusal>& refusal, const Values& config);
  /// Ends this rank's worker. The next group is another one.
  void disband() noexcept;

 private:
  struct Said;
  struct Failure;
  class Switch;

  Failure form(IsolatedBench* bench, const std::string& why);
  Failure form_again_once(IsolatedBench* bench, const std::string& why);
  template <class Work>
  Failure failure_in(const Work& work) const;
  Said get_ready(IsolatedBench* bench, const Trial* trial, const Refusal& why,
                 std::shared_ptr<Rig>& rig);
  Said launch(IsolatedBench& bench, Rig& rig, const TimingPolicy& timing, Candidate& candidate);
  Said agree(const Said& mine, double seconds);
  void note_end(IsolatedBench& bench, Said& said) const;

  RankExchange exchange_;
  const GroupSeconds seconds_;
  GroupSeconds longest_;            ///< of all ranks, once there is a group
  std::unique_ptr<Switch> switch_;  ///< by which this process ends the waits of all workers
  WorkerLink* link_ = nullptr;      ///< of the bench that is in the group
  bool begun_ = false, formed_ = false;
  std::size_t launched_ = 0;  ///< candidates, in these workers
  std::size_t excused_ = 0;   ///< candidates that ended workers, but not the next ones
  std::string lost_;          ///< why there is no group any more; empty: there can be one
};

}  // namespace kiln::runtime
