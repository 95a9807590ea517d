#include "runtime/worker/isolated_bench.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/cuda/driver.hpp"
#include "runtime/device/cuda/sharing.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/verify.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/worker/link.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Outputs come back in messages of this size.
constexpr std::size_t kPiece = std::size_t{32} << 20;

WorkerDevice device_for_worker(const DeviceInfo& device, std::uint64_t reserve_bytes) {
  if (device.id == "host") return {.reserve_bytes = reserve_bytes};
  if (!IsolatedBench::opens(device))
    throw CannotIsolate(format("a worker opens host and CUDA devices, not {}", device.id));
  const CudaProbe cuda = probe_cuda();
  if (cuda.devices == 0) throw CannotIsolate(cuda.reason);
  try {
    const int ordinal = std::atoi(device.id.c_str() + 5);
    return {false, cuda_place(*cuda.driver, ordinal), device.limits.reserved_multiprocessors,
            reserve_bytes};
  } catch (const EnvironmentError& error) {
    throw CannotIsolate(error.what());
  }
}

/// Arguments whose addresses are of symmetric memory, which the worker has of its own.
struct SharedArguments {
  std::vector<PeerShape> groups;
  std::vector<std::uint64_t> numbers;  ///< of these, in this process
  std::vector<std::vector<ArgumentPlace>> places;

  int index_of(const PeerGroups::Found& found) {
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (numbers[i] == found.group) return static_cast<int>(i);
    numbers.push_back(found.group);
    groups.push_back(found.shape);
    return static_cast<int>(groups.size() - 1);
  }
};

/// Another process cannot reach the memory that a pointer of the program's leads to.
/// @param places of the data
SharedArguments shared_arguments(const KernelDefinition& kernel,
                                 const std::vector<KernelData>& draws,
                                 std::vector<std::vector<ArgumentPlace>> places,
                                 const std::optional<LockstepPlace>& lockstep) {
  SharedArguments shared{.groups = {}, .numbers = {}, .places = std::move(places)};
  for (std::size_t draw = 0; draw < draws.size(); ++draw)
    for (std::size_t i = 0; i < shared.places[draw].size(); ++i) {
      const Workload::Argument& argument = draws[draw].trial->arguments[i];
      if (!argument.address) continue;
      const void* address = nullptr;
      std::memcpy(&address, argument.bytes.data(), sizeof address);
      std::optional<PeerGroups::Found> found;
      if (lockstep && lockstep->known) found = lockstep->known->find(address, lockstep->rank);
      if (!found)
        throw CannotIsolate(format("kernel {} takes memory of this process", kernel.name));
      if (found->shape.ranks != lockstep->ranks)
        throw CannotIsolate(format("the symmetric memory of kernel {} has {} ranks, and {} tune it",
                                   kernel.name, found->shape.ranks, lockstep->ranks));
      shared.places[draw][i].group = shared.index_of(*found);
      shared.places[draw][i].in_group = found->place;
    }
  return shared;
}

std::vector<std::byte> number(std::uint64_t value) { return FieldWriter().integer(value).finish(); }

}  // namespace

struct IsolatedBench::IsolatedRig final : Rig, WorkerRig {
  bool recorded() const noexcept override { return WorkerRig::recorded > 0; }
};

struct IsolatedBench::State {
  State(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
        const DeviceInfo& device, std::uint64_t seed, WorkerOptions options,
        const std::optional<LockstepPlace>& lockstep)
      : draws(make_draws(kernel, problem, seed)),
        data(draws),
        shared(shared_arguments(kernel, draws, data.places(), lockstep)),
        link(device,
             {.device = device_for_worker(device, options.reserve_bytes),
              .expects = static_cast<bool>(kernel.reference),
              .checks = static_cast<bool>(kernel.check),
              .draws = draws,
              .places = shared.places,
              .in_step = lockstep.has_value(),
              .groups = shared.groups},
             data, options,
             [this](Ask what, std::uint64_t draw, std::span<const std::byte> answer) {
               return take_verdict(what, draw, answer);
             }) {
    if (!kernel.reference) drop_contents();
  }

  bool checks() const { return static_cast<bool>(draws.front().judge.check); }
  /// The worker has them; this process needs them for its own functions alone.
  void drop_contents() {
    if (checks()) return;
    for (const KernelData& draw : draws)
      for (Workload::Argument& argument : draw.trial->arguments) argument.bytes = {};
  }

  Verdict take_verdict(Ask what, std::size_t draw, std::span<const std::byte> answer);
  Verdict judge(std::size_t draw, const std::string& name);
  void take_definition(std::size_t draw);
  void forget_definitions();
  detail::HostArray outputs(std::size_t draw, std::size_t argument, bool defined);

