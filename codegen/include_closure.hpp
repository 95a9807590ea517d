// What a translation unit reads: a digest over its text and every header it transitively includes,
// without running a compiler.
//
//   IncludeCache cache;                                     // one per process is best
//   IncludeClosure c = include_closure(text, context, cache);
//   if (c.complete) source.closure = c.digest;
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/macro_condition.hpp"
#include "kiln/key.hpp"

namespace kiln::codegen {

/// One distinct file or name that an include refers to.
struct IncludedFile {
  enum class Kind {
    file,      ///< read: `path` and `content` say what
    absent,    ///< a quoted include that no folder has; one that appears later changes the digest
    external,  ///< a system include that no folder has, or a header built into the compiler
  };

  Kind kind;
  std::string name;  ///< as first written, e.g. `<cuda_bf16.h>`
  std::string path;  ///< empty unless `file`
  Digest content{};  ///< SHA-256 of the file; zero unless `file`
};

struct IncludeClosure {
  Digest digest{};
  std::vector<IncludedFile> files;  ///< in include order, each once
  /// False when an include could not be understood: `#include MACRO` where the macro's value is not
  /// a file name in plain sight, or includes nested beyond 200. Then the digest covers less than
  /// the compiler reads, and must not be the key of anything that is kept.
  bool complete = true;
  std::vector<std::string> unresolved;  ///< why it is not complete, one line each
};

/// How the compiler will look for files.
struct IncludeContext {
  std::string path;  ///< of the text: quoted includes are first looked for in its folder
  std::vector<std::string> include_dirs;
  std::vector<std::string>
      builtin_headers;                    ///< names the compiler answers itself, before any folder
  std::vector<std::string> pre_includes;  ///< read before the text, as if quoted in it
  KnownMacros macros;                     ///< lets branches that are certainly dead be skipped
};

/// Adds what compiler options say: -I (before the folders already there), -D, -U and -include, in
/// the spellings of NVRTC and Clang.
void apply_options(std::span<const std::string> options, IncludeContext& context);

/// Remembers scanned files by path, device, inode, size and times. Safe to use from several
/// threads.
class IncludeCache {
 public:
  /// Files changed less than `settle_seconds` ago are read each time: another change might not move
  /// their times.
  explicit IncludeCache(int settle_seconds = 3);
  ~IncludeCache();
  IncludeCache(const IncludeCache&) = delete;
  IncludeCache& operator=(const IncludeCache&) = delete;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Files as they were when they were first asked for: closures that share one, as those of one
/// instance do, look at each path once, and are of one moment. For one thread.
class FilesSeen {
 public:
  /// The cache must outlive it.
  FilesSeen(IncludeCache& cache);  // NOLINT: a closure may have one for itself
  ~FilesSeen();
  FilesSeen(const FilesSeen&) = delete;
  FilesSeen& operator=(const FilesSeen&) = delete;

  struct Impl;
  Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

/// Follows every include that the compiler might. Branches are skipped only if their condition is
/// certainly false under `context.macros`; a #define or #undef of one of those macros makes it
/// unknown from there on. `#include MACRO` follows every value the macro is given anywhere. The
/// digest is over the text and, for each include in order, the name as written and the content
/// found (or that there was none): not over paths, so equal trees in different places agree.
/// Unreadable files count as absent; nothing is thrown for them.
IncludeClosure include_closure(std::string_view text, const IncludeContext& context,
                               const FilesSeen& files);

}  // namespace kiln::codegen
