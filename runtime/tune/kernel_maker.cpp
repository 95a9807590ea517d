#include "runtime/tune/kernel_maker.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <future>
#include <utility>

#include <unistd.h>

#include "kiln/detail/format.hpp"
#include "runtime/build/compile_interrupted.hpp"
#include "runtime/device/loaded_modules.hpp"
#include "runtime/device/peer_access.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/draws_bench.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/tune/record.hpp"
#include "runtime/worker/isolated_bench.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// The seed of the data that a reference on the device is tried with.
constexpr std::uint64_t kSmallSeed = 1;

Trial trial_on(const ProblemBench& bench, const KernelDefinition& kernel, const Values& config,
               const detail::LaunchPlan& plan, const Build& build) {
  Trial trial{.code = std::get<std::shared_ptr<const codegen::Binary>>(build.outcome),
              .config = config,
              .text = kernel.space.describe(config),
              .plan = plan,
              .variables = variables_for(bench.data(0), config),
              .data = bench.data(0).trial};
  for (std::size_t draw = 1; draw < bench.draws(); ++draw)
    trial.further.push_back({variables_for(bench.data(draw), config), bench.data(draw).trial});
  return trial;
}

/// @param source of the kernel when its tuning began; nothing: it cannot be told
Build build_unedited(Builder& builder, const KernelDefinition& kernel, const Values& config,
                     const Target& target, const std::optional<Digest>& source) {
  Build build;
  try {
    build = builder.build(kernel, config, target);
  } catch (const CompileInterrupted& error) {  // the search goes on without it
    build.outcome = Missing{codegen::describe_instance(kernel, config), {}, {}, {}, error.what()};
  }
  const auto is_of = [&](const Digest& digest) {
    return !build.edited && build.key.value(codegen::kKernelSourceField) == to_hex(digest);
  };
  if (build.binary() && source && !is_of(*source))
    throw SourceEdited(format("kernel {}: its source was edited while it was tuned", kernel.name));
  return build;
}

/// What stands against a candidate, which `work` says or throws. What passes by itself leaves the
/// candidate to be tried later.
std::optional<Refusal> refusal_of(const std::function<std::optional<Refusal>()>& work) {
  try {
    return work();
  } catch (const OutOfMemory& error) {
    return Refusal{CandidateStatus::not_tried, error.what()};
  } catch (const MissingError& error) {
    return Refusal{CandidateStatus::not_tried, error.what()};
  } catch (const std::exception& error) {
    return Refusal{CandidateStatus::launch_failed,
                   *error.what() ? error.what() : "its trial cannot be made"};
  } catch (...) {
    return Refusal{CandidateStatus::launch_failed, kForeignException};
  }
}

}  // namespace

KernelMaker::KernelMaker(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                         std::shared_ptr<Device> device, Builder& builder, std::uint64_t seed,
                         std::shared_ptr<TrustedReferences> references, WorkerOptions worker)
    : kernel_(kernel),
      problem_(problem.begin(), problem.end()),
      device_(std::move(device)),
      builder_(builder),
      source_(builder.source_digest(kernel)),
      seed_(seed),
      references_(references ? std::move(references) : std::make_shared<TrustedReferences>()),
      worker_(std::move(worker)) {}

void KernelMaker::check() const {
  if (!kernel_.workload)
    throw UserError(
        format("kernel {}: `workload` is missing, so it cannot be tuned", kernel_.name));
  const DeviceInfo& device = device_->info();
  const Values config = subject().default_config(problem_, device.target, device.limits);
  if (empty(plan(config).launch))
    throw UserError(format("kernel {} for {}: the grid is empty, so there is nothing to tune",
                           kernel_.name, kernel_.describe_problem(problem_)));
}

detail::LaunchPlan KernelMaker::plan(const Values& config) const {
  return detail::plan(kernel_, config, problem_, device_->info().limits);
}

Build KernelMaker::build(const Values& config) {
  return build_unedited(builder_, kernel_, config, device_->info().target, source_);
}

std::optional<LastingBuilds> KernelMaker::lasting_builds() const {
  return LastingBuilds{builder_.crew(), [this](const Values& config) -> std::function<Build()> {
                         return [&builder = builder_, target = device_->info().target,
                                 source = source_, config,
                                 kernel = std::make_shared<const KernelDefinition>(
                                     codegen::definition_of_one(kernel_, config))] {
                           return build_unedited(builder, *kernel, config, target, source);
                         };
                       }};
}

