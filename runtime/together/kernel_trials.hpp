// Kernels as ranks try them: what is to be measured goes through the tuner.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/build/builder.hpp"
#include "runtime/device/device.hpp"
#include "runtime/measure/device_workload.hpp"
#include "runtime/together/trials.hpp"

namespace kiln::runtime {

/// For one agreement, on one thread. What it is given must outlive it.
class KernelTrials final : public Trials {
 public:
  KernelTrials(std::shared_ptr<Device> device, Builder& builder, std::span<const Subject> subjects,
               const TuneOptions& options);

  std::string ready(std::size_t subject, const Values& config) override;
  std::vector<std::vector<Candidate>> measure(std::span<const Request> requests,
                                              Deadline deadline) override;
  /// One launch to verify (if there is a reference), then kWarmUp and kRepeats.
  Candidate measure_in_step(std::size_t subject, const Values& config, Deadline deadline) override;
  /// The default's, measured, and scaled by the cost model.
  std::vector<Cost> costs(std::size_t subject, std::span<const Values> configs,
                          Deadline deadline) override;
  void annotate(std::size_t subject, TuneResult& result) const override;

  static constexpr int kWarmUp = 2, kRepeats = 7;

 private:
  TuneResult tune(std::size_t subject, std::span<const Values> configs, bool decides,
                  double seconds);

  std::shared_ptr<DeviceWorkload>& workload(std::size_t subject);
  DeviceWorkload& in_step(std::size_t subject);

  std::shared_ptr<Device> device_;
  Builder& builder_;
  std::span<const Subject> subjects_;
  const TuneOptions& options_;
  std::optional<Deadline> start_;                ///< of measuring
  std::vector<std::optional<TuneResult>> seen_;  ///< sums of what was done for each subject
  std::map<std::size_t, TuneResult> defaults_;   ///< measured for costs(), not yet asked for
  std::mutex workload_mutex_;                    ///< `ready` is called from several threads
  std::size_t workload_of_ = 0;  ///< data are kept of the latest subject alone: they are large
  std::shared_ptr<DeviceWorkload> workload_;
};

}  // namespace kiln::runtime
