// What runs untuned, held against tunings that were recorded on an H200
// (scripts/recorded_tunings.py): how much of the best candidate's speed the cost model's choice
// has.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>

#include <nlohmann/json.hpp>

#include "kiln_test.hpp"
#include "runtime/tune/best_guess.hpp"
#include "templates/kernels.hpp"

using namespace kiln;

TEST_CASE("gemm: what runs untuned on an H200 is nearly as fast as the best", "[templates]") {
  std::ifstream file(KILN_RECORDED_TUNINGS "/gemm_h200.json");
  const auto recorded = nlohmann::json::parse(file);
  const KernelDefinition gemm = shipped_kernels().make("gemm", "bf16");
  REQUIRE(recorded["types"] == gemm.types);
  const auto& fields = recorded["parameters"];
  REQUIRE(fields.size() == gemm.space.default_config().size());

  DeviceInfo device;
  device.target = Target::parse("sm_90a");
  device.limits = limits_of(90, 132, 62914560);
  int known = 0;
  double logarithms = 0, worst = 1;
  for (const auto& tuning : recorded["tunings"]) {
    const auto problem = tuning["problem"].get<Values>();
    INFO(gemm.describe_problem(problem));
    std::map<Values, double> microseconds;
    double best = std::numeric_limits<double>::infinity();
    for (const auto& candidate : tuning["candidates"]) {
      Values config;
      for (std::size_t i = 0; i < fields.size(); ++i)
        config.push_back(candidate[i].get<std::int64_t>());
      best = std::min(best, microseconds[config] = candidate.back().get<double>());
    }
    const Values pick = runtime::untuned_config(gemm, problem, device);
    CHECK(pick == runtime::untuned_config(gemm, problem, device));
    const auto found = microseconds.find(pick);
    if (found == microseconds.end())
      continue;  // the model chose something else when it was recorded
    const double speed = best / found->second;
    if (problem[1] % 8 != 0 || problem[2] % 8 != 0) {
      // Problems that tensor maps refuse have no cost model of their own.
      std::printf("untuned, %s: %.3f\n", gemm.describe_problem(problem).c_str(), speed);
      continue;
    }
    ++known;
    logarithms += std::log(speed);
    worst = std::min(worst, speed);
  }
  const double mean = std::exp(logarithms / std::max(known, 1));
  std::printf("untuned picks: %d of %zu recorded problems, mean %.3f, worst %.3f of the best\n",
              known, recorded["tunings"].size(), mean, worst);
  // If this fails after a change to the cost model, the picks must be measured again.
  CHECK(known >= 20);
  CHECK(mean >= 0.90);
  CHECK(worst >= 0.75);
}
