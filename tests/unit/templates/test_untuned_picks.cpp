// What runs untuned, held against tunings that were recorded on an H200
// (scripts/recorded_tunings.py): how much of the best candidate's speed the cost model's choice
// has.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <string>

#include <nlohmann/json.hpp>

#include "kiln_test.hpp"
#include "runtime/tune/best_guess.hpp"
#include "runtime/tune/size_distance.hpp"
#include "templates/kernels.hpp"

using namespace kiln;

namespace {

nlohmann::json read(const std::string& file) {
  std::ifstream in(file);
  REQUIRE(in);
  return nlohmann::json::parse(in);
}

DeviceInfo h200() {
  DeviceInfo device;
  device.target = Target::parse("sm_90a");
  device.limits = limits_of(90, 132, 62914560);
  return device;
}

/// Microseconds of a launch by config, of those that worked.
std::map<Values, double> times_of(const nlohmann::json& tuning) {
  std::map<Values, double> microseconds;
  for (const auto& candidate : tuning["candidates"]) {
    if (candidate.back().is_null()) continue;
    Values config;
    for (std::size_t i = 0; i + 1 < candidate.size(); ++i)
      config.push_back(candidate[i].get<std::int64_t>());
    microseconds[config] = candidate.back().get<double>();
  }
  REQUIRE_FALSE(microseconds.empty());
  return microseconds;
}

double least(const std::map<Values, double>& microseconds) {
  return std::ranges::min(microseconds | std::views::values);
}

/// Of the best one's speed; nothing where the pick was not measured.
std::optional<double> speed_of_pick(const KernelDefinition& kernel, const nlohmann::json& tuning) {
  const auto problem = tuning["problem"].get<Values>();
  INFO(kernel.name << " " << kernel.describe_problem(problem));
  const std::map<Values, double> microseconds = times_of(tuning);
  const Values pick = runtime::untuned_config(kernel, problem, h200());
  CHECK(pick == runtime::untuned_config(kernel, problem, h200()));
  const auto found = microseconds.find(pick);
  if (found == microseconds.end()) return {};
  return least(microseconds) / found->second;
}

/// The mean is geometric.
struct Speeds {
  int count = 0;
  double logarithms = 0, worst = 1;

  void add(double speed) {
    ++count;
    logarithms += std::log(speed);
    worst = std::min(worst, speed);
  }
  double mean() const { return std::exp(logarithms / std::max(count, 1)); }
};

}  // namespace

TEST_CASE("gemm: what runs untuned on an H200 is nearly as fast as the best", "[templates]") {
  const auto recorded = read(KILN_RECORDED_TUNINGS "/h200/gemm_searched.json");
  const KernelDefinition gemm = shipped_kernels().make("gemm", "bf16");
  REQUIRE(recorded["types"] == gemm.types);
  REQUIRE(recorded["parameters"].size() == gemm.space.default_config().size());
  Speeds speeds;
  for (const auto& tuning : recorded["tunings"]) {
    const auto speed = speed_of_pick(gemm, tuning);
    if (!speed) continue;  // the model chose something else when it was recorded
    const auto problem = tuning["problem"].get<Values>();
    // Problems that tensor maps refuse have no cost model of their own.
    if (problem[1] % 8 != 0 || problem[2] % 8 != 0)
      std::printf("untuned, %s: %.3f\n", gemm.describe_problem(problem).c_str(), *speed);
    else
      speeds.add(*speed);
  }
  std::printf("untuned picks: %d of %zu recorded problems, mean %.3f, worst %.3f of the best\n",
              speeds.count, recorded["tunings"].size(), speeds.mean(), speeds.worst);
  // If this fails after a change to the cost model, the picks must be measured again.
  CHECK(speeds.count >= 20);
  CHECK(speeds.mean() >= 0.90);
  CHECK(speeds.worst >= 0.75);
}

