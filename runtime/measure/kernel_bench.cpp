#include "runtime/measure/kernel_bench.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/loaded_modules.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/measure/sampler.hpp"
#include "runtime/measure/statistics.hpp"
#include "runtime/measure/translated.hpp"
#include "runtime/measure/trial_kernel.hpp"
#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

namespace {

/// On a CPU, copies of the arguments that together exceed its last-level cache are hundreds of
/// megabytes: making them takes about as long. With less time left the caches stay warm.
constexpr double kSecondsForCopies = 0.5;
/// Bytes per thread. The CUDA driver has allocated them for each thread that fits the device, and
/// allocates more at a launch that needs more (cuCtxSetLimit, CU_LIMIT_STACK_SIZE).
constexpr int kStackThatIsThere = 1024;
/// Calls of which the host's time is taken, and seconds after which there are enough of them.
constexpr std::size_t kHostCalls = 7;
constexpr double kHostSeconds = 2e-3;

}  // namespace

struct KernelBench::KernelRig final : Rig {
  std::shared_ptr<Module> module;
  std::shared_ptr<TrialKernel> kernel;
  ImplementationCall call;  ///< in the place of module and kernel
  bool recordable = true;
  std::string numerics, text;             ///< of a call
  std::shared_ptr<ModuleData> variables;  ///< null: the workload has none
  bool watched = false;                   ///< it is known whether launches change the variables
  std::size_t launches = 0;               ///< of the replay
  std::size_t first_copy = 0;             ///< of the workload, in the replay
  std::shared_ptr<Replay> replay;

  bool recorded() const noexcept override { return replay != nullptr; }
  bool is_call() const noexcept override { return static_cast<bool>(call); }
  /// Whether each launch must find the variables as they were.
  bool refilled() const { return variables && (variables->changes() || !watched); }
};

KernelBench::KernelBench(std::shared_ptr<Device> device, DeviceWorkload& workload,
                         FindCall find_call)
    : device_(std::move(device)),
      workload_(workload),
      find_call_(std::move(find_call)),
      stream_(device_->tuning_stream()) {}

/// Bytes of device memory that the module takes by itself.
std::uint64_t KernelBench::own_bytes(const codegen::Binary& binary) const {
  if (shares_cpu()) return 0;
  int stack = binary.resources.stack;
  for (const codegen::BinaryEntry& step : binary.steps)
    stack = std::max(stack, step.resources.stack);
  const DeviceLimits& limits = device_->info().limits;
  const std::uint64_t threads = static_cast<std::uint64_t>(limits.multiprocessors) *
                                static_cast<std::uint64_t>(limits.max_threads_per_multiprocessor);
  const std::uint64_t stacks =
      stack > kStackThatIsThere ? threads * static_cast<std::uint64_t>(stack) : 0;
  return taken_by(*device_, binary.code.size()) + stacks;
}

std::variant<std::shared_ptr<Rig>, Refusal> KernelBench::load(const Trial& trial) {
  if (const auto* called = std::get_if<Implementation>(&trial.code)) {
    if (!find_call_)
      throw InternalError(
          detail::format("{} is an implementation, and the bench has none", called->name));
    const auto rig = std::make_shared<KernelRig>();
    rig->call = find_call_(trial.config);
    rig->recordable = called->recordable;
    rig->numerics = called->numerics;
    rig->text = trial.text;
    return rig;
  }
  const auto& binary = *std::get<std::shared_ptr<const codegen::Binary>>(trial.code);
  const detail::LaunchPlan& plan = trial.plan;
  if (std::string why =
          resource_obstacle(resources_of_entries(binary), plan, device_->info().limits);
      !why.empty())
    return Refusal{CandidateStatus::exceeds_limits, std::move(why)};
  const auto rig = std::make_shared<KernelRig>();
  try {
    require_spare(*device_, "its code and its threads' stacks", own_bytes(binary));
    rig->module = load_counted(*device_, binary, plan.launch, plan.steps);
    const auto fits = [&](const Module& entry, const Launch& g) {
      const int threads = static_cast<int>(g.block.x * g.block.y * g.block.z);
      return device_->occupancy(entry, threads, g.shared_bytes) > 0;
    };
    if (!fits(*rig->module, plan.launch))
      return Refusal{CandidateStatus::exceeds_limits, "not one block fits a multiprocessor"};
    for (std::size_t i = 0; i < plan.steps.size(); ++i)
      if (!empty(plan.steps[i]) && !fits(rig->module->step(i), plan.steps[i]))
        return Refusal{CandidateStatus::exceeds_limits,
                       step_obstacle(plan.step_names.at(i), "not one block fits a multiprocessor")};
    rig->kernel = std::make_shared<TrialKernel>(device_, rig->module, plan,
                                                workload_.data().trial->arguments.size());
    rig->variables = ModuleData::of(trial.variables, device_, rig->module);
  } catch (const OutOfMemory& error) {
    return Refusal{CandidateStatus::not_tried, error.what()};
  } catch (const Error& error) {
    if (device_->lost()) throw DeviceLost(error.what());  // by another launch than this trial's
    return Refusal{CandidateStatus::launch_failed, error.what()};
  }
  std::erase_if(loaded_, [](const auto& kernel) { return kernel.expired(); });
  if (plan.workspace) loaded_.push_back(rig->kernel);
  return rig;
}

