// Candidates that fault on a GPU, in a worker: the program's context, memory and other candidates
// know nothing of it.
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

#include "kiln/error.hpp"
#include "kiln/runtime.hpp"
#include "kiln_test.hpp"

using namespace kiln;

namespace {

enum Mode : std::int64_t { slow, fast, illegal, misaligned, traps, loops, wrong, more };

/// `mode` 0, the default, is right and slow, 1 is right and fast.
KernelDefinition poke(const std::vector<std::int64_t>& modes) {
  KernelDefinition kernel;
  kernel.name = "poke";
  kernel.source.text = R"(
template <int mode> __global__ void poke(float* out, const float* in, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (mode == 2) *reinterpret_cast<volatile float*>(8) = 1;
  if (mode == 3) *reinterpret_cast<volatile int*>(reinterpret_cast<char*>(out) + 1) = 1;
  if (mode == 4) __trap();
  if (mode == 5) while (*(volatile const float*)in < 100) {}
  if (i >= n) return;
  float x = in[i];
  if (mode == 0 || mode == 7)
    for (int k = 0; k < 2000; ++k) x = x * 1.0f + *(volatile const float*)in * 0.0f;
  out[i] = mode == 6 ? x : 2 * x;
})";
  kernel.entry = "poke";
  kernel.arguments = {"float*", "const float*", "int"};
  kernel.space.parameter("mode", modes, slow);
  kernel.problem_fields = {"n"};
  kernel.launch = [](auto, auto problem) {
    return Launch{{unsigned((problem[0] + 255) / 256)}, {256}, 0};
  };
  kernel.workload = [](auto problem, Workload& w) {
    const auto n = std::size_t(problem[0]);
    w.output<float>(n).input<float>(n).scalar(int(problem[0]));
  };
  kernel.reference = [](auto problem, std::span<void* const> args) {
    for (std::int64_t i = 0; i < problem[0]; ++i)
      static_cast<float*>(args[0])[i] = 2 * static_cast<const float*>(args[1])[i];
  };
  return kernel;
}

RuntimeOptions options(Isolation isolation) {
  RuntimeOptions o;
  o.device = "cuda";
  o.store.disk = false;
  o.isolation = isolation;
  o.tuning.strategy = "exhaustive";
  o.tuning.candidate_seconds = 5;
  return o;
}

const Candidate& of(const TuneResult& result, std::int64_t mode) {
  for (const Candidate& c : result.candidates)
    if (c.config == Values{mode}) return c;
  throw std::runtime_error("mode " + std::to_string(mode) + " was not tried");
}

constexpr int kProblem = 1 << 20;

}  // namespace

TEST_CASE("a candidate that faults costs its worker, and the program nothing", "[gpu][isolation]") {
  const Runtime runtime(options(Isolation::always));
  std::vector<float> contents(kProblem);
  std::iota(contents.begin(), contents.end(), 0.0f);
  const auto in = runtime.array(contents);
  const auto out = runtime.array<float>(kProblem);
  const DynamicTuned tuned =
      runtime.tuned(poke({slow, fast, illegal, misaligned, traps, loops, wrong, more}));
  const TuneResult result = tuned.tune({kProblem}, options(Isolation::always).tuning);
  for (const std::string& warning : result.warnings) WARN(warning);
  int faults = 0;
  for (const std::int64_t mode : {illegal, misaligned, traps}) {
    const Candidate& c = of(result, mode);
    WARN(c.reason);
    CHECK(c.status == CandidateStatus::crashed);
    CHECK_FALSE(c.reason.empty());
    ++faults;
  }
  WARN(of(result, loops).reason);
  CHECK(of(result, loops).status == CandidateStatus::hung);
  CHECK(of(result, wrong).status == CandidateStatus::wrong_result);
  CHECK(of(result, slow).status == CandidateStatus::measured);
  CHECK(of(result, more).status == CandidateStatus::measured);
  CHECK(result.winner().config == Values{fast});
  CHECK(result.complete);
  // The program's memory and context are as they were, and launch on.
  CHECK(in.download() == contents);
  tuned(Stream{}, {kProblem}, out.data(), in.data(), kProblem);
  runtime.synchronize();
  const std::vector<float> got = out.download();
  bool right = true;
  for (int i = 0; i < kProblem; ++i) right = right && got[i] == 2 * contents[i];
  CHECK(right);
  std::printf("gpu candidate faults tried %d, processes lost 0, hangs 0\n", faults + 2);
}

TEST_CASE("workers measure what this process measures", "[gpu][isolation]") {
  const KernelDefinition kernel = poke({slow, fast, more});
  const auto tune = [&](Isolation isolation) {
    const Runtime runtime(options(isolation));
    return runtime.tuned(kernel).tune({kProblem}, options(isolation).tuning);
  };
  const TuneResult here = tune(Isolation::off), there = tune(Isolation::always);
  CHECK(there.warnings == here.warnings);
  CHECK(here.winner().config == there.winner().config);
  for (const std::int64_t mode : {slow, fast, more}) {
    const double ratio = of(there, mode).seconds / of(here, mode).seconds;
    WARN("mode " << mode << ": in a worker " << ratio << " times the time in this process");
    CHECK(ratio > 0.9);
    CHECK(ratio < 1.1);
  }
  WARN("a tuning in a worker takes " << there.wall_seconds / here.wall_seconds << " times as long");
}

/// The last one: it loses this process's device.
TEST_CASE("after a fault in this process the tuning goes on in a worker",
          "[gpu][isolation][last]") {
  const Runtime runtime(options(Isolation::after_fault));
  const DynamicTuned tuned = runtime.tuned(poke({slow, illegal, traps, fast}));
  const TuneResult result = tuned.tune({kProblem}, options(Isolation::after_fault).tuning);
  for (const std::string& warning : result.warnings) WARN(warning);
  CHECK(of(result, illegal).status == CandidateStatus::crashed);
  CHECK(of(result, traps).status == CandidateStatus::crashed);
  CHECK(result.winner().config == Values{fast});
  REQUIRE_FALSE(result.warnings.empty());
  CHECK(result.warnings.back().find("must be restarted") != std::string::npos);
  CHECK_THROWS_AS(runtime.synchronize(), EnvironmentError);
}
