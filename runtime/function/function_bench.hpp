// The bench for functions with knobs: a trial is a call, on a device that gives streams and the
// clock.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "kiln/detail/function_core.hpp"
#include "runtime/device/cache_flush.hpp"
#include "runtime/device/device.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/together/rank_log.hpp"

namespace kiln::runtime {

/// Functions own their data. What a call has changed is put back before the next; the cache is made
/// cold by filling it with something else. Used by one thread.
class FunctionBench final : public TrialBench {
 public:
  /// `log`, unless null, gets a line for each new config. The arguments must outlive the bench.
  FunctionBench(std::shared_ptr<Device> device, const detail::FunctionDescription& function,
                const detail::FunctionCall& call, RankLog* log);
  FunctionBench(const FunctionBench&) = delete;
  FunctionBench& operator=(const FunctionBench&) = delete;

  /// Puts back what the calls have changed; nothing is called afterwards. @throws EnvironmentError
  /// when that fails
  void finish();

  bool knows_results() const noexcept override { return true; }
  std::variant<std::shared_ptr<Rig>, Refusal> load(const Trial& trial) override;
  Verdict verify(Rig& rig) override;
  void keep_cold(bool cold, const TimeLimit&) override;
  void keep_in_step(GuardedLaunches* launches) override { in_step_ = launches; }
  std::size_t most_launches(const Rig&) const override;
  double time(Rig& rig, std::size_t launches) override;
  bool record(Rig& rig, std::size_t launches) override;
  void forget_recording(Rig& rig) override;
  bool lost() noexcept override { return device_->lost(); }
  bool shares_cpu() const noexcept override { return device_->shares_cpu(); }

 private:
  struct FunctionRig;

  /// Whether something has to be done before each call.
  bool one_by_one() const noexcept { return cold_ || function_.changes_state; }
  /// What comes before a call, and then `calls`, which also waits for their end.
  void call_prepared(bool timed, const std::function<void()>& calls);
  Verdict verdict() const;
  void look_again();
  void put_back();
  void flush();
  void call(const FunctionRig& rig);

  std::shared_ptr<Device> device_;
  const detail::FunctionDescription& function_;
  const detail::FunctionCall& call_;
  RankLog* log_;
  bool cold_ = false;
  GuardedLaunches* in_step_ = nullptr;    ///< null: no other rank calls at the same time
  std::function<void(Stream)> put_back_;  ///< made before the first call
  std::string told_;                      ///< to the log
  CacheFlush flush_;
  bool flush_failed_ = false;
};

}  // namespace kiln::runtime
