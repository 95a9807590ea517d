#include "codegen/llvm/clang_run.hpp"

#include <clang/Basic/Diagnostic.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <clang/Frontend/TextDiagnosticPrinter.h>
#include <llvm/Support/FileSystem.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/TargetParser/Host.h>

#include "codegen/llvm/device_headers.hpp"
#include "kiln/detail/environment.hpp"
#include "kiln_llvm_identity.hpp"

namespace kiln::codegen::llvm_host {
namespace {

std::string resource_dir() {
  const std::string_view named = detail::environment("KILN_CLANG_RESOURCE_DIR");
  if (!named.empty()) return std::string(named);
  for (const char* dir : {KILN_LLVM_RESOURCE_DIR, "/usr/lib/llvm-19/lib/clang/19",
                          "/usr/lib/clang/19", "/usr/lib64/clang/19", "/usr/local/lib/clang/19"}) {
    if (llvm::sys::fs::exists(std::string(dir) + "/include/stddef.h")) return dir;
  }
  return KILN_LLVM_RESOURCE_DIR;
}

}  // namespace

ClangRun::ClangRun() : memory_(new llvm::vfs::InMemoryFileSystem) {
  for (const DeviceHeader& header : device_headers())
    memory_->addFile(std::string(kHeaderDir) + "/" + header.name, 0,
                     llvm::MemoryBuffer::getMemBuffer({header.text.data(), header.text.size()}));
}

void ClangRun::add_file(const std::string& path, llvm::StringRef text) {
  memory_->addFile(path, 0, llvm::MemoryBuffer::getMemBufferCopy(text, path));
}

bool ClangRun::execute(clang::FrontendAction& action, std::vector<std::string> options,
                       const std::string& path, llvm::StringRef text, std::string& log) {
  const std::string resources = resource_dir();
  options.insert(options.end(), {"-triple", llvm::sys::getProcessTriple(), "-resource-dir",
                                 resources, "-internal-isystem", resources + "/include",
                                 "-main-file-name", "unit.cpp", path});
  std::vector<const char*> arguments;
  for (const std::string& option : options) arguments.push_back(option.c_str());
  add_file(path, text);
  llvm::IntrusiveRefCntPtr<llvm::vfs::OverlayFileSystem> files(
      new llvm::vfs::OverlayFileSystem(llvm::vfs::createPhysicalFileSystem().release()));
  files->pushOverlay(memory_);

  llvm::raw_string_ostream words(log);
  llvm::IntrusiveRefCntPtr<clang::DiagnosticOptions> diagnostic_options(
      new clang::DiagnosticOptions);
  diagnostic_options->ShowPresumedLoc = true;  // the source's own path and lines
  clang::TextDiagnosticPrinter printer(words, diagnostic_options.get());
  llvm::IntrusiveRefCntPtr<clang::DiagnosticsEngine> diagnostics(new clang::DiagnosticsEngine(
      new clang::DiagnosticIDs, diagnostic_options, &printer, /*ShouldOwnClient=*/false));

  clang::CompilerInstance compiler;
  if (!clang::CompilerInvocation::CreateFromArgs(compiler.getInvocation(), arguments,
                                                 *diagnostics)) {
    words << "the compiler refused its options\n";
    return false;
  }
  compiler.getFrontendOpts().DisableFree = false;  // the default leaks on purpose, to exit faster
  compiler.getCodeGenOpts().DisableFree = false;
  compiler.setVerboseOutputStream(llvm::nulls());  // the count of errors, else on stderr
  compiler.createDiagnostics(&printer, /*ShouldOwnClient=*/false);
  compiler.createFileManager(files);
  return compiler.ExecuteAction(action);
}

}  // namespace kiln::codegen::llvm_host
