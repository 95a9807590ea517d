#include "runtime/build/process_compiler.hpp"

#include <utility>

#include <sys/resource.h>

#include "runtime/build/compile_interrupted.hpp"
#include "runtime/processes/frame.hpp"

namespace kiln::runtime {

namespace {

PoolOptions for_compiler(PoolOptions pool, const codegen::Compiler& here,
                         const CompilerPlace& place) {
  pool.setup = place.pack();
  pool.refuse = [expected = identity_of(here)](std::span<const std::byte> hello) -> std::string {
    const CompilerGreeting greeting = CompilerGreeting::unpack(hello);
    if (!greeting.obstacle.empty()) return greeting.obstacle;
    if (greeting.identity == expected) return {};
    return "its compiler is another one: " + greeting.identity + ", here: " + expected;
  };
  return pool;
}

}  // namespace

ProcessCompiler::ProcessCompiler(std::shared_ptr<codegen::Compiler> here,
                                 const CompilerPlace& place, PoolOptions pool)
    : here_(std::move(here)), place_(place), options_(std::move(pool)) {}

/// A program that finds all in its store needs none.
ProcessPool& ProcessCompiler::made_pool() const {
  const int priority = ::getpriority(PRIO_PROCESS, 0);  // on Linux: of this thread
  const std::lock_guard lock(pools_mutex_);
  const auto found = pools_.find(priority);
  if (found != pools_.end()) return found->second;
  return pools_.try_emplace(priority, for_compiler(options_, *here_, place_)).first->second;
}

codegen::CompileResult ProcessCompiler::compile(const codegen::Source& source,
                                                const Target& target) {
  const std::string& name = source.label.empty() ? source.entry : source.label;
  const auto failure = [&](const std::string& reason) {
    const codegen::CompilerIdentity compiler = identity();
    return CompileFailure{name, compiler.name + " " + compiler.version, options(source, target),
                          "error: the compiler did not finish: " + reason};
  };
  ProcessPool::Outcome outcome = made_pool().run(pack_request(source, target));
  if (const auto* lost = std::get_if<ProcessPool::Lost>(&outcome)) return failure(lost->reason);
  if (const auto* interrupted = std::get_if<ProcessPool::Interrupted>(&outcome))
    throw CompileInterrupted(name + " could not be compiled now: " + interrupted->reason);
  if (std::holds_alternative<ProcessPool::Unusable>(outcome)) return here_->compile(source, target);
  try {
    return unpack_answer(std::get<ProcessPool::Answer>(outcome), target);
  } catch (const BrokenFrame& error) {
    return failure(std::string("its process answered with ") + error.what());
  }
}

}  // namespace kiln::runtime
