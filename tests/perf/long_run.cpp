// The truth about a few configs: timed side by side for a long time, on fresh data again and again.
//   long_run KERNEL TYPE FIELD=VALUE... SECONDS < CONFIGS
// CONFIGS is a JSON list of objects; printed is one number each: its time over the first one's.
#include <cmath>
#include <exception>
#include <iostream>
#include <map>

#include <nlohmann/json.hpp>

#include "kiln/error.hpp"
#include "kiln/registry.hpp"
#include "perf.hpp"
#include "runtime/build/builder.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/measure/kernel_bench.hpp"
#include "runtime/measure/sampler.hpp"
#include "runtime/runtime.hpp"
#include "runtime/support/random.hpp"

namespace {

using namespace kiln;
using namespace kiln::runtime;

constexpr int kParts = 6;

/// One pass: how every contestant's samples compare to the first one's of the same round.
void run_part(const std::shared_ptr<Device>& device, const KernelDefinition& kernel,
              const Values& problem, const std::vector<Trial>& trials, double seconds,
              std::uint64_t seed, std::vector<std::vector<double>>& ratios) {
  DeviceWorkload workload(kernel, problem, device, seed);
  KernelBench bench(device, workload);
  std::vector<Contestant> contestants;
  for (const Trial& trial : trials) {
    auto loaded = bench.load(trial);
    if (const auto* refusal = std::get_if<Refusal>(&loaded))
      throw EnvironmentError(refusal->reason);
    Contestant& c = contestants.emplace_back();
    c.candidate = contestants.size() - 1;
    c.rig = std::get<std::shared_ptr<Rig>>(std::move(loaded));
  }
  const RaceOptions options{.sample_seconds = 3e-4};
  Sampler sampler(bench, options);
  for (Contestant& c : contestants) {
    sampler.start(c, {});
    if (!c.failure.empty()) throw EnvironmentError("a config cannot be timed: " + c.failure);
  }
  Random random(seed);
  std::vector<std::size_t> order(contestants.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0;
       round < 20 ||
       std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds;
       ++round) {
    random.shuffle(order);
    for (const std::size_t i : order) {
      sampler.sample(contestants[i]);
      if (!contestants[i].failure.empty()) throw EnvironmentError(contestants[i].failure);
    }
    for (std::size_t i = 0; i < contestants.size(); ++i)
      ratios[i].push_back(std::log(contestants[i].samples.back() / contestants[0].samples.back()));
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5) {
    std::fputs("usage: long_run KERNEL TYPE FIELD=VALUE... SECONDS < CONFIGS\n", stderr);
    return 1;
  }
  const KernelDefinition kernel = shipped_kernels().make(argv[1], argv[2]);
  std::map<std::string, std::int64_t> fields;
  for (int i = 3; i + 1 < argc; ++i) {
    const std::string text = argv[i];
    fields[text.substr(0, text.find('='))] = std::stoll(text.substr(text.find('=') + 1));
  }
  const Values problem = kernel.problem(fields);
  const double seconds = std::stod(argv[argc - 1]);
  const auto device = open_device("host", {});
  Builder builder(std::make_shared<cache::Store>(StoreOptions{}), make_compiler, {}, 2);

  std::vector<Trial> trials;
  for (const auto& named : nlohmann::json::parse(std::cin)) {
    const Values config = kernel.space.config(named.get<std::map<std::string, std::int64_t>>());
    const Build build = builder.build(kernel, config, device->info().target);
    if (!build.binary()) throw EnvironmentError(kernel.space.describe(config) + ": no binary");
    Trial& trial = trials.emplace_back();
    trial.code = std::get<std::shared_ptr<const codegen::Binary>>(build.outcome);
    trial.plan.launch = kernel.launch(config, problem, {});
  }
  std::vector<std::vector<double>> ratios(trials.size());
  for (int part = 0; part < kParts; ++part)
    run_part(device, kernel, problem, trials, seconds / kParts,
             static_cast<std::uint64_t>(part) + 1, ratios);
  nlohmann::json out = nlohmann::json::array();
  for (const auto& r : ratios) out.push_back(std::exp(runtime::median(r)));
  std::puts(out.dump().c_str());
} catch (const std::exception& error) {
  std::fprintf(stderr, "long_run: %s\n", error.what());
  return 2;
}
