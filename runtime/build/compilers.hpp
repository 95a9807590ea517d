// Target kinds to compilers, in this process or in others.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "codegen/compiler.hpp"
#include "runtime/build/builder.hpp"

namespace kiln::runtime {

/// Where kernels are compiled.
struct CompilePlan {
  unsigned processes = 0;    ///< 0: in this process
  std::string executable{};  ///< the program of those processes
  std::string why_here{};    ///< if `processes` is 0
  bool broken = false;       ///< `processes` is 0 because the executable is missing
};

/// @param asked as RuntimeOptions::compile_processes.
/// @throws UserError when it, or KILN_COMPILE_PROCESSES, is no number from 0 to 256.
CompilePlan compile_plan(std::optional<unsigned> asked);

/// Starts one of these processes. Returns why it cannot be used; empty if it can.
std::string obstacle_of(const CompilePlan& plan);

/// A function that makes NVRTC's or the host compiler, to run where compile_plan(asked) says, which
/// is asked now: a first launch does not wait for it. The function, whose processes run in the
/// background if that is asked for, @throws EnvironmentError when the compiler's library is
/// missing, saying what to install. @throws UserError as compile_plan does
Builder::MakeCompiler compiler_maker(std::optional<unsigned> asked, bool background = false);

/// compiler_maker({})(kind)
std::shared_ptr<codegen::Compiler> make_compiler(Target::Kind kind);

}  // namespace kiln::runtime
