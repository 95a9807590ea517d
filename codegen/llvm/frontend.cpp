#include "codegen/llvm/frontend.hpp"

#include <clang/CodeGen/CodeGenAction.h>
#include <clang/Frontend/CompilerInstance.h>
#include <llvm/Support/Path.h>

#include "codegen/llvm/clang_run.hpp"
#include "codegen/llvm/entry_unit.hpp"
#include "codegen/llvm/host_options.hpp"
#include "codegen/llvm/missing_headers.hpp"
#include "codegen/llvm/precompiled_header.hpp"
#include "codegen/llvm/unit_includes.hpp"

namespace kiln::codegen::llvm_host {
namespace {

class UnitAction final : public clang::EmitLLVMOnlyAction {
 public:
  using clang::EmitLLVMOnlyAction::EmitLLVMOnlyAction;
  UnitIncludes includes;

 private:
  bool BeginSourceFileAction(clang::CompilerInstance& compiler) override {
    watch_includes(compiler.getPreprocessor(), includes);
    return clang::EmitLLVMOnlyAction::BeginSourceFileAction(compiler);
  }
};

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
                                           llvm::LLVMContext& context, std::string& log,
                                           std::size_t& headers_ahead) {
  std::vector<std::string> options = host_options(source, target);
  // Ours first: a CUDA toolkit among the author's directories must not shadow them.
  options.push_back(std::string("-I") + kHeaderDir);
  for (const std::string& option : author_include_options(source)) options.push_back(option);
  for (const std::string& dir : source.include_dirs) options.push_back("-I" + dir);
  const std::string path = unit_path(source), unit = entry_unit(source);
  {
    ClangRun clang;
    std::vector<std::string> shortened = options;
    std::string words;
    UnitAction action(&context);
    const auto precompiled = use_precompiled_header(clang, shortened, source, target);
    if (precompiled && clang.execute(action, std::move(shortened), path, unit, words)) {
      const bool same = fits(*precompiled, action.includes);
      remember_headers(source, same ? action.includes.headers : std::vector<std::string>{});
      if (same) {
        headers_ahead = 1 + precompiled->headers.size();
        log += words;
        return action.takeModule();
      }
    }
  }
  headers_ahead = 0;
  // Compiled without precompiled headers, so that errors are those of the unit itself.
  UnitAction action(&context);
  if (ClangRun().execute(action, std::move(options), path, unit, log)) {
    remember_headers(source, action.includes.headers);
    return action.takeModule();
  }
  log += explain_missing_header(source.path, log);
  return nullptr;
}

}  // namespace kiln::codegen::llvm_host
