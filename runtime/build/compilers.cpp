#include "runtime/build/compilers.hpp"

#include "codegen/llvm_plugin.hpp"
#include "codegen/nvrtc.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

std::shared_ptr<codegen::Compiler> make_compiler(Target::Kind kind) {
  if (kind == Target::Kind::host) return codegen::make_host_compiler();
  codegen::NvrtcProbe nvrtc =
      codegen::NvrtcCompiler::find(codegen::NvrtcOptions::from_environment());
  if (!nvrtc.compiler) throw EnvironmentError(nvrtc.reason);
  return std::move(nvrtc.compiler);
}

}  // namespace kiln::runtime
