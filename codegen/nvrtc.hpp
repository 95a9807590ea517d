// Compiles kernels for CUDA devices through NVRTC, which is opened at run time. Needs neither a GPU
// nor a driver.
//
//   NvrtcProbe nvrtc = NvrtcCompiler::find(NvrtcOptions::from_environment());
//   if (!nvrtc.compiler) log(nvrtc.reason);
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.hpp"
#include "codegen/include_closure.hpp"

namespace kiln::codegen {

/// Where NVRTC and the CUDA headers are looked for.
struct NvrtcOptions {
  std::string library;                  ///< the libnvrtc to use; empty: search
  std::vector<std::string> cuda_roots;  ///< toolkit folders or site-packages, in order
  /// NVRTC has a compilation cache of its own since 12.9. Kiln's store makes it superfluous.
  bool use_nvrtc_cache = false;

  /// $KILN_NVRTC; $KILN_CUDA_ROOT, $CUDA_HOME, $CUDA_PATH, /usr/local/cuda, the one built with.
  static NvrtcOptions from_environment();
};

struct NvrtcProbe;

/// Safe to use from several threads at once; compilations run side by side.
class NvrtcCompiler final : public Compiler {
 public:
  /// A missing NVRTC is an ordinary outcome: then `compiler` is null and `reason` says what was
  /// tried and what to do.
  static NvrtcProbe find(const NvrtcOptions& options);

  ~NvrtcCompiler() override;

  /// `build` is the library's build id and the digest of the headers Kiln adds.
  CompilerIdentity identity() const override;

  IncludeContext includes(const Target& target) const override;
  std::vector<std::string> options(const Source& source, const Target& target) const override;

  /// The cubin's exact architecture is the target's. A refused option is a CompileFailure too.
  CompileResult compile(const Source& source, const Target& target) override;

  /// Folders of the CUDA headers, searched after the source's own. Empty: not found, and kernels
  /// that include cuda_bf16.h will not compile.
  const std::vector<std::string>& cuda_include_dirs() const;

  /// cuda_include_dirs().
  std::vector<std::string> header_folders() const override;
  /// Of the loaded library.
  std::string library_path() const override;

 private:
  struct Impl;
  explicit NvrtcCompiler(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

struct NvrtcProbe {
  std::unique_ptr<NvrtcCompiler> compiler;
  std::string reason;  ///< why there is none
};

}  // namespace kiln::codegen
