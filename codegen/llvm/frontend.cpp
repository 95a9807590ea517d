#include "codegen/llvm/frontend.hpp"

#include <cstdlib>

#include <clang/Basic/Diagnostic.h>
#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/CompilerInvocation.h>
#include <clang/Frontend/TextDiagnosticPrinter.h>
#include <llvm/Support/Path.h>
#include <llvm/Support/VirtualFileSystem.h>
#include <llvm/TargetParser/Host.h>

#include "codegen/llvm/device_headers.hpp"
#include "codegen/llvm/entry_unit.hpp"
#include "codegen/llvm/host_options.hpp"
#include "codegen/llvm/missing_headers.hpp"
#include "kiln_llvm_identity.hpp"

namespace kiln::codegen::llvm_host {
namespace {

constexpr const char* kHeaderDir = "/kiln/include";

std::string resource_dir() {
  const char* named = std::getenv("KILN_CLANG_RESOURCE_DIR");
  if (named && *named) return named;
  for (const char* dir : {KILN_LLVM_RESOURCE_DIR, "/usr/lib/llvm-19/lib/clang/19",
                          "/usr/lib/clang/19", "/usr/lib64/clang/19", "/usr/local/lib/clang/19"}) {
    if (llvm::sys::fs::exists(std::string(dir) + "/include/stddef.h")) return dir;
  }
  return KILN_LLVM_RESOURCE_DIR;
}

// Quoted includes are looked for in the folder of the source's path, as for any file.
std::string unit_path(const Source& source) {
  llvm::SmallString<128> path(source.path);
  llvm::sys::path::remove_filename(path);
  llvm::sys::fs::make_absolute(path);
  llvm::sys::path::append(path, ".kiln_unit.cpp");
  return path.str().str();
}

}  // namespace

std::unique_ptr<llvm::Module> run_frontend(const Source& source, const Target& target,
                                           llvm::LLVMContext& context, std::string& words) {
  const std::string resources = resource_dir();
  const std::string unit = unit_path(source);
  std::vector<std::string> options = host_options(source, target);
  // Ours first: a CUDA toolkit among the author's directories must not shadow them.
  options.push_back(std::string("-I") + kHeaderDir);
  for (const std::string& option : author_include_options(source)) options.push_back(option);
  for (const std::string& dir : source.include_dirs) options.push_back("-I" + dir);
  options.insert(options.end(), {"-triple", llvm::sys::getProcessTriple(), "-resource-dir",
                                 resources, "-internal-isystem", resources + "/include",
                                 "-main-file-name", "unit.cpp", unit});
  std::vector<const char*> arguments;
  for (const std::string& option : options) arguments.push_back(option.c_str());

  llvm::IntrusiveRefCntPtr<llvm::vfs::InMemoryFileSystem> memory(new llvm::vfs::InMemoryFileSystem);
  for (const DeviceHeader& header : device_headers()) {
    memory->addFile(std::string(kHeaderDir) + "/" + header.name, 0,
                    llvm::MemoryBuffer::getMemBuffer(
                        llvm::StringRef(header.text.data(), header.text.size()), header.name));
  }
  memory->addFile(unit, 0, llvm::MemoryBuffer::getMemBufferCopy(entry_unit(source), unit));
  llvm::IntrusiveRefCntPtr<llvm::vfs::OverlayFileSystem> files(
      new llvm::vfs::OverlayFileSystem(llvm::vfs::createPhysicalFileSystem().release()));
  files->pushOverlay(memory);

  llvm::raw_string_ostream log(words);
  llvm::IntrusiveRefCntPtr<clang::DiagnosticOptions> diagnostic_options(
      new clang::DiagnosticOptions);
  diagnostic_options->ShowPresumedLoc = true;  // the source's own path and lines
  clang::TextDiagnosticPrinter printer(log, diagnostic_options.get());
  llvm::IntrusiveRefCntPtr<clang::DiagnosticsEngine> diagnostics(new clang::DiagnosticsEngine(
      new clang::DiagnosticIDs, diagnostic_options, &printer, /*ShouldOwnClient=*/false));

  clang::CompilerInstance compiler;
  if (!clang::CompilerInvocation::CreateFromArgs(compiler.getInvocation(), arguments,
                                                 *diagnostics)) {
    log << "the options were refused\n";
    return nullptr;
  }
  compiler.getFrontendOpts().DisableFree = false;  // the default leaks on purpose, to exit faster
  compiler.getCodeGenOpts().DisableFree = false;
  compiler.setVerboseOutputStream(llvm::nulls());  // the count of errors, else on stderr
  compiler.createDiagnostics(&printer, /*ShouldOwnClient=*/false);
  compiler.createFileManager(files);
  clang::EmitLLVMOnlyAction action(&context);
  if (compiler.ExecuteAction(action)) return action.takeModule();
  log.flush();
  log << explain_missing_header(source.path, words);
  return nullptr;
}

}  // namespace kiln::codegen::llvm_host
