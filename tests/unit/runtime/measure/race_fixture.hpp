// Contestants on a fake device whose clock can be as bad as a test likes.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "runtime/measure/kernel_bench.hpp"
#include "runtime/measure/race.hpp"
#include "runtime/support/random.hpp"
#include "unit/runtime/fake_kernel.hpp"

namespace kiln::test {

struct Race {
  Bench bench;
  KernelDefinition kernel = doubling();
  Values problem{100};
  std::unique_ptr<runtime::DeviceWorkload> workload;
  std::unique_ptr<runtime::KernelBench> trials;
  std::vector<runtime::Contestant> contestants;
  runtime::RaceReport report;

  explicit Race(std::int64_t cache_bytes = 0) {
    bench.device->info().limits.l2_bytes = cache_bytes;
    workload = std::make_unique<runtime::DeviceWorkload>(kernel, problem, bench.device, 1);
    trials = std::make_unique<runtime::KernelBench>(bench.device, *workload);
  }

  void enter(int a, double seconds) {
    bench.seconds(a, seconds);
    codegen::Binary binary;
    const std::string entry = "k<" + std::to_string(a) + ", 0>";
    const auto code = std::as_bytes(std::span(entry));
    binary.code = std::vector<std::byte>(code.begin(), code.end());
    runtime::Trial trial;
    trial.code = std::make_shared<const codegen::Binary>(std::move(binary));
    trial.plan.launch = {{1}, {1}, 0};
    runtime::Contestant c;
    c.candidate = contestants.size();
    c.rig = std::get<std::shared_ptr<runtime::Rig>>(trials->load(trial));
    contestants.push_back(std::move(c));
  }
  void run(const runtime::RaceOptions& options = {}, std::size_t keep = 0) {
    report = runtime::race(*trials, contestants, options,
                           [=](std::size_t candidate) { return candidate == keep; }, {});
  }
};

/// What a real machine adds to a time: noise, spikes, two levels, and a drift that all share.
struct Noise {
  double deviation = 0.01;     ///< of a sample, relative
  double spikes = 0;           ///< their share
  double spike = 3;            ///< their factor, at most
  double second_level = 0;     ///< share of the time that the machine is in its slower mood
  double second_factor = 1.3;  ///< how slow that is
  double mood_lasts = 30;      ///< samples, on average
  double drift = 0;            ///< deviation of the walk's steps, relative

  double operator()(runtime::Random& random) {
    const double normal =
        std::sqrt(-2 * std::log(1 - random.uniform())) * std::cos(6.283185307 * random.uniform());
    double factor = std::exp(deviation * normal);
    if (random.chance(spikes)) factor *= 1 + (spike - 1) * random.uniform();
    if (second_level > 0) {
      const double flip = slow ? (1 - second_level) / mood_lasts : second_level / mood_lasts;
      if (random.chance(flip)) slow = !slow;
      if (slow) factor *= second_factor;
    }
    walk += drift * (2 * random.uniform() - 1);
    return factor * std::exp(walk);
  }

  // Where the machine is.
  bool slow = false;
  double walk = 0;
};

}  // namespace kiln::test
