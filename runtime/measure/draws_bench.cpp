#include "runtime/measure/draws_bench.hpp"

#include <algorithm>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/device/spare_memory.hpp"

namespace kiln::runtime {

struct DrawsBench::DrawsRig final : Rig {
  std::vector<std::shared_ptr<Rig>> of;  ///< by draw

  bool recorded() const noexcept override { return of.front()->recorded(); }
  bool is_call() const noexcept override { return of.front()->is_call(); }
};

Rig& DrawsBench::first_of(Rig& rig) { return *static_cast<DrawsRig&>(rig).of.front(); }

DrawsBench::DrawsBench(const KernelDefinition& kernel, std::span<const std::int64_t> problem,
                       std::shared_ptr<Device> device, std::uint64_t seed,
                       const FindCall& find_call)
    : DrawsBench(make_draws(kernel, problem, seed), std::move(device), find_call) {}

DrawsBench::DrawsBench(std::vector<KernelData> draws, std::shared_ptr<Device> device,
                       const FindCall& find_call)
    : device_(std::move(device)) {
  std::uint64_t bytes = 0;
  for (const KernelData& data : draws) bytes += DeviceWorkload::taken(*device_, data);
  require_spare(*device_, draws.front().trial->subject + ": its arrays", bytes);
  for (KernelData& data : draws)
    draws_.push_back(std::make_unique<Draw>(std::move(data), device_, find_call));
}

std::vector<std::string> DrawsBench::take_warnings() {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < draws_.size(); ++i)
    for (std::string& text : draws_[i]->workload.take_warnings())
      all.push_back(of_draw(i, std::move(text)));
  return all;
}

void DrawsBench::expect() {
  for (const auto& draw : draws_) draw->workload.expect();
}

std::string DrawsBench::trust(const Trial& trial) {
  std::string why;
  try {
    auto loaded = load(trial);
    if (auto* refusal = std::get_if<Refusal>(&loaded)) return refusal->reason;
    Rig& rig = *std::get<std::shared_ptr<Rig>>(loaded);
    for (std::size_t i = 0; i < draws_.size() && why.empty(); ++i)
      why = of_draw(i, define(rig, i).why);
  } catch (const DeviceLost&) {
    throw;
  } catch (const Error& error) {
    if (lost()) throw DeviceLost(error.what());
    why = error.what();
  }
  if (!why.empty()) forget();
  return why;
}

Verdict DrawsBench::define(Rig& rig, std::size_t draw) {
  return draws_[draw]->bench.define(*static_cast<DrawsRig&>(rig).of[draw]);
}

void DrawsBench::forget() {
  for (const auto& draw : draws_) draw->workload.forget();
}

std::variant<std::shared_ptr<Rig>, Refusal> DrawsBench::load(const Trial& trial) {
  const auto rig = std::make_shared<DrawsRig>();
  for (std::size_t i = 0; i < draws_.size(); ++i) {
    std::variant<std::shared_ptr<Rig>, Refusal> loaded;
    if (i == 0) {
      loaded = draws_[i]->bench.load(trial);
    } else {
      const Trial further{.code = trial.code,
                          .config = trial.config,
                          .text = trial.text,
                          .plan = trial.plan,
                          .variables = trial.further[i - 1].variables,
                          .data = trial.further[i - 1].data,
                          .timing = trial.timing};
      loaded = draws_[i]->bench.load(further);
    }
    if (auto* refusal = std::get_if<Refusal>(&loaded)) return std::move(*refusal);
    rig->of.push_back(std::get<std::shared_ptr<Rig>>(std::move(loaded)));
  }
  return rig;
}

Verdict DrawsBench::verify(Rig& rig) {
  expect();
  return verify_each([&](std::size_t draw) { return verify(rig, draw); });
}

Verdict DrawsBench::verify(Rig& rig, std::size_t draw) {
  return draws_[draw]->bench.verify(*static_cast<DrawsRig&>(rig).of[draw]);
}

void DrawsBench::keep_cold(bool cold, const TimeLimit& deadline) {
  for (const auto& draw : draws_) draw->bench.keep_cold(cold, deadline);
}

void DrawsBench::keep_in_step(GuardedLaunches* launches) {
  ProblemBench::keep_in_step(launches);
  for (const auto& draw : draws_) draw->bench.keep_in_step(launches);
}

void DrawsBench::let_overlap(bool overlap) {
  for (const auto& draw : draws_) draw->bench.let_overlap(overlap);
}

std::size_t DrawsBench::most_launches(const Rig& rig) const {
  const auto& r = static_cast<const DrawsRig&>(rig);
  std::size_t most = draws_.front()->bench.most_launches(*r.of.front());
  for (std::size_t i = 1; i < draws_.size(); ++i)
    most = std::min(most, draws_[i]->bench.most_launches(*r.of[i]));
  return most;
}

double DrawsBench::time(Rig& rig, std::size_t launches) {
  auto& r = static_cast<DrawsRig&>(rig);
  if (draws_.size() == 1) return draws_.front()->bench.time(*r.of.front(), launches);
  double seconds = 0, weights = 0;
  for_each_draw([&](std::size_t i) {
    const double weight = data(i).trial->weight;
    seconds += weight * draws_[i]->bench.time(*r.of[i], launches);
    weights += weight;
  });
  return seconds / weights;
}

bool DrawsBench::record(Rig& rig, std::size_t launches) {
  auto& r = static_cast<DrawsRig&>(rig);
  bool recorded = true;
  for (std::size_t i = 0; i < draws_.size() && recorded; ++i)
    recorded = draws_[i]->bench.record(*r.of[i], launches);
  if (!recorded) forget_recording(rig);
  return recorded;
}

void DrawsBench::forget_recording(Rig& rig) {
  auto& r = static_cast<DrawsRig&>(rig);
  for (std::size_t i = 0; i < draws_.size(); ++i) draws_[i]->bench.forget_recording(*r.of[i]);
}

std::string DrawsBench::repair() {
  std::string first;
  for (std::size_t i = 0; i < draws_.size(); ++i) {
    std::string found = of_draw(i, draws_[i]->bench.repair());
    if (first.empty()) first = std::move(found);
  }
  return first;
}

std::shared_ptr<Module> DrawsBench::module_of(const Rig& rig) const {
  return first().module_of(*static_cast<const DrawsRig&>(rig).of.front());
}

}  // namespace kiln::runtime
