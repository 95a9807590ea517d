// Global variables of kernels, filled by the program that launches them.
#include <cstring>
#include <map>

#include "host_test.hpp"
#include "kiln/kiln.hpp"

using namespace host_test;

/// A name that the process has, too: it must not take the place of a kernel's.
extern "C" {
__attribute__((visibility("default"), used)) float filter[3] = {1000, 1000, 1000};
}

namespace {

constexpr const char* kBlur = R"(
  __constant__ float filter[3];
  static __constant__ float bias;
  namespace image { __constant__ double weights[2]; }
  namespace { __device__ int anonymous; }
  template <class T> __constant__ T table[4];
  static __constant__ int unused[5];
  __constant__ const float fixed[2] = {1, 2};
  __device__ int calls = 7;
  __global__ void blur(float* y, const float* x, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) calls += anonymous;
    if (i < n)
      y[i] = filter[0] * x[i] + filter[1] * (i > 0 ? x[i - 1] : 0) + filter[2] + bias +
             static_cast<float>(image::weights[1]) + table<float>[3] + fixed[0];
  })";

using Variables = std::map<std::string, kiln::codegen::HostVariable>;

Variables variables_of(const HostModule& module) {
  Variables found;
  const auto& kernel = module.kernel();
  for (std::uint64_t i = 0; i < kernel.variable_count; ++i)
    found.emplace(kernel.variables[i].name, kernel.variables[i]);
  return found;
}

template <class T>
T& value(const Variables& variables, const std::string& name, std::size_t index = 0) {
  return static_cast<T*>(variables.at(name).address)[index];
}

}  // namespace

TEST_CASE("a module has its variables, by readable names", "[host][variables]") {
  const Kernel blur(kBlur, "blur");
  const Variables there = variables_of(blur.module());
  const std::map<std::string, std::uint64_t> expected{{"filter", 12},
                                                      {"bias", 4},
                                                      {"image::weights", 16},
                                                      {"(anonymous namespace)::anonymous", 4},
                                                      {"unused", 20},
                                                      {"table<float>", 16},
                                                      {"calls", 4}};
  std::map<std::string, std::uint64_t> sizes;
  for (const auto& [name, variable] : there) sizes[name] = variable.bytes;
  CHECK(sizes == expected);
  CHECK(there.at("filter").address != static_cast<void*>(::filter));
}

TEST_CASE("kernels read what was written to their variables", "[host][variables]") {
  const Kernel blur(kBlur, "blur"), other(kBlur, "blur");
  const Variables there = variables_of(blur.module());
  value<float>(there, "filter", 0) = 2;
  value<float>(there, "filter", 1) = 0.5f;
  value<float>(there, "filter", 2) = 1;
  value<float>(there, "bias") = 0.25f;
  value<double>(there, "image::weights", 1) = 0.125;
  value<float>(there, "table<float>", 3) = 16;
  value<int>(there, "(anonymous namespace)::anonymous") = 3;
  constexpr int n = 300;
  std::vector<float> x(n), y(n), z(n);
  for (int i = 0; i < n; ++i) x[i] = float(i);
  blur({3}, {128}, 0, y.data(), x.data(), n);
  for (int i = 0; i < n; ++i)
    REQUIRE(y[i] == 2 * x[i] + (i > 0 ? 0.5f * x[i - 1] : 0) + 1 + 0.25f + 0.125f + 16 + 1);
  CHECK(value<int>(there, "calls") == 10);
  // Another module of the same source has its own variables.
  other({3}, {128}, 0, z.data(), x.data(), n);
  for (int i = 0; i < n; ++i) REQUIRE(z[i] == 1);
  CHECK(value<int>(variables_of(other.module()), "calls") == 7);
}

TEST_CASE("a kernel that reads constant memory is tuned with it", "[host][variables]") {
  kiln::KernelDefinition k;
  k.name = "scaled";
  k.source.text =
      "namespace image { static __constant__ float scale[BLOCK]; }\n"
      "__global__ void scaled(float* y, const float* x, int n) {\n"
      "  const int i = blockIdx.x * BLOCK + threadIdx.x;\n"
      "  if (i < n) y[i] = image::scale[threadIdx.x] * x[i];\n"
      "}\n";
  k.entry = "scaled";
  k.passing = kiln::Passing::constants;
  k.arguments = {"float*", "const float*", "int"};
  k.space.parameter("BLOCK", {32, 64}, 32);
  k.problem_fields = {"n"};
  k.launch = [](auto c, auto p) {
    return kiln::Launch{{unsigned((p[0] + c[0] - 1) / c[0])}, {unsigned(c[0])}};
  };
  k.workload = [](auto p, kiln::Workload& w) {
    const auto n = std::size_t(p[0]);
    w.output<float>(n).input<float>(n).template scalar<int>(int(n));
    w.symbol("image::scale", [](std::span<const std::int64_t> c) {
      return std::vector<float>(std::size_t(c[0]), 3.0f);
    });
  };
  k.reference = [](auto p, std::span<void* const> args) {
    for (std::int64_t i = 0; i < p[0]; ++i)
      static_cast<float*>(args[0])[i] = 3 * static_cast<const float*>(args[1])[i];
  };
  kiln::RuntimeOptions options;
  options.device = "host";
  options.store.disk = false;
  const kiln::Runtime runtime(options);
  const kiln::DynamicTuned tuned = runtime.tuned(k);
  kiln::TuneOptions once;
  once.max_evaluations = 2;
  const kiln::TuneResult result = tuned.tune({1000}, once);
  REQUIRE(result.candidates.size() == 2);
  for (const kiln::Candidate& c : result.candidates)
    CHECK(c.status == kiln::CandidateStatus::measured);
  CHECK(tuned.verify({1000}).right);

  tuned.symbol("scale", std::vector<float>(std::size_t(tuned.config({1000})[0]), 5.0f));
  std::vector<float> x(1000, 2.0f), y(1000);
  tuned({}, {1000}, y.data(), static_cast<const float*>(x.data()), 1000);
  CHECK(y == std::vector<float>(1000, 10.0f));
}
