// Compilation as a request to another process: the messages, and the service that answers them.
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

/// The compiler that a process is to open.
struct CompilerPlace {
  Target::Kind kind = Target::Kind::cuda;
  codegen::NvrtcOptions nvrtc{};
  std::vector<std::string> plugins{};  ///< of the host compiler

  std::vector<std::byte> pack() const;
  /// @throws BrokenFrame
  static CompilerPlace unpack(std::span<const std::byte> bytes);
};

/// A process's reply: the compiler that it has opened.
struct CompilerGreeting {
  std::string obstacle;  ///< why it could not be opened; empty: it was
  std::string identity;  ///< compilers with equal identities produce the same bytes

  std::vector<std::byte> pack() const;
  /// @throws BrokenFrame
  static CompilerGreeting unpack(std::span<const std::byte> bytes);
};

/// Includes Kiln's version and the folders of the compiler's own headers.
std::string identity_of(const codegen::Compiler& compiler);

/// The request for one compilation. Relative paths of `source` refer to this process's working
/// folder.
std::vector<std::byte> pack_request(const codegen::Source& source, const Target& target);

/// The result in an answer. @throws what the compiler threw in its process, and BrokenFrame when
/// the answer is malformed or is for another target.
codegen::CompileResult unpack_answer(std::span<const std::byte> answer, const Target& target);

/// The service of a process that compiles. `open` @throws EnvironmentError when there is no such
/// compiler.
Service compile_service(
    std::function<std::unique_ptr<codegen::Compiler>(const CompilerPlace&)> open);

/// When a compiler that can tell its identity without its libraries opens them.
enum class Opening {
  at_once,        ///< whether it can compile is known then
  when_compiling  ///< so that a program runs from stored binaries without them
};

/// Opens the compiler in this process. @throws EnvironmentError when it cannot be opened.
std::unique_ptr<codegen::Compiler> open_compiler(const CompilerPlace& place, Opening opening);

}  // namespace kiln::runtime
