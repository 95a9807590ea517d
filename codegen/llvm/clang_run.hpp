// One run of Clang over one file that is in memory, with Kiln's device headers at hand.
#pragma once

#include <string>
#include <vector>

#include <clang/Frontend/FrontendAction.h>
#include <llvm/ADT/StringRef.h>
#include <llvm/Support/VirtualFileSystem.h>

namespace kiln::codegen::llvm_host {

/// The folder of the device headers, in memory.
inline constexpr const char* kHeaderDir = "/kiln/include";

/// Once. Not thread-safe; as many as there are threads may run side by side.
class ClangRun {
 public:
  ClangRun();
  /// One more file in memory.
  void add_file(const std::string& path, llvm::StringRef text);
  /// Runs `action` over the file `path`, which holds `text`. False: Clang refused something; `log`
  /// gets its errors and warnings in any case.
  bool execute(clang::FrontendAction& action, std::vector<std::string> options,
               const std::string& path, llvm::StringRef text, std::string& log);

 private:
  llvm::IntrusiveRefCntPtr<llvm::vfs::InMemoryFileSystem> memory_;
};

}  // namespace kiln::codegen::llvm_host
