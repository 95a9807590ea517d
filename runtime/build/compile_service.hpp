// Compiling as a request to another process: what goes there and what comes back, and the process's
// side of it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/compiler.hpp"
#include "codegen/nvrtc.hpp"
#include "runtime/processes/serve.hpp"

namespace kiln::runtime {

/// Which compiler a process opens.
struct CompilerPlace {
  Target::Kind kind = Target::Kind::cuda;
  codegen::NvrtcOptions nvrtc{};
  std::vector<std::string> plugins{};  ///< of the host compiler

  std::vector<std::byte> pack() const;
  /// @throws BrokenFrame
  static CompilerPlace unpack(std::span<const std::byte> bytes);
};

/// What a process says of the compiler that it has opened.
struct CompilerGreeting {
  std::string problem;   ///< why it could not be opened; empty: it was
  std::string identity;  ///< two compilers of which this is equal make the same of every source

  std::vector<std::byte> pack() const;
  /// @throws BrokenFrame
  static CompilerGreeting unpack(std::span<const std::byte> bytes);
};

/// With Kiln's version and the folders of the compiler's own headers.
std::string identity_of(const codegen::Compiler& compiler);

/// One compilation. Relative paths in `source` are of this process's working folder.
std::vector<std::byte> pack_request(const codegen::Source& source, const Target& target);

/// Of a compiler's answer. @throws what the compiler threw there, and BrokenFrame when it is none for
/// this target.
codegen::CompileResult unpack_answer(std::span<const std::byte> answer, const Target& target);

/// What such a process is made of. `open` @throws EnvironmentError when there is no such compiler.
Service compile_service(
    std::function<std::unique_ptr<codegen::Compiler>(const CompilerPlace&)> open);

/// The compiler that is meant. @throws EnvironmentError when it cannot be opened.
std::unique_ptr<codegen::Compiler> open_compiler(const CompilerPlace& place);

}  // namespace kiln::runtime
