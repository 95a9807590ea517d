// Several entries of one source, compiled by NVRTC as one module.
#include <algorithm>

#include "codegen/instance.hpp"
#include "codegen/resource_report.hpp"
#include "nvrtc_fixture.hpp"
#include "split_sum.hpp"

using namespace kiln;
using namespace kiln::codegen;
using namespace kiln::codegen::test;

namespace {

const char* const kTwoSteps = R"(
#include <kiln/workspace.cuh>
__device__ int counter;
template <int block> __global__ void __launch_bounds__(block)
first(float* out, const float* in, kiln::Workspace workspace) {
  __shared__ float tile[block];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  static_cast<float*>(workspace.scratch)[threadIdx.x] = tile[block - 1 - threadIdx.x];
  atomicAdd(workspace.semaphores, 1u);
  counter = 1;
}
template <int block> __global__ void __launch_bounds__(2 * block)
second(float* out, const float* in, kiln::Workspace workspace) {
  out[threadIdx.x] = static_cast<const float*>(workspace.scratch)[threadIdx.x] + counter;
}
__global__ void third(float* out, const float* in, kiln::Workspace workspace) {
  workspace.semaphores[0] = 0;
})";

KernelDefinition in_steps() {
  KernelDefinition k;
  k.name = "in_steps";
  k.source.text = kTwoSteps;
  k.entry = "first";
  k.arguments = {"float*", "const float*"};
  k.space.parameter("block", {64, 128}, 64);
  const auto launch = [](auto, auto) { return Launch{}; };
  k.launch = launch;
  k.workspace.size = [](auto, auto, const DeviceLimits&) { return WorkspaceSize{1024, 1}; };
  k.steps = {{"second", launch, {}}};
  return k;
}

Source source_of(const KernelDefinition& kernel, const Values& config = {64},
                 const char* arch = "sm_90a") {
  IncludeCache cache;
  return make_source(kernel, config, Target::parse(arch), *nvrtc(), cache);
}

}  // namespace

TEST_CASE("steps are compiled with the kernel, as one module", "[codegen][nvrtc][steps]") {
  KILN_NEEDS_NVRTC(probe());
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    CAPTURE(arch);
    const Binary b = must_compile(source_of(in_steps(), {128}, arch), arch);
    CHECK(contains(b.symbol, "first"));
    CHECK(b.resources.max_threads == 128);
    CHECK(b.resources.static_shared == 512);
    REQUIRE(b.steps.size() == 1);
    CHECK(contains(b.steps[0].symbol, "second"));
    CHECK(b.steps[0].resources.max_threads == 256);
    CHECK(b.steps[0].resources.static_shared == 0);
    CHECK(b.steps[0].resources.registers > 0);
    const auto variables = read_cubin_variables(b.code);
    CHECK(std::count_if(variables.begin(), variables.end(),
                        [](const auto& v) { return v.name == "counter"; }) == 1);
  }
}

TEST_CASE("configs of one kernel may differ in workspace and steps", "[codegen][nvrtc][steps]") {
  KILN_NEEDS_NVRTC(probe());
  const KernelDefinition k = kiln::test::split_sum({0, 1, 2});
  for (const std::int64_t mode : {0, 1, 2}) {
    CAPTURE(mode);
    CHECK(must_compile(source_of(k, {4, mode}), "sm_90a").steps.size() == (mode == 1 ? 2 : 0));
  }
}

TEST_CASE("an entry that takes other parameters is refused, of a step as well",
          "[codegen][nvrtc][steps]") {
  KILN_NEEDS_NVRTC(probe());
  KernelDefinition k = in_steps();
  k.source.text += "\ntemplate <int block> __global__ void other(float* out, const float* in) {}";
  k.steps[0].entry = "other";
  CHECK(contains(must_fail(source_of(k)).log, "does not have the declared signature"));
  k = in_steps();
  k.workspace = {};
  CHECK(contains(must_fail(source_of(k)).log, "does not have the declared signature"));
  k = in_steps();
  k.steps[0].entry = "absent";
  CHECK(contains(must_fail(source_of(k)).log, "absent"));
}

TEST_CASE("keys tell configs with steps and workspaces apart", "[codegen][steps]") {
  const Target target = Target::parse("sm_90a");
  const Values config{64};
  const KernelDefinition base = in_steps();
  const auto key = [&](const KernelDefinition& k) { return wanted_key(k, config, target).digest; };
  KernelDefinition other = base;
  other.steps[0].entry = "third";
  CHECK(key(other) != key(base));
  other = base;
  other.steps.clear();
  CHECK(key(other) != key(base));
  other = base;
  other.steps[0].only_if = [](auto) { return false; };
  KernelDefinition none = base;
  none.steps.clear();
  CHECK(key(other) == key(none));
  other = base;
  other.workspace = {};
  CHECK(key(other) != key(base));
  // How a step is launched does not affect its code.
  other = base;
  other.steps[0].launch = [](auto, auto) { return Launch{{7}, {7}}; };
  CHECK(key(other) == key(base));
}

TEST_CASE("a definition's steps and workspace are checked", "[codegen][definition][steps]") {
  const auto problem = [](auto change) -> std::string {
    KernelDefinition k = in_steps();
    change(k);
    try {
      k.validate();
    } catch (const UserError& error) {
      return error.what();
    }
    return {};
  };
  CHECK(problem([](auto&) {}).empty());
  CHECK(contains(problem([](auto& k) { k.steps[0].entry = ""; }), "`steps[0].entry` is empty"));
  CHECK(contains(problem([](auto& k) { k.steps[0].launch = {}; }), "`steps[0].launch` is missing"));
  CHECK(contains(problem([](auto& k) { k.steps[0].entry = "first"; }), "the kernel's own entry"));
  CHECK(contains(problem([](auto& k) { k.steps.push_back(k.steps[0]); }), "second twice"));
  CHECK(contains(problem([](auto& k) { k.arguments.clear(); }), "`workspace` needs `arguments`"));
  CHECK(contains(problem([](auto& k) {
                   k.workspace.size = {};
                   k.workspace.only_if = [](auto) { return true; };
                 }),
                 "no `size`"));
}