  std::vector<KernelData> draws;
  SharedData data;
  const SharedArguments shared;
  WorkerLink link;
  /// Verdicts of the program's check, by worker, draw and the worker's name for the outputs.
  std::map<std::tuple<std::uint64_t, std::size_t, std::string>, Verdict> judged;
};

IsolatedBench::IsolatedBench(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                             const DeviceInfo& device, std::uint64_t seed, WorkerOptions options,
                             const std::optional<LockstepPlace>& lockstep)
    : state_(std::make_unique<State>(kernel, problem, device, seed, std::move(options), lockstep)) {
}

IsolatedBench::~IsolatedBench() = default;

bool IsolatedBench::opens(const DeviceInfo& device) {
  return device.id == "host" || device.id.starts_with("cuda:");
}

std::size_t IsolatedBench::draws() const noexcept { return state_->draws.size(); }
const KernelData& IsolatedBench::data(std::size_t draw) const noexcept {
  return state_->draws[draw];
}
bool IsolatedBench::shares_cpu() const noexcept { return state_->link.shares_cpu(); }
WorkerLink& IsolatedBench::link() noexcept { return state_->link; }
const std::vector<PeerShape>& IsolatedBench::groups() const noexcept {
  return state_->shared.groups;
}

bool IsolatedBench::checks() const noexcept { return state_->checks(); }

bool IsolatedBench::knows_results() const noexcept {
  const Judge& judge = state_->draws.front().judge;
  return judge.reference || judge.check;
}

void IsolatedBench::expect() {
  bool computed = false;
  for (std::size_t draw = 0; draw < draws(); ++draw) {
    const KernelData& data = state_->draws[draw];
    if (data.trial->expected_known || !data.judge.reference) continue;
    std::vector<void*> args;
    for (Workload::Argument& argument : data.trial->arguments)
      args.push_back(argument.bytes.data());
    data.judge.reference(args);
    const auto& places = state_->data.places()[draw];
    for (std::size_t i = 0; i < places.size(); ++i) {
      Workload::Argument& argument = data.trial->arguments[i];
      if (argument.direction != Direction::in)
        state_->data.write(places[i].expected, argument.bytes);
      else  // a reference may have used its inputs as scratch
        state_->data.read(places[i].given, argument.bytes);
    }
    computed = data.trial->expected_known = true;
  }
  if (computed) state_->drop_contents();
}

std::variant<std::shared_ptr<Rig>, Refusal> IsolatedBench::load(const Trial& trial) {
  const auto rig = std::make_shared<IsolatedRig>();
  rig->trial = trial;
  try {
    if (auto refusal = state_->link.load(*rig)) return *std::move(refusal);
  } catch (const TrialFault& fault) {
    return Refusal{fault.status(), fault.what()};
  } catch (const OutOfMemory& error) {
    return Refusal{CandidateStatus::not_tried, error.what()};
  } catch (const BrokenFrame& broken) {
    return Refusal{CandidateStatus::launch_failed, broken.what()};
  }
  return rig;
}

Verdict IsolatedBench::verify(Rig& rig) {
  expect();
  auto& r = static_cast<IsolatedRig&>(rig);
  Verdict verdict =
      verify_each([&](std::size_t draw) { return state_->link.verify(r, Ask::verify, draw); });
  r.verified = verdict.right;
  return verdict;
}

Verdict IsolatedBench::State::take_verdict(Ask what, std::size_t draw,
                                           std::span<const std::byte> answer) {
  const auto [verdict, kept] = read_answer(answer, [&](FieldReader& fields) {
    Verdict said = get_verdict(fields);
    const bool has_kept = what == Ask::verify && fields.integer() != 0;
    return std::pair(std::move(said), has_kept);
  });
  if (kept) return judge(draw, verdict.why);
  const bool defines = what == Ask::define || (!draws[draw].trial->expected_known && !checks());
  if (verdict.right && defines) take_definition(draw);
  return verdict;
}

/// What the program's own function says of outputs that the worker keeps. Each of the worker's
/// outputs is judged while they are the latest, because it keeps no others.
Verdict IsolatedBench::State::judge(std::size_t draw, const std::string& name) {
  const auto key = std::tuple(link.generation(), draw, name);
  std::erase_if(judged,
                [&](const auto& one) { return std::get<0>(one.first) != link.generation(); });
  if (const auto known = judged.find(key); known != judged.end()) return known->second;
  std::vector<Workload::Argument>& arguments = draws[draw].trial->arguments;
  std::vector<detail::HostArray> kept(arguments.size());
  std::vector<void*> got, expected;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    expected.push_back(arguments[i].bytes.data());
    if (arguments[i].direction != Direction::in) kept[i] = outputs(draw, i, false);
    got.push_back(arguments[i].direction != Direction::in ? kept[i].data() : expected[i]);
  }
  std::string why;
  const auto begin = Clock::now();
  try {
    why = draws[draw].judge.check(got, expected);
  } catch (const std::exception& error) {
    why = format("the kernel's `check` threw an exception: {}", error.what());
  } catch (...) {
    why = kForeignException;
  }
  link.put_off_answers(std::chrono::duration<double>(Clock::now() - begin).count());
  Verdict verdict;
  if (!why.empty())
    verdict = {false, std::numeric_limits<double>::infinity(), why};
  else if (const TrialData& trial = *draws[draw].trial; trial.expected_known)
    verdict = judge_norms(arguments, got, trial.tolerance);
  return judged.emplace(key, std::move(verdict)).first->second;
}

