// The roofline as a measurement, on a device whose clock is scripted, and its kernels through
// NVRTC.
#include "codegen/instance.hpp"
#include "codegen/nvrtc.hpp"
#include "kiln/occupancy.hpp"
#include "kiln/roofline.hpp"
#include "kiln/space_query.hpp"
#include "kiln_test.hpp"
#include "templates/roofline/roofline_kernels.hpp"
#include "unit/runtime/engine_fixture.hpp"

using namespace kiln;
using namespace kiln::templates;
using kiln::test::Directory;
using kiln::test::Process;

namespace {

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// A device whose instances are right, but for those that `wrong` names, and take as long as
/// `seconds` says.
struct Scripted : Process {
  std::function<double(const std::string&)> seconds = [](const std::string&) { return 1e-3; };
  std::function<bool(const std::string&)> wrong = [](const std::string&) { return false; };

  explicit Scripted(const std::filesystem::path& directory) : Process(directory) {
    device->compute = [](void**) {};
    device->on_launch = [this](const std::string& entry, void** args) {
      (*script)[entry].seconds = seconds(entry);
      auto* out = *static_cast<float**>(args[0]);
      const auto* in = *static_cast<const float**>(args[1]);
      const auto n = *static_cast<long long*>(args[2]);
      if (contains(entry, "roofline_copy"))
        copy_kernel().reference(out, in, n);
      else
        fma_kernel().reference(out, in, n, *static_cast<int*>(args[3]));
      if (wrong(entry)) out[0] += 1;
    };
  }
};

}  // namespace

TEST_CASE("a roofline is the best of both kernels, measured once", "[templates][roofline]") {
  const Directory directory;
  Scripted first(directory.path());
  first.seconds = [](const std::string& entry) {
    if (contains(entry, "roofline_copy"))
      return contains(entry, "512") && contains(entry, "true") && contains(entry, "16, ") ? 1e-3
                                                                                          : 2e-3;
    return contains(entry, "128") ? 5e-4 : 8e-4;
  };
  const Runtime runtime = first.runtime();
  const Roofline roof = roofline(runtime);
  const CopyProblem copy = copy_problem(runtime.device());
  const FmaProblem fma = fma_problem(runtime.device());
  CHECK(roof.bytes_per_second == Approx(8.0 * static_cast<double>(copy.elements) / 1e-3));
  CHECK(roof.flops_per_second ==
        Approx(2.0 * static_cast<double>(fma.elements) * fma.steps / 5e-4));
  CHECK(roof.tensor_flops_per_second == 0);
  CHECK(roof.device == "Fake 1000");
  CHECK(!roof.from_store);
  CHECK(first.compiler->compiles > 8);

  const int compiles = first.compiler->compiles, launches = first.device->launches;
  CHECK(roofline(runtime).from_store);
  Scripted second(directory.path());
  const Roofline again = roofline(second.runtime());
  CHECK(again.from_store);
  CHECK(again.bytes_per_second == Approx(roof.bytes_per_second));
  CHECK(again.flops_per_second == Approx(roof.flops_per_second));
  CHECK(first.compiler->compiles == compiles);
  CHECK(first.device->launches == launches);
  CHECK(second.compiler->compiles == 0);
  CHECK(second.device->launches == 0);

  // Another device is another roofline.
  Scripted other(directory.path());
  other.device->info().fingerprint = {{"model", "Fake 2000"}};
  other.seconds = [](const std::string&) { return 1e-2; };
  const Roofline slower = roofline(other.runtime());
  CHECK(!slower.from_store);
  CHECK(slower.bytes_per_second < roof.bytes_per_second / 5);
}

TEST_CASE("a kernel that does not do its work is no roof", "[templates][roofline]") {
  const Directory directory;
  Scripted process(directory.path());
  process.wrong = [](const std::string& entry) { return !contains(entry, "128"); };
  process.seconds = [&](const std::string& entry) { return process.wrong(entry) ? 1e-9 : 1e-3; };
  const Runtime runtime = process.runtime();
  const Roofline roof = roofline(runtime);
  CHECK(roof.bytes_per_second ==
        Approx(8.0 * static_cast<double>(copy_problem(runtime.device()).elements) / 1e-3));

  Scripted broken(directory.path());
  broken.device->info().fingerprint = {{"model", "Fake 2000"}};
  broken.wrong = [](const std::string&) { return true; };
  CHECK_THROWS_AS(roofline(broken.runtime()), TuningFailedError);
}

TEST_CASE("problems suit the device", "[templates][roofline]") {
  DeviceInfo device;
  device.limits = limits_of(90, 132, 50 << 20);
  device.limits.memory_bytes = std::int64_t{141} << 30;
  const CopyProblem copy = copy_problem(device);
  CHECK(2 * copy.elements * 4 >= 4 * device.limits.l2_bytes);
  CHECK(copy.elements * 4 <= 512 << 20);
  device.limits.memory_bytes = 1 << 30;
  CHECK(copy_problem(device).elements * 4 <= device.limits.memory_bytes / 16);
  device.limits.memory_bytes = 0;  // not told
  CHECK(copy_problem(device).elements > 0);
  device.limits.l2_bytes = std::int64_t{1} << 40;
  CHECK(copy_problem(device).elements * 4 <= 512 << 20);
  device.limits.multiprocessors = 0;
  CHECK(fma_problem(device).elements > 0);
  CHECK(mma_problem(device).tiles > 0);
}

TEST_CASE("the roofline's kernels compile for GPUs, whole waves and no spills",
          "[templates][roofline]") {
  const codegen::NvrtcProbe nvrtc =
      codegen::NvrtcCompiler::find(codegen::NvrtcOptions::from_environment());
  KILN_NEEDS_NVRTC(nvrtc);
  codegen::IncludeCache cache;
  for (const auto& [arch, capability] :
       {std::pair{"sm_80", 80}, std::pair{"sm_90a", 90}, std::pair{"sm_120a", 120}}) {
    DeviceInfo device;
    device.limits = limits_of(capability, 100, 50 << 20);
    device.limits.memory_bytes = std::int64_t{80} << 30;
    const Target target = Target::parse(arch);
    const std::pair<KernelDefinition, Values> kernels[] = {
        {copy_kernel().definition(), {copy_problem(device).elements}},
        {fma_kernel().definition(), {fma_problem(device).elements, fma_problem(device).steps}},
        {mma_kernel().definition(), {mma_problem(device).tiles, mma_problem(device).steps}}};
    for (const auto& [kernel, problem] : kernels) {
      std::size_t compiled = 0;
      (void)for_each_config(kernel.space, problem, device.limits, [&](auto config, auto* violated) {
        if (violated) return true;
        const Values values(config.begin(), config.end());
        INFO(kernel.name << " " << kernel.space.describe(values) << " " << arch);
        auto result = nvrtc.compiler->compile(
            codegen::make_source(kernel, values, target, *nvrtc.compiler, cache), target);
        if (auto* failure = std::get_if<CompileFailure>(&result)) FAIL(failure->log);
        const auto& binary = std::get<codegen::Binary>(result);
        CHECK(binary.log == "");
        CHECK(binary.resources.spill_stores + binary.resources.spill_loads == 0);
        const Launch g = kernel.launch(values, problem, {});
        if (kernel.name == "roofline_fma") CHECK(g.grid.x % 100 == 0);
        const Occupancy o = occupancy(device.limits, {.threads = static_cast<int>(g.block.x),
                                                      .registers = binary.resources.registers});
        CHECK(o.fraction >= 0.25);  // enough warps to keep the units busy
        ++compiled;
        return true;
      });
      CHECK(compiled > 3);
    }
  }
}
