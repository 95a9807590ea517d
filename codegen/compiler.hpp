// What every compiler looks like to the rest of Kiln. A new one (another vendor, NVPTX through
// LLVM) is one file that implements this.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "codegen/binary.hpp"
#include "codegen/include_closure.hpp"
#include "codegen/source.hpp"
#include "kiln/error.hpp"

namespace kiln::codegen {

/// Part of every binary's key: two compilers with equal identities produce interchangeable code.
struct CompilerIdentity {
  std::string name;     ///< `nvrtc`, `clang`
  std::string version;  ///< `13.0`
  std::string build;    ///< whatever tells two builds of one version apart
};

/// A refused source is an ordinary outcome, so it is a value.
using CompileResult = std::variant<Binary, CompileFailure>;

/// Turns sources into binaries. Implementations are safe to call from several threads at once.
class Compiler {
 public:
  virtual ~Compiler() = default;

  virtual CompilerIdentity identity() const = 0;

  /// What is known without compiling about the files this compiler would read for `target`: its own
  /// include folders, the headers it brings along (identity().build stands for their content), and
  /// the macros it is certain to define or not to define.
  virtual IncludeContext includes(const Target& target) const = 0;

  /// Every option for this source and target except where to look for includes: part of the key, in
  /// which the content of included files stands, not their place.
  virtual std::vector<std::string> options(const Source& source, const Target& target) const = 0;

  /// False if compiling takes no longer than a look-up: then no store keeps the binary.
  virtual bool worth_keeping() const noexcept { return true; }

  /// @throws EnvironmentError when the compiler itself cannot run (library missing, out of memory).
  /// @throws UserError when `target` is not one this compiler knows.
  virtual CompileResult compile(const Source& source, const Target& target) = 0;

  /// Folders of headers that are its own but do not come with it, so that identity() says nothing
  /// of them. A compiler of the same identity with other folders may produce other code.
  virtual std::vector<std::string> header_folders() const { return {}; }

  /// The file of its library, where that was searched for. Another process that is told of it opens
  /// the same.
  virtual std::string library_path() const { return {}; }
};

}  // namespace kiln::codegen