std::variant<std::shared_ptr<Module>, Refusal> KernelMaker::load(const Values& config,
                                                                 const Build& build) {
  try {
    const detail::LaunchPlan planned = plan(config);
    return load_counted(*device_, *build.binary(), planned.launch, planned.steps);
  } catch (const OutOfMemory& error) {
    return Refusal{CandidateStatus::not_tried, error.what()};
  } catch (const Error& error) {
    if (device_->lost()) throw DeviceLost(error.what());
    return Refusal{CandidateStatus::launch_failed, error.what()};
  }
}

bool KernelMaker::isolate() {
  if (!IsolatedBench::opens(device_->info())) return false;
  if (!std::exchange(isolated_, true)) drop_bench();
  return true;
}

std::string KernelMaker::why_not_in_workers() const {
  if (!IsolatedBench::opens(device_->info()))
    return format("a worker opens host and CUDA devices, not {}", device_->info().id);
  if (::access(worker_.executable.c_str(), X_OK) != 0)
    return worker_.executable.string() + " is missing";
  return {};
}

void KernelMaker::isolate_in_step(const std::shared_ptr<Communicator>& ranks,
                                  const RankOptions& options) {
  drop_bench();
  ranks_ = ranks;
  GroupSeconds seconds{.exchange = options.step_seconds, .make = options.tune_seconds};
  seconds.candidate =
      worker_.candidate_seconds > 0 ? worker_.candidate_seconds : kLockstepCandidateSeconds;
  group_ = std::make_unique<WorkerGroup>(ranks, seconds);
  isolated_ = true;
}

void KernelMaker::give_up_workers(const std::string& why) {
  drop_bench();
  isolated_ = false;
  warnings_.push_back(format("candidates run in this process, not in workers: {}", why));
}

std::optional<Candidate> KernelMaker::measure_in_workers(const Values& config,
                                                         const TimingPolicy& timing) {
  if (!group_) return {};
  // The others are told of what fails on this rank alone.
  std::optional<Trial> trial;
  std::exception_ptr edited;  // ends the tuning, once all are through with this candidate
  const auto unless_edited = [&](std::optional<Candidate> candidate) {
    if (candidate && edited) std::rethrow_exception(edited);
    return candidate;
  };
  std::optional<Refusal> refusal = refusal_of([&]() -> std::optional<Refusal> {
    expect();
    try {
      trial = this->trial(config, build(config));
    } catch (const SourceEdited& error) {
      edited = std::current_exception();
      return Refusal{CandidateStatus::not_tried, error.what()};
    }
    trial->timing = timing;
    return {};
  });
  if (alone_) {
    if (!refusal)  // a lost device throws again at the next launch
      refusal = refusal_of([&]() -> std::optional<Refusal> {
        auto loaded = bench_->load(*trial);
        if (auto* refused = std::get_if<Refusal>(&loaded)) return std::move(*refused);
        return {};
      });
    return unless_edited(group_->meet(refusal, config));
  }
  const Refusal why = refusal.value_or(Refusal{CandidateStatus::launch_failed, why_alone_});
  auto* const bench = isolated_ ? static_cast<IsolatedBench*>(bench_.get()) : nullptr;
  if (!group_->begun())
    if (const std::string refused =
            group_->begin(bench, why_alone_.empty() ? why.reason : why_alone_);
        !refused.empty()) {
      alone_ = true;
      give_up_workers(refused);
      return measure_in_workers(config, timing);
    }
  Candidate candidate = group_->measure(bench, refusal ? nullptr : &*trial, why, config);
  if (!group_->lost().empty() && !std::exchange(lost_, true))
    warnings_.push_back(format("candidates are not tried: {}", group_->lost()));
  return unless_edited(std::move(candidate));
}

std::unique_ptr<ProblemBench> KernelMaker::isolated_bench(std::span<const std::int64_t> problem,
                                                          std::uint64_t seed) const {
  WorkerOptions worker = worker_;
  worker.reserve_bytes = device_->reserve();
  std::optional<LockstepPlace> lockstep;
  if (group_) {
    PeerAccess* const access = device_->peer_access();
    lockstep = LockstepPlace{ranks_->rank(), ranks_->size(), access ? &access->groups() : nullptr};
  }
  return std::make_unique<IsolatedBench>(kernel_, problem, device_->info(), seed, std::move(worker),
                                         lockstep);
}

