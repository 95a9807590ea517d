// What tests of the shipped templates through NVRTC share.
#pragma once

#include "codegen/instance.hpp"
#include "codegen/nvrtc.hpp"
#include "kiln_test.hpp"

namespace nvrtc_test {

using namespace kiln;
using namespace kiln::codegen;

inline const NvrtcProbe& probe() {
  static const NvrtcProbe probe = NvrtcCompiler::find(NvrtcOptions::from_environment());
  return probe;
}
inline NvrtcCompiler* nvrtc() { return probe().compiler.get(); }

inline DeviceLimits limits(int compute_capability) {
  DeviceLimits d;
  d.compute_capability = compute_capability;
  d.shared_per_block_optin = (compute_capability == 90 ? 227 : 163) * 1024;
  d.tensor_maps = compute_capability == 90;
  d.max_cluster_blocks = compute_capability == 90 ? 8 : 1;
  return d;
}

inline Binary must_compile(const KernelDefinition& kernel, const Values& config, const char* arch) {
  static IncludeCache cache;
  const Target target = Target::parse(arch);
  const Source source = make_source(kernel, config, target, *nvrtc(), cache);
  CHECK(source.cacheable);
  CompileResult result = nvrtc()->compile(source, target);
  if (auto* failure = std::get_if<CompileFailure>(&result)) FAIL(failure->log);
  return std::get<Binary>(std::move(result));
}

}  // namespace nvrtc_test