Verdict KernelBench::verify(Rig& rig) {
  auto& r = static_cast<KernelRig&>(rig);
  Verdict verdict;
  if (in_step_) {
    const auto launch = [&] {
      launch_checked(r);
      device_->synchronize(stream_);
    };
    in_step_->share_failure(
        [&] { verdict = workload_.verify(stream_, [&] { in_step_->run(launch); }); });
  } else {
    verdict = workload_.verify(stream_, [&] { launch_checked(r); });
  }
  if (r.variables) r.variables->look_for_changes();
  r.watched = true;
  if (verdict.right && !r.numerics.empty()) hold_to_class(r, verdict);
  return verdict;
}

/// The first of a class to be right, as a rule the default, says which bits it has.
void KernelBench::hold_to_class(const KernelRig& rig, Verdict& verdict) {
  auto digests = workload_.output_digests(DeviceWorkload::Digests::always);
  const auto [known, first] = classes_.try_emplace(rig.numerics, rig.text, digests);
  if (first || known->second.digests == digests) return;
  verdict.right = false;
  verdict.why = detail::format(
      "its results differ in bits from those of {}, which states the same "
      "numerics class, {}",
      known->second.first, rig.numerics);
}

Verdict KernelBench::define(Rig& rig) {
  const auto& r = static_cast<const KernelRig&>(rig);
  return workload_.define(stream_, [&] { launch_checked(r); });
}

void KernelBench::launch_checked(const KernelRig& rig) {
  if (rig.call) return translated([&] { rig.call(stream_, workload_.arguments()); });
  if (rig.variables) rig.variables->fill();
  rig.kernel->launch_checked(stream_, workload_.arguments());
}

void KernelBench::keep_cold(bool cold, const TimeLimit& deadline) {
  const bool time_for_copies = !shares_cpu() || deadline.left() >= kSecondsForCopies;
  workload_.keep_cold(cold && time_for_copies);
}

std::size_t KernelBench::most_launches(const Rig& rig) const {
  return static_cast<const KernelRig&>(rig).refilled() ? 1 : workload_.most_launches();
}

double KernelBench::time(Rig& rig, std::size_t launches) {
  const auto& r = static_cast<const KernelRig&>(rig);
  if (!in_step_) return sample(r, launches);
  double seconds = 0;
  in_step_->run([&] { seconds = sample(r, launches); });
  return seconds;
}

double KernelBench::sample(const KernelRig& rig, std::size_t launches) {
  Replay* const replay = launches == rig.launches ? rig.replay.get() : nullptr;
  const std::size_t first = replay ? rig.first_copy : workload_.take(launches);
  if (rig.refilled()) rig.variables->fill();
  workload_.prepare(stream_, first, launches);
  if (in_step_) wait_for_ranks(*device_, stream_);
  return timed(*device_, stream_, [&] {
    if (replay)
      replay->run(stream_);
    else
      launch(rig, first, launches);
  });
}

bool KernelBench::record(Rig& rig, std::size_t launches) {
  auto& r = static_cast<KernelRig&>(rig);
  if (!r.recordable) return false;
  r.launches = launches;
  r.first_copy = workload_.take(launches);
  r.replay = device_->capture(stream_, [&] { launch(r, r.first_copy, launches); });
  return r.replay != nullptr;
}

double KernelBench::host_seconds(Rig& rig) {
  const auto& r = static_cast<const KernelRig&>(rig);
  if (!r.call || shares_cpu()) return 0;
  std::vector<double> calls;
  for (double all = 0; calls.size() < kHostCalls && all < kHostSeconds; all += calls.back()) {
    const std::size_t copy = workload_.take(1);
    workload_.prepare(stream_, copy, 1);
    device_->synchronize(stream_);
    const auto start = Clock::now();
    launch(r, copy, 1);
    calls.push_back(seconds_since(start));
  }
  device_->synchronize(stream_);
  return median(calls);
}

std::string KernelBench::repair() {
  std::string first = workload_.repair();
  for (const auto& loaded : loaded_)
    if (const auto kernel = loaded.lock())
      if (std::string found = kernel->repair(); first.empty()) first = std::move(found);
  return first;
}

void KernelBench::forget_recording(Rig& rig) { static_cast<KernelRig&>(rig).replay.reset(); }

void KernelBench::launch(const KernelRig& rig, std::size_t first, std::size_t launches) {
  if (rig.call)
    return translated([&] {
      for (std::size_t i = 0; i < launches; ++i) rig.call(stream_, workload_.arguments(first + i));
    });
  for (std::size_t i = 0; i < launches; ++i)
    rig.kernel->launch(stream_, workload_.arguments(first + i), overlap_);
}

std::shared_ptr<Module> KernelBench::module_of(const Rig& rig) const {
  const auto& module = static_cast<const KernelRig&>(rig).module;
  return module && device_->variables(*module).empty() ? module : nullptr;
}

}  // namespace kiln::runtime
