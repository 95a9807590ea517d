// Target kinds to compilers, here or in processes of their own.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "codegen/compiler.hpp"
#include "runtime/build/builder.hpp"

namespace kiln::runtime {

/// How kernels are compiled.
struct CompilePlan {
  unsigned processes = 0;    ///< 0: in this one
  std::string executable{};  ///< of those processes
  std::string why_here{};    ///< where `processes` is 0
  bool broken = false;       ///< here because the executable is missing
};

/// @param asked as RuntimeOptions::compile_processes.
/// @throws UserError when it, or KILN_COMPILE_PROCESSES, is no number from 0 to 256.
CompilePlan compile_plan(std::optional<unsigned> asked);

/// Why none of those processes can be started, or is what it should be; empty: they can be used. Starts
/// one.
std::string problem_of(const CompilePlan& plan);

/// Makes compilers by compile_plan(asked): of NVRTC or the host compiler's plugin. What it returns
/// @throws EnvironmentError when the compiler's library is missing, saying what to install;
/// UserError as compile_plan does.
Builder::MakeCompiler compiler_maker(std::optional<unsigned> asked);

/// As compiler_maker does where nothing was asked.
std::shared_ptr<codegen::Compiler> make_compiler(Target::Kind kind);

}  // namespace kiln::runtime