std::unique_ptr<ProblemBench> KernelMaker::make_bench(std::span<const std::int64_t> problem,
                                                      std::uint64_t seed) {
  if (isolated_) try {
      return isolated_bench(problem, seed);
    } catch (const EnvironmentError& error) {
      const bool never = dynamic_cast<const CannotIsolate*>(&error) != nullptr;
      // What passes, such as a lack of memory for its data, must not bring candidates here.
      if (!never && !group_) throw BenchLost(error.what());
      isolated_ = false;
      if (group_)
        why_alone_ = error.what();  // a warning, once all ranks know
      else
        warnings_.push_back(
            format("candidates run in this process, not in a worker: {}", error.what()));
    }
  return std::make_unique<DrawsBench>(kernel_, problem, device_, seed, find_call_);
}

std::vector<KernelData> KernelMaker::take_drawn() {
  DrawnData::Draws drawn = std::move(drawn_);
  if (drawn.valid()) try {
      return drawn.get();
    } catch (...) {  // it throws the same again where it is caught
    }
  return {};
}

/// Data of written arrays count twice, because their results take as many bytes.
void KernelMaker::make_kept() {
  if (!memory_ || isolated_ || !draws_.empty()) return;
  std::vector<KernelData> made = take_drawn();
  if (made.empty()) made = make_draws(kernel_, problem_, seed_);
  std::int64_t bytes = 0;
  for (const KernelData& data : made)
    for (const Workload::Argument& argument : data.trial->arguments) {
      const auto size = static_cast<std::int64_t>(argument.bytes.size());
      bytes += argument.direction == Direction::in ? size : 2 * size;
    }
  if (memory_->take(bytes)) {
    kept_ = bytes;
    draws_ = std::move(made);
    return;
  }
  memory_.reset();
  std::promise<std::vector<KernelData>> drawn;
  drawn_ = drawn.get_future();
  drawn.set_value(std::move(made));
}

void KernelMaker::keep_expected() {
  if (kept_ == 0 || !memory_ || isolated_) return;
  for (std::size_t i = 0; i < draws_.size(); ++i) {
    const TrialData& trial = *bench_->data(i).trial;
    if (draws_[i].expected || !trial.expected_known) continue;
    std::vector<detail::HostArray> expected;
    for (const Workload::Argument& argument : trial.arguments) {
      const bool written = argument.pointer && argument.direction != Direction::in;
      expected.push_back(written ? argument.bytes : detail::HostArray());
    }
    draws_[i].expected =
        std::make_shared<const std::vector<detail::HostArray>>(std::move(expected));
  }
}

TrialBench& KernelMaker::bench() {
  if (!bench_) {
    open_bench();
    if (tell_ && !isolated_) {
      watched_ = std::make_unique<WatchedBench>(*bench_, worker_.candidate_seconds, tell_);
      watched_->when_overdue(also_tell_);
    }
  }
  if (watched_) return *watched_;
  return *bench_;
}

void KernelMaker::when_overdue(WatchedBench::Tell tell) {
  also_tell_ = std::move(tell);
  if (watched_) watched_->when_overdue(also_tell_);
}

void KernelMaker::open_bench() {
  make_kept();
  if (!isolated_)  // a worker's bench draws its own, and waits for no others
    if (std::vector<KernelData> drawn = take_drawn(); !drawn.empty()) {
      bench_ = std::make_unique<DrawsBench>(std::move(drawn), device_, find_call_);
      reference_tried_ = false;
      return;
    }
  const bool last = kept_ > 0 && !memory_;
  const bool expected = !draws_.empty() && draws_.front().expected;
  bench_ = draws_.empty() || isolated_
               ? make_bench(problem_, seed_)
               : std::make_unique<DrawsBench>(last ? std::move(draws_) : copies_of(draws_), device_,
                                              find_call_);
  // What is kept of it is what the reference has given, wherever that ran.
  reference_tried_ = kept_ > 0 && expected;
  if (last) draws_.clear();
  if (last) kept_ = 0;
}

void KernelMaker::expect() {
  bench();
  if (!std::exchange(reference_tried_, true)) try_device_reference();
  bench_->expect();
  keep_expected();
}

void KernelMaker::try_device_reference() {
  if (!kernel_.device_reference) return;
  // It takes what ranks share, and workers have that in launches of candidates alone.
  if (group_ && !alone_) {
    warnings_.emplace_back(
        "the reference on the host is used, not that on the device: candidates run in step in "
        "workers");
    return;
  }
  const Values small = kernel_.problem(kernel_.device_reference->problem);
  const bool larger = kernel_.flops ? kernel_.flops(problem_) > kernel_.flops(small)
                                    : !std::equal(small.begin(), small.end(), problem_.begin());
  if (!larger) return;
  std::string why;
  try {
    why = use_device_reference(small);
  } catch (const Error& error) {
    if (!isolated_ && device_->lost()) throw DeviceLost(error.what());
    why = error.what();
  }
  if (!why.empty())
    warnings_.push_back(
        format("the reference on the host is used, not that on the device: {}", why));
}

