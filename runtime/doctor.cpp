#include "kiln/doctor.hpp"

#include <unistd.h>

#include "cache/store.hpp"
#include "codegen/llvm_plugin.hpp"
#include "codegen/nvrtc.hpp"
#include "kiln/error.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "runtime/device/host/host_device.hpp"
#include "runtime/worker/isolation.hpp"

namespace kiln {

namespace {

Component driver() {
  const runtime::CudaProbe cuda = runtime::probe_cuda();
  Component c{.name = "driver", .available = cuda.devices > 0};
  if (c.available) {
    c.version = cuda.driver_version;
    c.detail = std::to_string(cuda.devices) + " device(s)";
  } else {
    c.problem = cuda.reason;
  }
  return c;
}

Component nvrtc() {
  const codegen::NvrtcProbe probe =
      codegen::NvrtcCompiler::find(codegen::NvrtcOptions::from_environment());
  Component c{.name = "nvrtc", .available = probe.compiler != nullptr};
  if (!c.available) {
    c.problem = probe.reason;
    return c;
  }
  c.version = probe.compiler->identity().version;
  c.detail = probe.compiler->library_path();
  if (probe.compiler->cuda_include_dirs().empty()) c.detail += " (without CUDA headers)";
  return c;
}

Component llvm() {
  Component c{.name = "llvm"};
  const auto compiler = codegen::make_host_compiler();
  c.problem = codegen::host_compiler_obstacle();
  c.available = c.problem.empty();
  if (c.available) c.version = compiler->identity().version;
  return c;
}

Component compile() {
  const runtime::CompilePlan plan = runtime::compile_plan({});
  Component c{.name = "compile"};
  if (plan.broken)
    c.problem = plan.why_here;
  else if (plan.processes != 0)
    c.problem = runtime::obstacle_of(plan);
  c.available = c.problem.empty();
  if (!c.available)
    c.problem +=
        "; so programs compile in their own process, which is slower on many cores, and a crash of "
        "the compiler ends the program. Install the kiln-compiler of this build of Kiln";
  else if (plan.processes == 0)
    c.version = "in the program's own process", c.detail = plan.why_here;
  else
    c.version = std::to_string(plan.processes) + " process(es)", c.detail = plan.executable;
  return c;
}

Component worker() {
  Component c{.name = "worker"};
  const auto executable = runtime::worker_options({}).executable;
  const bool asked = runtime::isolation_mode({}) != Isolation::off;
  c.available = ::access(executable.c_str(), X_OK) == 0;
  c.detail = executable.string();
  c.version = asked ? "for candidates that are isolated" : "unused, because of KILN_ISOLATION=off";
  if (!c.available)
    c.problem =
        executable.string() +
        " is missing; so candidates run in the program's own process, which one that faults "
        "may end. Install the kiln-worker of this build of Kiln";
  return c;
}

Component store(const StoreOptions& options) {
  cache::Store store(options);
  const StoreStatistics stats = store.stats();
  Component c{.name = "store"};
  c.detail = stats.directory.string();
  c.problem = store.obstacle();
  c.available = c.problem.empty();
  if (c.available)
    c.version =
        std::to_string(stats.binaries) + " binaries, " + std::to_string(stats.records) + " records";
  return c;
}

template <class Look>
void add(std::vector<Component>& components, const char* name, Look look) {
  try {
    components.push_back(look());
  } catch (const Error& error) {
    components.push_back({.name = name, .available = false, .problem = error.what()});
  }
}

}  // namespace

std::vector<Component> diagnose(const StoreOptions& options) {
  std::vector<Component> components;
  add(components, "driver", driver);
  add(components, "nvrtc", nvrtc);
  add(components, "llvm", llvm);
  add(components, "compile", compile);
  add(components, "worker", worker);
  add(components, "store", [&] { return store(options); });
  return components;
}

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> found;
  const runtime::CudaProbe cuda = runtime::probe_cuda();
  for (int i = 0; i < cuda.devices; ++i) {
    try {
      found.push_back(runtime::make_cuda_device(cuda.driver, i)->info());
    } catch (const Error&) {
      // A device that cannot be opened cannot be named in RuntimeOptions either.
    }
  }
  if (codegen::has_llvm()) found.push_back(runtime::host_info());
  return found;
}

}  // namespace kiln
