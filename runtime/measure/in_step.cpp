#include <algorithm>
#include <exception>
#include <utility>

#include "runtime/device/device.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/measure/statistics.hpp"

namespace kiln::runtime {

Candidate measure_in_step(TrialBench& bench, const Trial& trial, const Values& config,
                          GuardedLaunches& launches) {
  auto loaded = bench.load(trial);
  if (const auto* refusal = std::get_if<Refusal>(&loaded)) throw EnvironmentError(refusal->reason);
  return measure_in_step(bench, *std::get<std::shared_ptr<Rig>>(loaded), trial.timing, config,
                         launches);
}

Candidate measure_in_step(TrialBench& bench, Rig& rig, const TimingPolicy& timing,
                          const Values& config, GuardedLaunches& launches) {
  Candidate candidate;
  candidate.config = config;
  bool failed = false;
  const auto fails = [&](CandidateStatus status, const std::string& why) {
    if (std::exchange(failed, true)) return;
    candidate.status = status;
    candidate.reason = why;
  };
  const auto attempt = [&](const auto& launch) {
    try {
      launch();
    } catch (const GivenUp& why) {
      fails(CandidateStatus::hung, why.what());
    } catch (const TrialFault& fault) {
      fails(fault.status(), fault.what());
    } catch (const OutOfMemory& error) {
      fails(CandidateStatus::not_tried, error.what());  // there may be more another time
    } catch (const std::exception& error) {
      fails(CandidateStatus::launch_failed, error.what());
    }
  };
  struct InStep {
    InStep(TrialBench& of, GuardedLaunches& launches) : bench(of) { bench.keep_in_step(&launches); }
    ~InStep() { bench.keep_in_step(nullptr); }
    TrialBench& bench;
  } const in_step(bench, launches);
  bench.keep_cold(timing.cold_cache);
  bench.let_overlap(timing.overlap_launches);
  if (timing.verify && bench.knows_results())
    attempt([&] {
      const Verdict verdict = bench.verify(rig);
      candidate.max_error = verdict.max_error;
      candidate.norm_error = verdict.norm_error;
      if (!verdict.right) fails(CandidateStatus::wrong_result, verdict.why);
    });
  std::size_t in_a_row = timing.in_a_row;
  if (in_a_row > 1) attempt([&] { in_a_row = std::min(in_a_row, bench.most_launches(rig)); });
  for (int i = 0; i < timing.warm_up; ++i) attempt([&] { bench.time(rig, in_a_row); });
  if (timing.replay && in_a_row > 1) {
    attempt([&] { bench.record(rig, in_a_row); });
    attempt([&] { bench.time(rig, in_a_row); });  // the first replay pays for its upload
  }
  for (int i = 0; i < timing.launches; ++i)
    attempt([&] {
      const double seconds = bench.time(rig, in_a_row);
      candidate.samples.push_back(seconds / static_cast<double>(in_a_row));
    });
  bench.forget_recording(rig);
  attempt([&] {
    if (const std::string damage = bench.repair(); !damage.empty())
      fails(CandidateStatus::wrong_result, damage);
  });
  if (const auto failure = launches.failure()) std::rethrow_exception(failure);
  if (!failed) {
    candidate.status = CandidateStatus::measured;
    candidate.seconds = median(candidate.samples);
    return candidate;
  }
  candidate.samples.clear();
  if (bench.lost()) throw DeviceLost(candidate.reason);
  return candidate;
}

}  // namespace kiln::runtime
