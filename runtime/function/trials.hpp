// Functions as ranks try them: like kernels, but for those that communicate.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/function/device.hpp"
#include "runtime/together/kernel_trials.hpp"

namespace kiln::runtime {

/// For one agreement, on the thread that bound the device's call. What it is given must outlive it.
class FunctionTrials final : public Trials {
 public:
  FunctionTrials(std::shared_ptr<FunctionDevice> device, Builder& builder,
                 std::span<const Subject> subjects, const TuneOptions& options)
      : device_(device),
        builder_(builder),
        subjects_(subjects),
        kernels_(std::move(device), builder, subjects, options) {}

  std::string ready(std::size_t subject, const Values& config) override {
    return kernels_.ready(subject, config);
  }
  std::vector<std::vector<Candidate>> measure(std::span<const Request> requests,
                                              Deadline deadline) override {
    return kernels_.measure(requests, deadline);
  }
  /// One call to verify, then kWarmUp and kRepeats of KernelTrials: whatever they throw.
  Candidate measure_in_step(std::size_t subject, const Values& config, Deadline) override;
  std::vector<Cost> costs(std::size_t subject, std::span<const Values> configs,
                          Deadline deadline) override {
    return kernels_.costs(subject, configs, deadline);
  }
  void annotate(std::size_t subject, TuneResult& result) const override {
    kernels_.annotate(subject, result);
  }

 private:
  std::shared_ptr<FunctionDevice> device_;
  Builder& builder_;
  std::span<const Subject> subjects_;
  KernelTrials kernels_;
};

}  // namespace kiln::runtime