std::string KernelMaker::use_device_reference(std::span<const std::int64_t> small) {
  const DeviceReference& reference = *kernel_.device_reference;
  const KernelDefinition& code = reference.kernel ? *reference.kernel : kernel_;
  const Values config = code.space.parse(reference.config, device_->info().target);
  const std::string name = format("{} with {}", code.name, code.space.describe(config));
  const Build build = builder_.build(code, config, device_->info().target);
  if (const auto* failure = std::get_if<CompileFailure>(&build.outcome))
    return format("{} does not compile: {}", name, failure->log);
  if (!build.binary()) return format("{} is missing", name);
  const auto planned = [&](std::span<const std::int64_t> problem) {
    return detail::plan(code, config, problem, device_->info().limits);
  };
  const DeviceLimits& limits = device_->info().limits;
  for (const std::span<const std::int64_t> problem :
       {small, std::span<const std::int64_t>(problem_)}) {
    if (const Constraint* broken = code.space.violated(config, problem, limits))
      return format("{} for {} breaks a constraint: {}", name, code.describe_problem(problem),
                    broken->reason);
    if (const std::string why = planned(problem).obstacle(limits); !why.empty())
      return format("{} for {}: {}", name, code.describe_problem(problem), why);
  }
  const auto right_for_small = [&]() -> std::string {
    // Where the other bench has a worker, what cannot have one is not trusted.
    const auto bench =
        isolated_ ? isolated_bench(small, kSmallSeed) : make_bench(small, kSmallSeed);
    auto loaded = bench->load(trial_on(*bench, code, config, planned(small), build));
    if (auto* refusal = std::get_if<Refusal>(&loaded)) return refusal->reason;
    try {
      return bench->verify(*std::get<std::shared_ptr<Rig>>(loaded)).why;
    } catch (const BenchLost&) {
      throw;  // it says nothing about the reference
    } catch (const Error& error) {
      if (!isolated_ && device_->lost()) throw DeviceLost(error.what());
      return error.what();
    }
  };
  // The key is of this code, this way to make data and this device.
  const Key key = record_key(kernel_, small, device_->info(), {.kernel = build.key.digest});
  std::string why = references_->verdict(key.digest, right_for_small);
  if (!why.empty()) return format("{}, for {}: {}", name, kernel_.describe_problem(small), why);
  why = bench_->trust(trial_on(*bench_, code, config, planned(problem_), build));
  return why.empty() ? why : format("{}: {}", name, why);
}

std::vector<std::string> KernelMaker::take_warnings() {
  std::vector<std::string> all = std::exchange(warnings_, {});
  if (bench_)
    for (std::string& text : bench_->take_warnings()) all.push_back(std::move(text));
  return all;
}

void KernelMaker::drop_bench() noexcept {
  if (group_) group_->disband();
  watched_.reset();
  bench_.reset();
}

void KernelMaker::leave_device() noexcept {
  if (!left_) return;
  drop_bench();
  left_();
}

Trial KernelMaker::trial(const Values& config, const Build& build) {
  if (const auto* failure = std::get_if<CompileFailure>(&build.outcome))
    throw CompileError(*failure);
  if (const auto* missing = std::get_if<Missing>(&build.outcome)) throw MissingError(*missing);
  if (!std::holds_alternative<std::shared_ptr<const codegen::Binary>>(build.outcome))
    throw InternalError(format("kernel {} with {}: a trial needs a binary, and nothing was built",
                               kernel_.name, kernel_.space.describe(config)));
  bench();
  return trial_on(*bench_, kernel_, config, plan(config), build);
}

Trial KernelMaker::trial(Implementation code, const Values& config, std::string text) {
  bench();
  Trial trial{.code = std::move(code),
              .config = config,
              .text = std::move(text),
              .data = bench_->data(0).trial};
  for (std::size_t draw = 0; draw < bench_->draws(); ++draw) {
    const KernelData& data = bench_->data(draw);
    if (!data.variables.empty())
      throw UserError(format("kernel {}: its workload has variables, which calls cannot be given",
                             kernel_.name));
    if (draw > 0) trial.further.push_back({{}, data.trial});
  }
  return trial;
}

std::shared_ptr<Module> KernelMaker::module_of(const Rig& rig) {
  return bench_ ? bench_->module_of(watched_ ? WatchedBench::inner(rig) : rig) : nullptr;
}

}  // namespace kiln::runtime
