#include "runtime/devices.hpp"

#include <charconv>

#include "codegen/llvm_plugin.hpp"
#include "codegen/nvrtc.hpp"
#include "kiln/error.hpp"
#include "runtime/cuda/cuda_device.hpp"
#include "runtime/host/host_device.hpp"
#include "runtime/recorded/recorded_device.hpp"

namespace kiln::runtime {

namespace {

/// The N of `cuda:N`; -1 for anything else.
int cuda_ordinal(const std::string& name) {
  if (name == "cuda") return 0;
  if (name.rfind("cuda:", 0) != 0) return -1;
  int ordinal = -1;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + 5, end, ordinal);
  return error == std::errc{} && stop == end ? ordinal : -1;
}

}  // namespace

std::shared_ptr<Device> open_device(const std::string& name, const LogSink& log) {
  if (name == "host") return make_host_device();
  if (name == "auto") {
    const CudaProbe cuda = probe_cuda();
    if (cuda.devices > 0) return make_cuda_device(cuda.driver, 0);
    if (log) log(LogLevel::info, "using the host: " + cuda.reason);
    return make_host_device();
  }
  if (name.starts_with("recorded:")) return make_recorded_device(name.substr(9));
  const int ordinal = cuda_ordinal(name);
  if (ordinal < 0)
    throw UserError("unknown device '" + name +
                    "' (known: auto, host, cuda, cuda:N, recorded:FILE)");
  const CudaProbe cuda = probe_cuda();
  if (ordinal >= cuda.devices)
    throw EnvironmentError("device " + name + " is not there: " +
                           (cuda.devices == 0 ? cuda.reason
                                              : "the driver shows " + std::to_string(cuda.devices) +
                                                    " device(s), numbered from 0"));
  return make_cuda_device(cuda.driver, ordinal);
}

std::shared_ptr<codegen::Compiler> make_compiler(Target::Kind kind) {
  if (kind == Target::Kind::host) return codegen::make_host_compiler();
  codegen::NvrtcProbe nvrtc =
      codegen::NvrtcCompiler::find(codegen::NvrtcOptions::from_environment());
  if (!nvrtc.compiler) throw EnvironmentError(nvrtc.reason);
  return std::move(nvrtc.compiler);
}

}  // namespace kiln::runtime
