// Kernels that write where they must not, on real hardware: they are rejected, right ones are not.
#include <algorithm>
#include <string>

#include "kiln/kiln.hpp"
#include "kiln_test.hpp"

using namespace kiln;

namespace {

/// y[i] = x[i] with blocks of B = 32, 64, 128 threads, and `extra` besides.
KernelDefinition copying(const std::string& extra) {
  KernelDefinition k;
  k.name = k.entry = "copying";
  k.source.text =
      "template <int B> __global__ void copying(float* y, const float* x, int n) {\n"
      "  const int i = blockIdx.x * B + threadIdx.x;\n"
      "  if (i < n) y[i] = x[i];\n" +
      extra + "\n}";
  k.arguments = {"float*", "const float*", "int"};
  k.space.parameter("B", {32, 64, 128}, 64);
  k.problem_fields = {"n"};
  k.launch = [](auto config, auto problem) {
    return Launch{.grid = {static_cast<unsigned>((problem[0] + config[0] - 1) / config[0])},
                  .block = {static_cast<unsigned>(config[0])}};
  };
  k.workload = [](auto problem, Workload& w) {
    const auto n = static_cast<std::size_t>(problem[0]);
    w.output<float>(n).input<float>(n).scalar(static_cast<int>(n));
  };
  k.reference = [](auto problem, auto args) {
    std::copy_n(static_cast<const float*>(args[1]), problem[0], static_cast<float*>(args[0]));
  };
  return k;
}

/// The reason for which B = 32, and it alone, is out.
std::string reason_of_32(const KernelDefinition& kernel, std::int64_t n) {
  RuntimeOptions options;
  options.device = "cuda";
  options.store.disk = false;
  options.tuning.strategy = "exhaustive";
  const Runtime gpu(options);
  const TuneResult r = gpu.tuned(kernel).tune({n});
  std::string reason = "none";
  for (const Candidate& c : r.candidates) {
    CAPTURE(r.describe(c), c.reason);
    if (c.config[0] != 32) {
      CHECK(c.status == CandidateStatus::measured);
      continue;
    }
    CHECK(c.status == CandidateStatus::wrong_result);
    reason = c.reason;
  }
  CHECK(r.candidates.size() == 3);
  CHECK(r.winner().config[0] != 32);
  return reason;
}

bool begins(const std::string& text, const std::string& with) { return text.rfind(with, 0) == 0; }

}  // namespace

TEST_CASE("a kernel that writes an input or around an array is out", "[gpu][guards]") {
  for (const std::int64_t n : {std::int64_t{1000}, std::int64_t{1} << 20}) {
    CAPTURE(n);
    const auto reason = [&](const std::string& write) {
      return reason_of_32(copying("if (B == 32 && i == 0) " + write), n);
    };
    const std::string count = std::to_string(n);
    CHECK(begins(reason("((float*)x)[7] = 5;"), "wrote element 7 of argument 1, an input: 5 ins"));
    CHECK(reason("y[n] = 9;") ==
          "wrote outside argument 0, after its " + count + " elements: element " + count);
    CHECK(reason("y[-1] = 1;") ==
          "wrote outside argument 0, before its " + count + " elements: element -1");
  }
}

TEST_CASE("a candidate that writes an input only while it is timed is out", "[gpu][guards]") {
  auto kernel =
      copying("  if (B == 32 && i == 0 && atomicAdd(&launches, 1) > 2) ((float*)x)[7] = 5;");
  kernel.source.text = "__device__ int launches;\n" + kernel.source.text;
  CHECK(begins(reason_of_32(kernel, 1000), "while it was timed, wrote element 7 of argument 1"));
}

TEST_CASE("arrays are aligned as the device aligns them", "[gpu][guards]") {
  for (const std::int64_t n : {std::int64_t{3}, std::int64_t{1000}, std::int64_t{1} << 20}) {
    const auto kernel = copying(
        "if (i == 0 && ((unsigned long long)y | (unsigned long long)x) % 256) y[0] = x[0] + 1;"
        "if (B == 32 && i == 0) y[n] = 0;");
    CHECK(begins(reason_of_32(kernel, n), "wrote outside argument 0, after"));
  }
}
