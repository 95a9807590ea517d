// The worker of an isolated bench: started, asked, and started anew when a trial has ended it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kiln/device.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/worker/isolation.hpp"
#include "runtime/worker/shared_data.hpp"
#include "runtime/worker/worker_process.hpp"

namespace kiln::runtime {

/// What `read` takes from an answer. @throws EnvironmentError when the answer is malformed
template <class Read>
auto read_answer(std::span<const std::byte> answer, const Read& read) {
  try {
    FieldReader fields(answer);
    return read(fields);
  } catch (const BrokenFrame& broken) {
    throw EnvironmentError(std::string("the worker sent ") + broken.what());
  }
}

/// Numbers of rigs that the worker may forget; null once it is another worker.
using Dropped = std::vector<std::uint64_t>;

/// A trial as the program knows it: what takes it to load it into another worker.
struct WorkerRig {
  ~WorkerRig() {
    if (const auto list = dropped.lock()) list->push_back(number);
  }
  Trial trial{};
  std::uint64_t number = 0;
  std::weak_ptr<Dropped> dropped{};  ///< of the worker that has loaded it
  bool verified = false;
  std::size_t recorded = 0;  ///< launches of its recording; 0: there is none
};

/// Not thread-safe.
class WorkerLink {
 public:
  /// Starts the worker. @throws CannotIsolate
  WorkerLink(const DeviceInfo& device, WorkerSetup setup, SharedData& data, WorkerOptions options);

  bool shares_cpu() const noexcept { return shares_cpu_; }
  bool lost() const noexcept { return lost_; }
  /// From now on a new worker finds what is right in the memory file.
  void expect() { setup_.expects = true; }
  /// Which worker it is: names of outputs that are to be judged mean something there only.
  std::uint64_t generation() const noexcept { return generation_; }

  /// @throws TrialFault
  std::optional<Refusal> load(WorkerRig& rig);
  /// Asks for something of a rig, which is loaded anew where its worker is gone. The answer.
  /// @throws TrialFault; EnvironmentError with the worker's words; DeviceLost
  std::vector<std::byte> ask(WorkerRig& rig, Ask what, std::span<const std::byte> arguments = {});
  /// Asks for something that launches nothing. Nothing: the worker ended over it.
  std::optional<std::vector<std::byte>> ask(Ask what, std::span<const std::byte> arguments = {});

  void forget_recording(WorkerRig& rig);
  void keep_cold(bool cold, const TimeLimit& deadline);
  void let_overlap(bool overlap);

 private:
  void start();
  void start_again();
  void configure();
  template <class Work>
  auto attempt(WorkerRig& rig, const Work& work);
  std::optional<Refusal> load_now(WorkerRig& rig);
  void make_ready(WorkerRig& rig);
  std::vector<std::byte> send(Ask what, std::span<const std::byte> arguments);
  std::vector<std::byte> send_for(const WorkerRig& rig, Ask what,
                                  std::span<const std::byte> arguments);
  bool alone(const WorkerRig& rig) const;
  double seconds() const;
  std::uint64_t allowance() const;

  const WorkerOptions options_;
  SharedData& data_;
  WorkerSetup setup_;
  std::unique_ptr<WorkerProcess> worker_;
  std::shared_ptr<Dropped> dropped_ = std::make_shared<Dropped>();
  std::set<std::uint64_t> launched_;  ///< rigs, in this worker
  std::uint64_t generation_ = 0;
  std::uint64_t workspace_ = 0;  ///< the largest of a trial
  bool shares_cpu_ = false, lost_ = false;
  Ask last_ = Ask::load;  ///< what the worker was asked for last
  std::optional<bool> cold_, overlap_;
  TimeLimit deadline_;       ///< of keep_cold
  double longest_ = 0;       ///< seconds that a verification or a sample took; 0: none has ended
  std::size_t excused_ = 0;  ///< trials that ended a worker, but not the next one
};

}  // namespace kiln::runtime
