// A compiler that compiles in other processes. NVRTC serialises the threads of one process, so
// several processes are faster; and a compiler that crashes, exits or hangs fails one candidate
// only.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "codegen/compiler.hpp"
#include "runtime/build/compile_service.hpp"
#include "runtime/processes/process_pool.hpp"

namespace kiln::runtime {

/// Its identity, options and headers, and so its keys, are those of the compiler in this process.
/// If no process can be used, that compiler compiles. A process inherits the priority of the thread
/// that asks for it, and cannot be raised again, so threads of different priorities have processes
/// of their own, `processes` of the pool's options each.
class ProcessCompiler final : public codegen::Compiler {
 public:
  /// @param here the same compiler in this process
  /// @param place says how the processes open it
  /// @param pool without `setup` and `refuse`
  ProcessCompiler(std::shared_ptr<codegen::Compiler> here, const CompilerPlace& place,
                  PoolOptions pool);

  codegen::CompilerIdentity identity() const override { return here_->identity(); }
  codegen::IncludeContext includes(const Target& target) const override {
    return here_->includes(target);
  }
  std::vector<std::string> header_folders() const override { return here_->header_folders(); }
  std::string library_path() const override { return here_->library_path(); }
  std::vector<std::string> options(const codegen::Source& source,
                                   const Target& target) const override {
    return here_->options(source, target);
  }
  bool worth_keeping() const noexcept override { return here_->worth_keeping(); }

  /// If a process ends early or takes too long, the result is a CompileFailure that says how it
  /// ended. @throws CompileInterrupted when each process that tried was ended from outside.
  codegen::CompileResult compile(const codegen::Source& source, const Target& target) override;

  /// The pool for the calling thread's priority.
  const ProcessPool& pool() const { return made_pool(); }

 private:
  ProcessPool& made_pool() const;

  std::shared_ptr<codegen::Compiler> here_;
  const CompilerPlace place_;
  const PoolOptions options_;
  mutable std::mutex pools_mutex_;
  mutable std::map<int, ProcessPool> pools_;  ///< by priority
};

}  // namespace kiln::runtime
