#include "runtime/tune/cost_model.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/device/resource_check.hpp"
#include "runtime/support/infinity.hpp"

namespace kiln::runtime {

namespace {

// Orders of magnitude, not data sheets: only the order of configs is asked for, and all configs of
// a problem share its operations and bytes.
constexpr double kLaunchSeconds = 2e-6;

// A GPU's multiprocessor.
constexpr double kClock = 1.5e9;
constexpr double kFlopsPerClock = 256;
constexpr double kBytesPerSecond = 25e9;    // of its share of memory's bandwidth
constexpr double kBytesInFlight = 24e3;     // that keep this share busy (Little's law)
constexpr double kMostBytesPerThread = 64;  // in flight at once: 4 accesses of 16 bytes
constexpr double kWarpsInFlight = 16;       // of one operation at a time that keep arithmetic busy
constexpr double kMostParallelism = 4;      // independent operations of one thread
constexpr double kBlockSeconds = 7e-7;      // a block's start and end, on one of the places for it
constexpr int kLikelyRegisters = 40;        // per thread, where nothing is known

// A host's core.
constexpr double kHostFlops = 2e10;
constexpr double kHostBytesPerSecond = 1e10;
constexpr double kHostBlockSeconds = 5e-8;
constexpr double kHostThreadSeconds = 3e-10;
constexpr double kL1Bytes = 32 * 1024;

double count(const Dim3& d) { return 1.0 * d.x * d.y * d.z; }

/// `value` where the kernel says nothing, or nonsense.
double or_else(double said, double value) {
  constexpr double kMost = 1e30;  // of anything
  return said > 0 && said < kMost ? said : value;
}

}  // namespace

CostModel::CostModel(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                     const DeviceInfo& device)
    : subject_(subject),
      problem_(problem),
      limits_(device.limits),
      flops_(or_else(subject.flops(problem), 0)),
      bytes_(or_else(subject.bytes(problem), 0)) {}

double CostModel::seconds(std::span<const std::int64_t> config) const {
  return seconds(config, {});
}

double CostModel::seconds(std::span<const std::int64_t> config,
                          const codegen::ResourceUsage& usage) const {
  const auto plan = subject_.plan(config, problem_, limits_);
  if (plan && !resource_obstacle(usage, plan->launch, limits_).empty()) return kInfinity;
  double seconds = subject_.cost(config, problem_, limits_);
  // Nothing tells the configs of a function apart.
  if (std::isnan(seconds)) {
    seconds = plan ? general(plan->launch, usage) : kLaunchSeconds;
    if (plan) seconds += kLaunchSeconds * static_cast<double>(plan->steps.size());
  }
  // A spilled byte is an access to local memory, which delays all others.
  const double spilled = 1.0 * usage.spill_stores + usage.spill_loads;
  return spilled > 0 ? seconds + std::abs(seconds) * spilled / 512 : seconds;
}

double CostModel::general(const Launch& g, const codegen::ResourceUsage& usage) const {
  if (count(g.grid) == 0) return 0;
  return limits_.on_host() ? on_host(g) : on_gpu(g, usage);
}

double CostModel::on_gpu(const Launch& g, const codegen::ResourceUsage& known) const {
  const double blocks = count(g.grid), threads = count(g.block);
  const double warps = std::ceil(threads / std::max(1, limits_.warp_size));
  codegen::ResourceUsage usage = known;
  if (usage.registers <= 0)  // the compiler keeps to the launch bounds
    usage.registers = static_cast<int>(std::min<double>(
        kLikelyRegisters, std::max(1.0, limits_.registers_per_block / (32 * warps))));
  const int resident = std::max(1, occupancy(usage, g, limits_).blocks);

  // Work of one block, running alone at full speed.
  const double flops = or_else(flops_, blocks * threads) / blocks;
  const double bytes = or_else(bytes_, 4 * blocks * threads) / blocks;
  const double full = warps * limits_.warp_size / threads;  // idle lanes take part, too
  const double compute = full * flops / (kFlopsPerClock * kClock);
  const double memory = bytes / kBytesPerSecond;

  // Seconds for `together` blocks that share a multiprocessor.
  const double in_flight = std::min(bytes / threads, kMostBytesPerThread) * threads;
  const double parallelism = std::clamp(flops / threads, 1.0, kMostParallelism);
  const auto wave = [&](double together) {
    const double fed = std::min(1.0, together * in_flight / kBytesInFlight);
    const double busy = std::min(1.0, together * warps * parallelism / kWarpsInFlight);
    return together * std::max(compute / busy, memory / fed) + kBlockSeconds;
  };
  const double per_multiprocessor = blocks / limits_.usable_multiprocessors();
  const double waves = std::floor(per_multiprocessor / resident);
  const double rest = std::ceil(per_multiprocessor - waves * resident);
  return kLaunchSeconds + waves * wave(resident) + (rest > 0 ? wave(rest) : 0);
}

double CostModel::on_host(const Launch& g) const {
  const double blocks = count(g.grid), threads = count(g.block);
  const double flops = flops_ / blocks, bytes = bytes_ / blocks;
  // The block's threads take turns over its part of the arrays, often in strides: what exceeds the
  // first-level cache is fetched again and again.
  const double memory = bytes / kHostBytesPerSecond * (1 + bytes / kL1Bytes / 2);
  const double block =
      std::max(flops / kHostFlops, memory) + threads * kHostThreadSeconds + kHostBlockSeconds;
  const double rounds = std::ceil(blocks / limits_.usable_multiprocessors());
  return kLaunchSeconds + rounds * block;
}

}  // namespace kiln::runtime