TEST_CASE("what runs untuned on an H200, among all configs", "[templates]") {
  struct Least {
    const char *kernel, *types;
    double mean, worst;
  };
  // What was reached when this was written, less a fiftieth.
  for (const Least& least :
       {Least{"gemm", "bf16", .93, .83}, Least{"gemm_fp8", "bf16", .96, .94},
        Least{"gemm_gated_silu", "bf16", .95, .92}, Least{"softmax", "bf16", .97, .93},
        Least{"rmsnorm", "bf16", .95, .82}, Least{"layernorm", "bf16", .92, .79},
        Least{"rmsnorm_residual", "bf16", .97, .95}, Least{"quantize_rows", "bf16", .97, .95},
        Least{"cross_entropy", "bf16", .95, .86}}) {
    CAPTURE(least.kernel);
    const KernelDefinition kernel = shipped_kernels().make(least.kernel, least.types);
    Speeds speeds;
    for (const std::string folder : {"/h200/", "/h200_rows/"}) {
      const std::string file = KILN_RECORDED_TUNINGS + folder + least.kernel + ".json";
      if (folder == "/h200_rows/" && !std::filesystem::exists(file)) continue;
      const auto recorded = read(file);
      REQUIRE(recorded["types"] == kernel.types);
      REQUIRE(recorded["fields"] == kernel.problem_fields);
      for (const auto& tuning : recorded["tunings"]) {
        // All that the search may try was measured: a list or a space that has changed is recorded
        // anew (tests/recorded/README.md).
        const auto speed = speed_of_pick(kernel, tuning);
        REQUIRE(speed);
        speeds.add(*speed);
      }
    }
    std::printf("untuned %-18s %d problems: mean %.3f, worst %.3f of the best of all configs\n",
                least.kernel, speeds.count, speeds.mean(), speeds.worst);
    CHECK(speeds.mean() >= least.mean);
    CHECK(speeds.worst >= least.worst);
  }
}

TEST_CASE("what runs untuned on an H200 is faster than neighbours' winners", "[templates]") {
  Speeds untuned, neighbours;
  for (const std::string name :
       {"gemm", "gemm_fp8", "gemm_gated_silu", "softmax", "rmsnorm", "layernorm",
        "rmsnorm_residual", "quantize_rows", "cross_entropy"}) {
    CAPTURE(name);
    const KernelDefinition kernel = shipped_kernels().make(name, "bf16");
    std::map<Values, std::map<Values, double>> tunings;  // times by config, by problem
    for (const std::string folder : {"/h200/", "/h200_rows/"}) {
      const std::string file = KILN_RECORDED_TUNINGS + folder + name + ".json";
      if (!std::filesystem::exists(file)) continue;
      const auto recorded = read(file);
      for (const auto& tuning : recorded["tunings"])
        tunings[tuning["problem"].get<Values>()] = times_of(tuning);
    }
    Speeds own, others;
    for (const auto& [problem, times] : tunings) {
      CHECK(runtime::untuned_for_problem(kernel, problem, h200().limits));
      own.add(least(times) / times.at(runtime::untuned_config(kernel, problem, h200())));
      double nearest = std::numeric_limits<double>::infinity(), speed = 0;
      for (const auto& [other, measured] : tunings) {
        const auto winner =
            std::ranges::min_element(measured, {}, [](const auto& timed) { return timed.second; });
        const auto here = times.find(winner->first);
        const double far = std::inner_product(other.begin(), other.end(), problem.begin(), 0.0,
                                              std::plus<>(), runtime::size_distance);
        if (other == problem || here == times.end() || far >= nearest) continue;
        nearest = far;
        speed = least(times) / here->second;
      }
      if (speed > 0) others.add(speed);
    }
    std::printf("untuned %-18s %.3f of the best, the nearest problem's winner %.3f\n", name.c_str(),
                own.mean(), others.mean());
    CHECK(own.mean() > others.mean());
    untuned.add(own.mean());
    neighbours.add(others.mean());
  }
  std::printf("untuned over %d kernels: %.3f of the best, neighbours' winners %.3f\n",
              untuned.count, untuned.mean(), neighbours.mean());
}
