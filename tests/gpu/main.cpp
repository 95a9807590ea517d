// The suite's own entry: without a GPU or without NVRTC it says so and skips.
#include <cstdio>

#include "codegen/nvrtc.hpp"
#include "run_tests.hpp"
#include "runtime/device/cuda/cuda_device.hpp"

namespace {

constexpr int kSkipped = 77;

int skip(const std::string& reason) {
  std::printf("skipped: %s\n", reason.c_str());
  return kSkipped;
}

}  // namespace

int main(int argc, char** argv) {
  const kiln::runtime::CudaProbe cuda = kiln::runtime::probe_cuda();
  if (cuda.devices == 0) return skip(cuda.reason);
  const auto nvrtc =
      kiln::codegen::NvrtcCompiler::find(kiln::codegen::NvrtcOptions::from_environment());
  if (!nvrtc.compiler) return skip(nvrtc.reason);
  return kiln::test::run_tests(argc, argv);
}
