#include "runtime/function/trials.hpp"

#include <cmath>

#include "runtime/measure/statistics.hpp"

namespace kiln::runtime {

Candidate FunctionTrials::measure_in_step(std::size_t subject, const Values& config, Deadline) {
  const KernelDefinition& function = *subjects_[subject].kernel;
  const Build build = builder_.build(function, config, device_->info().target);
  const auto kernel = device_->load(*build.binary(), 0);
  Candidate candidate;
  candidate.config = config;
  const auto fails = [&](CandidateStatus status, const char* why) {
    if (candidate.status != CandidateStatus::not_tried) return;
    candidate.status = status;
    candidate.reason = why;
  };
  // The other ranks make every call, and may wait in it for this one's.
  const auto attempt = [&](const auto& call) {
    try {
      call();
    } catch (const WrongResult& wrong) {
      fails(CandidateStatus::wrong_result, wrong.what());
    } catch (const std::exception& error) {
      fails(CandidateStatus::launch_failed, error.what());
    }
  };
  attempt([&] { device_->try_call(*kernel); });
  for (int i = -KernelTrials::kWarmUp; i < KernelTrials::kRepeats; ++i)
    attempt([&] {
      const double seconds = device_->time_call(*kernel);
      if (!(seconds > 0) || !std::isfinite(seconds))
        throw EnvironmentError("the device's clock did not advance over a call");
      if (i >= 0) candidate.samples.push_back(seconds);
    });
  if (candidate.status == CandidateStatus::not_tried) {
    candidate.status = CandidateStatus::measured;
    candidate.seconds = median(candidate.samples);
    return candidate;
  }
  candidate.samples.clear();
  if (device_->lost()) throw DeviceLost(candidate.reason);
  return candidate;
}

}  // namespace kiln::runtime
