// The bench for a kernel's problem whose trials run in a worker: what faults there costs the
// worker.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kiln/device.hpp"
#include "runtime/device/peer_groups.hpp"
#include "runtime/measure/problem_bench.hpp"
#include "runtime/worker/isolation.hpp"

namespace kiln::runtime {

class WorkerLink;

/// The rank whose trials run at the same time as those of other ranks, and the symmetric memory
/// that addresses may be of.
struct LockstepPlace {
  int rank = 0, ranks = 1;
  const PeerGroups* known = nullptr;  ///< null: the device has none
};

/// The worker has the device, the data and the modules; `reference` and `check` are the program's,
/// and run here. The worker is asked for one thing at a time, so what it has not answered is what
/// it died of. A trial whose worker dies while others have run there, or is killed by another
/// process, runs once more in a new worker before it is blamed: others may have damaged the first
/// one. The worker starts with this object, and ends with it.
class IsolatedBench final : public ProblemBench {
 public:
  /// Whether a worker opens devices of this kind.
  static bool opens(const DeviceInfo& device);
  /// Makes the data, and starts the worker. `lockstep`: where trials run in step.
  /// @throws CannotIsolate; BenchLost where no worker can be started now; EnvironmentError where
  /// there is no memory for its data; UserError as make_data. @pre `kernel` outlives it
  IsolatedBench(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                const DeviceInfo& device, std::uint64_t seed, WorkerOptions options,
                const std::optional<LockstepPlace>& lockstep = {});
  ~IsolatedBench() override;

  std::size_t draws() const noexcept override;
  const KernelData& data(std::size_t draw) const noexcept override;
  std::string trust(const Trial& trial) override;
  std::vector<std::string> take_warnings() override;
  /// Null: no module of a trial is in this process.
  std::shared_ptr<Module> module_of(const Rig&) const override { return nullptr; }

  void expect() override;
  bool knows_results() const noexcept override;
  std::variant<std::shared_ptr<Rig>, Refusal> load(const Trial& trial) override;
  Verdict verify(Rig& rig) override;
  void keep_cold(bool cold, const TimeLimit& deadline) override;
  void let_overlap(bool overlap) override;
  std::size_t most_launches(const Rig& rig) const override;
  double time(Rig& rig, std::size_t launches) override;
  bool record(Rig& rig, std::size_t launches) override;
  void forget_recording(Rig& rig) override;
  std::string repair() override;
  bool take_unchecked() noexcept override;
  /// False: a fault costs the worker its device, and the program nothing.
  bool lost() noexcept override { return false; }
  bool shares_cpu() const noexcept override;

  WorkerLink& link() noexcept;
  /// Whether a function of the program's says what is right.
  bool checks() const noexcept;
  /// The symmetric memory that the worker has with others.
  const std::vector<PeerShape>& groups() const noexcept;

 private:
  struct IsolatedRig;
  struct State;

  const std::unique_ptr<State> state_;
};

}  // namespace kiln::runtime
