// A kernel that faults costs the process its device: an own program, with one case.
#include <filesystem>

#include "kiln/error.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"

using namespace kiln;

TEST_CASE("a config that faults ends the tuning, and is the only one blamed", "[gpu][fault]") {
  KernelDefinition kernel;
  kernel.name = "poke";
  kernel.source.text = R"(
template <int step> __global__ void poke(float* out, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (step == 3) *reinterpret_cast<volatile float*>(8) = 1;
  if (i < n) out[i] = 1;
})";
  kernel.entry = "poke";
  kernel.arguments = {"float*", "int"};
  kernel.space.parameter("step", {1, 2, 3, 4}, 1);
  kernel.problem_fields = {"n"};
  kernel.launch = [](auto, auto) { return Launch{{4}, {256}, 0}; };
  kernel.workload = [](auto, Workload& w) { w.output<float>(1024).scalar(1024); };
  kernel.reference = [](auto, std::span<void* const> args) {
    std::fill_n(static_cast<float*>(args[0]), 1024, 1.0f);
  };

  RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  options.tuning.strategy = "exhaustive";
  options.compile_threads = 1;
  options.isolation = Isolation::off;
  const Runtime runtime(options);
  const DynamicTuned poke = runtime.tuned(kernel);
  std::string why;
  try {
    poke.tune({1024}, options.tuning);
  } catch (const EnvironmentError& error) {
    why = error.what();
  }
  WARN(why);
  CHECK(why.find("step=3") != std::string::npos);
  CHECK(why.find("restart the process") != std::string::npos);
  const auto known = poke.known({1024});
  REQUIRE(known);
  CHECK_FALSE(known->complete);
  CHECK(known->count(CandidateStatus::crashed) == 1);
  CHECK(known->winner().status == CandidateStatus::measured);
  // What comes after says the same.
  CHECK_THROWS_AS(runtime.synchronize(), EnvironmentError);
  CHECK_THROWS_AS(runtime.array<float>(1 << 20), EnvironmentError);
}
