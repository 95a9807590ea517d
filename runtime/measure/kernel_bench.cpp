#include "runtime/measure/kernel_bench.hpp"

#include <utility>

#include "runtime/device/map_arguments.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/measure/sampler.hpp"

namespace kiln::runtime {

namespace {

/// On a CPU, copies of the arguments that together exceed its last-level cache are hundreds of
/// megabytes: making them takes about as long. With less time left the caches stay warm.
constexpr double kSecondsForCopies = 0.5;

}  // namespace

struct KernelBench::KernelRig final : Rig {
  std::shared_ptr<Module> kernel;
  Launch launch;
  std::unique_ptr<MapArguments> maps;     ///< null: the entry takes what the workload has
  std::shared_ptr<ModuleData> variables;  ///< null: the workload has none
  bool watched = false;                   ///< it is known whether launches change the variables
  std::size_t launches = 0;               ///< of the replay
  std::size_t first_copy = 0;             ///< of the workload, in the replay
  std::shared_ptr<Replay> replay;

  bool recorded() const noexcept override { return replay != nullptr; }
  template <class F>
  void with(void** args, F&& use) const {
    maps ? maps->with(args, use) : use(args);
  }
  /// Whether each launch must find the variables as they were.
  bool refilled() const { return variables && (variables->changes() || !watched); }
};

KernelBench::KernelBench(std::shared_ptr<Device> device, DeviceWorkload& workload)
    : device_(std::move(device)), workload_(workload), stream_(device_->tuning_stream()) {}

std::variant<std::shared_ptr<Rig>, Refusal> KernelBench::load(const Trial& trial) {
  const auto& binary = *std::get<std::shared_ptr<const codegen::Binary>>(trial.code);
  const Launch& g = trial.launch;
  if (std::string why = resource_problem(binary.resources, g, device_->info().limits); !why.empty())
    return Refusal{CandidateStatus::exceeds_limits, std::move(why)};
  const auto rig = std::make_shared<KernelRig>();
  rig->launch = g;
  try {
    rig->kernel = device_->load(binary, g);
    if (!trial.maps.empty())
      rig->maps =
          std::make_unique<MapArguments>(*device_, trial.maps, trial.data->arguments.size());
    const int threads = static_cast<int>(g.block.x * g.block.y * g.block.z);
    if (device_->occupancy(*rig->kernel, threads, g.shared_bytes) == 0)
      return Refusal{CandidateStatus::exceeds_limits, "not one block fits a multiprocessor"};
    rig->variables = ModuleData::of(trial.variables, device_, rig->kernel);
  } catch (const Error& error) {
    return Refusal{CandidateStatus::launch_failed, error.what()};
  }
  return rig;
}

Verdict KernelBench::verify(Rig& rig) {
  auto& r = static_cast<KernelRig&>(rig);
  Verdict verdict = workload_.verify(stream_, [&] { launch_checked(r); });
  if (r.variables) r.variables->look_for_changes();
  r.watched = true;
  return verdict;
}

Verdict KernelBench::define(Rig& rig) {
  const auto& r = static_cast<const KernelRig&>(rig);
  return workload_.define(stream_, [&] { launch_checked(r); });
}

void KernelBench::launch_checked(const KernelRig& rig) {
  if (rig.variables) rig.variables->fill();
  rig.with(workload_.arguments(),
           [&](void** args) { device_->launch_checked(*rig.kernel, rig.launch, stream_, args); });
}

void KernelBench::keep_cold(bool cold, const TimeLimit& deadline) {
  const bool time_for_copies = !shares_cpu() || deadline.left() >= kSecondsForCopies;
  workload_.keep_cold(cold && time_for_copies);
}

std::size_t KernelBench::most_launches(const Rig& rig) const {
  return static_cast<const KernelRig&>(rig).refilled() ? 1 : workload_.most_launches();
}

double KernelBench::time(Rig& rig, std::size_t launches) {
  auto& r = static_cast<KernelRig&>(rig);
  Replay* const replay = launches == r.launches ? r.replay.get() : nullptr;
  const std::size_t first = replay ? r.first_copy : workload_.take(launches);
  if (r.refilled()) r.variables->fill();
  workload_.prepare(stream_, first, launches);
  return timed(*device_, stream_, [&] {
    if (replay)
      replay->run(stream_);
    else
      launch(r, first, launches);
  });
}

bool KernelBench::record(Rig& rig, std::size_t launches) {
  auto& r = static_cast<KernelRig&>(rig);
  r.launches = launches;
  r.first_copy = workload_.take(launches);
  r.replay = device_->capture(stream_, [&] { launch(r, r.first_copy, launches); });
  return r.replay != nullptr;
}

void KernelBench::forget_recording(Rig& rig) { static_cast<KernelRig&>(rig).replay.reset(); }

void KernelBench::launch(const KernelRig& rig, std::size_t first, std::size_t launches) {
  // A kernel that starts early hides its start behind another one of its own, which flatters it.
  Launch timed = rig.launch;
  timed.programmatic = timed.programmatic && overlap_;
  for (std::size_t i = 0; i < launches; ++i)
    rig.with(workload_.arguments(first + i),
             [&](void** args) { device_->launch(*rig.kernel, timed, stream_, args); });
}

std::shared_ptr<Module> KernelBench::module_of(const Rig& rig) const {
  const auto& kernel = static_cast<const KernelRig&>(rig).kernel;
  return device_->variables(*kernel).empty() ? kernel : nullptr;
}

}  // namespace kiln::runtime