/// Takes what a launch has defined as right: later workers must know it, too, and so must the
/// program's check.
void IsolatedBench::State::take_definition(std::size_t draw) {
  TrialData& trial = *draws[draw].trial;
  const auto& places = data.places()[draw];
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (trial.arguments[i].direction == Direction::in) continue;
    detail::HostArray defined = outputs(draw, i, true);
    data.write(places[i].expected, defined);
    if (checks()) trial.arguments[i].bytes = std::move(defined);
  }
  trial.expected_known = true;
}

void IsolatedBench::State::forget_definitions() {
  for (std::size_t draw = 0; draw < draws.size(); ++draw) {
    TrialData& trial = *draws[draw].trial;
    trial.expected_known = false;
    const auto& places = data.places()[draw];
    for (std::size_t i = 0; i < places.size(); ++i)
      if (trial.arguments[i].direction != Direction::in)
        data.read(places[i].given, trial.arguments[i].bytes);
  }
  link.ask(Ask::forget);
}

detail::HostArray IsolatedBench::State::outputs(std::size_t draw, std::size_t argument,
                                                bool defined) {
  const Workload::Argument& a = draws[draw].trial->arguments[argument];
  const std::size_t size = a.count * a.element_bytes;
  detail::HostArray all;
  all.reserve(size);
  while (all.size() < size) {
    FieldWriter wanted;
    wanted.integer(draw).integer(argument).integer(defined ? 1 : 0).integer(all.size());
    wanted.integer(std::min(kPiece, size - all.size()));
    read_answer(link.ask_now(Ask::outputs, wanted.finish()), [&](FieldReader& fields) {
      const auto piece = fields.bytes();
      all.insert(all.end(), piece.begin(), piece.end());
      if (piece.empty()) throw BrokenFrame("no outputs");
    });
  }
  return all;
}

std::string IsolatedBench::trust(const Trial& trial) {
  std::string why;
  try {
    auto loaded = load(trial);
    if (auto* refusal = std::get_if<Refusal>(&loaded)) return refusal->reason;
    auto& rig = static_cast<IsolatedRig&>(*std::get<std::shared_ptr<Rig>>(loaded));
    for (std::size_t draw = 0; draw < draws() && why.empty(); ++draw)
      why = of_draw(draw, state_->link.verify(rig, Ask::define, draw).why);
  } catch (const Error& error) {
    why = error.what();
  }
  if (why.empty())
    state_->drop_contents();
  else
    state_->forget_definitions();
  return why;
}

void IsolatedBench::keep_cold(bool cold, const TimeLimit& deadline) {
  state_->link.keep_cold(cold, deadline);
}

void IsolatedBench::let_overlap(bool overlap) { state_->link.let_overlap(overlap); }

std::size_t IsolatedBench::most_launches(const Rig& rig) const {
  // The worker knows, and may have to be started anew to be asked.
  auto& r = const_cast<IsolatedRig&>(static_cast<const IsolatedRig&>(rig));
  const std::vector<std::byte> answer = state_->link.ask(r, Ask::most_launches);
  return read_answer(answer, [](FieldReader& fields) { return fields.integer(); });
}

double IsolatedBench::time(Rig& rig, std::size_t launches) {
  const std::vector<std::byte> answer =
      state_->link.ask(static_cast<IsolatedRig&>(rig), Ask::time, number(launches));
  return read_answer(answer, [](FieldReader& fields) { return get<double>(fields); });
}

bool IsolatedBench::record(Rig& rig, std::size_t launches) {
  auto& r = static_cast<IsolatedRig&>(rig);
  const std::vector<std::byte> answer = state_->link.ask(r, Ask::record, number(launches));
  const bool recorded =
      read_answer(answer, [](FieldReader& fields) { return fields.integer() != 0; });
  r.WorkerRig::recorded = recorded ? launches : 0;
  return recorded;
}

void IsolatedBench::forget_recording(Rig& rig) {
  state_->link.forget_recording(static_cast<IsolatedRig&>(rig));
}

std::string IsolatedBench::repair() { return state_->link.repair(); }

bool IsolatedBench::take_unchecked() noexcept { return state_->link.take_unchecked(); }

std::vector<std::string> IsolatedBench::take_warnings() { return state_->link.take_warnings(); }

}  // namespace kiln::runtime
