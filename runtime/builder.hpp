// Gets binaries: from the store, else from a compiler, on all cores when many are wanted.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <variant>
#include <vector>

#include "cache/store.hpp"
#include "codegen/compiler.hpp"
#include "codegen/instance.hpp"
#include "kiln/definition.hpp"
#include "kiln/log.hpp"

namespace kiln::runtime {

/// One instance's binary, or why there is none.
struct Build {
  std::variant<std::shared_ptr<const codegen::Binary>, CompileFailure> outcome;
  bool from_store = false;
  double seconds = 0;  ///< spent on it, by one thread

  const codegen::Binary* binary() const {
    const auto* b = std::get_if<std::shared_ptr<const codegen::Binary>>(&outcome);
    return b ? b->get() : nullptr;
  }
};

/// Safe to use from several threads.
class Builder {
 public:
  /// Makes the compiler for a target kind, at the first time one is needed.
  using MakeCompiler = std::function<std::shared_ptr<codegen::Compiler>(Target::Kind)>;

  Builder(std::shared_ptr<cache::Store> store, MakeCompiler make_compiler, LogSink log,
          unsigned threads);

  /// @throws UserError, EnvironmentError as make_source and Compiler::compile do.
  Build build(const KernelDefinition& kernel, std::span<const std::int64_t> config,
              const Target& target);

  /// One Build per config, in order. `progress(done)` is called on this thread. The first exception
  /// of any build is thrown here after the others have stopped.
  std::vector<Build> build_all(const KernelDefinition& kernel, std::span<const Values> configs,
                               const Target& target,
                               const std::function<void(std::size_t)>& progress);

  /// Digest of the kernel's source and everything it includes; the same for every config.
  Digest source_digest(const KernelDefinition& kernel, const Target& target);

  codegen::Compiler& compiler(Target::Kind kind);
  unsigned threads() const noexcept { return threads_; }
  std::size_t compiled() const noexcept { return compiled_.load(std::memory_order_relaxed); }

 private:
  std::shared_ptr<cache::Store> store_;
  MakeCompiler make_compiler_;
  LogSink log_;
  unsigned threads_;
  std::mutex compilers_mutex_;
  std::shared_ptr<codegen::Compiler> compilers_[2];
  codegen::IncludeCache includes_;
  std::atomic<std::size_t> compiled_{0};
};

}  // namespace kiln::runtime
