// A compiler whose compilations are done by other processes: they run side by side, as NVRTC's do
// not within one process, and a compiler that crashes, exits or hangs costs one candidate.
#pragma once

#include <memory>

#include "codegen/compiler.hpp"
#include "runtime/build/compile_service.hpp"
#include "runtime/processes/process_pool.hpp"

namespace kiln::runtime {

/// Says of itself and of keys what the compiler in this process says. Where no process can be used it
/// compiles here.
class ProcessCompiler final : public codegen::Compiler {
 public:
  /// @param here the same compiler in this process
  /// @param place where the processes find it
  /// @param pool without `setup` and `refuse`
  ProcessCompiler(std::shared_ptr<codegen::Compiler> here, const CompilerPlace& place,
                  PoolOptions pool);

  codegen::CompilerIdentity identity() const override { return here_->identity(); }
  codegen::IncludeContext includes(const Target& target) const override {
    return here_->includes(target);
  }
  std::vector<std::string> options(const codegen::Source& source,
                                   const Target& target) const override {
    return here_->options(source, target);
  }
  bool worth_keeping() const noexcept override { return here_->worth_keeping(); }

  /// A process that ends early, or takes too long, is a CompileFailure that says how it ended.
  codegen::CompileResult compile(const codegen::Source& source, const Target& target) override;

  const ProcessPool& pool() const noexcept { return pool_; }

 private:
  std::shared_ptr<codegen::Compiler> here_;
  ProcessPool pool_;
};

}  // namespace kiln::runtime
