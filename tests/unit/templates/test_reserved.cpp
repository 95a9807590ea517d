// Multiprocessors that launches leave to others: a device with some is ranked as a smaller one.
#include <algorithm>
#include <map>
#include <string>

#include "kiln/occupancy.hpp"
#include "kiln/registry.hpp"
#include "kiln_test.hpp"
#include "runtime/tune/best_guess.hpp"
#include "templates/kernels.hpp"

using namespace kiln;

namespace {

DeviceInfo h200(int multiprocessors, int reserved) {
  DeviceInfo device;
  device.target = Target::parse("sm_90a");
  device.limits = limits_of(90, multiprocessors, 62914560);
  device.limits.reserved_multiprocessors = reserved;
  return device;
}

Values some_problem(const KernelDefinition& kernel) {
  const std::map<std::string, std::int64_t> sizes{
      {"m", 700},   {"n", 3072},   {"k", 2048},     {"ldc", 4096},   {"lda", 4096},  {"ldb", 4096},
      {"batch", 1}, {"groups", 8}, {"stride_a", 0}, {"stride_b", 0}, {"stride_c", 0}};
  Values problem;
  for (const std::string& field : kernel.problem_fields)
    problem.push_back(sizes.contains(field) ? sizes.at(field) : 128);
  return problem;
}

bool same_cost(double one, double other) { return one == other || (one != one && other != other); }

}  // namespace

TEST_CASE("reserved multiprocessors count in the cost of no config", "[templates]") {
  constexpr int kAll = 132, kReserved = 100;
  const DeviceInfo reserved = h200(kAll, kReserved), smaller = h200(kAll - kReserved, 0);
  const Registry registry = shipped_kernels();
  int tried = 0;
  for (const RegisteredKernel& registered : registry.kernels()) {
    const KernelDefinition kernel = registry.make(registered.name, registered.types.back());
    if (kernel.name.starts_with("rope")) continue;  // its fields depend on each other
    const Values problem = some_problem(kernel);
    INFO(kernel.name << " " << kernel.describe_problem(problem));
    const Values pick = runtime::untuned_config(kernel, problem, reserved);
    CHECK(pick == runtime::untuned_config(kernel, problem, smaller));
    if (!kernel.cost) continue;
    ++tried;
    std::vector<Values> configs{pick};
    if (kernel.configs) {
      configs = kernel.configs(problem, reserved.limits);
      CHECK(configs == kernel.configs(problem, smaller.limits));
    }
    const auto differs = [&](const Values& c) {
      return !same_cost(kernel.cost(c, problem, reserved.limits),
                        kernel.cost(c, problem, smaller.limits));
    };
    CHECK(std::ranges::count_if(configs, differs) == 0);
  }
  CHECK(tried > 50);
}

TEST_CASE("no reservation makes a plain body the best of a deep product", "[templates]") {
  const KernelDefinition kernel = shipped_kernels().make("gemm", "bf16");
  // TMA cannot store C, so that plain bodies are listed, too.
  for (const Values& problem : {Values{64, 1001, 8192}, Values{128, 1001, 16384},
                                Values{64, 129, 16384}, Values{256, 257, 16384}})
    for (const int reserved : {0, 66, 100, 120}) {
      const auto pick = from_values<templates::Gemm>(
          runtime::untuned_config(kernel, problem, h200(132, reserved)));
      INFO(reserved << " reserved, " << kernel.describe_problem(problem));
      CHECK(pick.uses_tma());
    }
}
