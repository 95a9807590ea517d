#include "codegen/llvm/precompiled_header.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <clang/Frontend/CompilerInstance.h>
#include <clang/Frontend/FrontendActions.h>
#include <clang/Lex/Preprocessor.h>
#include <clang/Serialization/ASTWriter.h>
#include <clang/Serialization/PCHContainerOperations.h>

#include "codegen/llvm/clang_run.hpp"
#include "codegen/llvm/guard.hpp"
#include "codegen/llvm/host_options.hpp"

namespace kiln::codegen::llvm_host {
namespace {

constexpr const char* kPrefixPath = "/kiln/prefix.hpp";
constexpr const char* kPrecompiledPath = "/kiln/prefix.pch";
/// Each is about a MB; programs have two or three.
constexpr std::size_t kMostKept = 16, kMostSources = 256;

using Headers = std::vector<std::string>;
using Shared = std::shared_ptr<const PrecompiledHeader>;

std::string prefix_text(const Headers& headers) {
  std::string text = "#include <cuda_runtime.h>\n";
  for (const std::string& header : headers) text += "#include <" + header + ">\n";
  return text;
}

/// Precompiles to memory.
class PrecompileAction final : public clang::ASTFrontendAction {
 public:
  std::shared_ptr<clang::PCHBuffer> buffer = std::make_shared<clang::PCHBuffer>();
  llvm::StringSet<> identifiers, macros;

 private:
  void EndSourceFileAction() override {
    const clang::Preprocessor& preprocessor = getCompilerInstance().getPreprocessor();
    const clang::SourceManager& sources = preprocessor.getSourceManager();
    for (const auto& known : preprocessor.getIdentifierTable()) {
      identifiers.insert(known.getKey());
      const clang::MacroInfo* const macro = preprocessor.getMacroInfo(known.getValue());
      if (macro && !macro->isBuiltinMacro() &&
          !sources.isWrittenInBuiltinFile(macro->getDefinitionLoc()) &&
          !sources.isWrittenInCommandLineFile(macro->getDefinitionLoc()))
        macros.insert(known.getKey());
    }
  }
  std::unique_ptr<clang::ASTConsumer> CreateASTConsumer(clang::CompilerInstance& compiler,
                                                        llvm::StringRef) override {
    std::string system_root;
    if (!clang::GeneratePCHAction::ComputeASTConsumerArguments(compiler, system_root))
      return nullptr;
    buffer->IsComplete = false;
    return std::make_unique<clang::PCHGenerator>(
        compiler.getPreprocessor(), compiler.getModuleCache(), kPrefixPath, system_root, buffer,
        compiler.getFrontendOpts().ModuleFileExtensions);
  }
  clang::TranslationUnitKind getTranslationUnitKind() override { return clang::TU_Prefix; }
  bool hasASTFileSupport() const override { return false; }
};

Shared precompile(std::vector<std::string> options, const Headers& headers) {
  options.push_back(std::string("-I") + kHeaderDir);
  PrecompileAction action;
  std::string log;
  if (!ClangRun().execute(action, std::move(options), kPrefixPath, prefix_text(headers), log) ||
      !action.buffer->IsComplete)
    return nullptr;
  return std::make_shared<const PrecompiledHeader>(
      PrecompiledHeader{headers, std::move(action.buffer->Data), std::move(action.identifiers),
                        std::move(action.macros)});
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

struct HeaderOptions {
  std::vector<std::string> options;  ///< that the header is compiled with
  std::vector<std::string> macros;   ///< of the author's own: for the unit alone
};

/// Nothing where the author's options may be of another kind than these.
std::optional<HeaderOptions> header_options(const Source& source, const Target& target) {
  const std::vector<std::string> own = host_options({}, target);
  HeaderOptions result;
  for (const std::string& option : host_options(source, target)) {
    if (std::find(own.begin(), own.end(), option) != own.end()) {
      result.options.push_back(option);
    } else if (option.starts_with("-D") || option.starts_with("-U")) {
      result.macros.emplace_back(option.begin() + 2,
                                 std::find_if_not(option.begin() + 2, option.end(), is_word));
    } else if (option.starts_with("-std=") || option.starts_with("-f") ||
               option.starts_with("-W")) {
      result.options.push_back(option);
    } else {
      return {};
    }
  }
  return result;
}

bool has(const Headers& headers, const std::string& name) {
  return std::find(headers.begin(), headers.end(), name) != headers.end();
}

/// What this process has precompiled, and what for. Safe to use from several threads.
class Kept {
 public:
  /// What earlier units of this source included.
  Headers headers_of(const Source& source) {
    const std::lock_guard lock(mutex_);
    const auto known = headers_.find(source.path);
    return known == headers_.end() ? Headers{} : known->second;
  }
  void remember(const Source& source, const Headers& headers) {
    const std::lock_guard lock(mutex_);
    if (headers_.size() == kMostSources && headers_.count(source.path) == 0) return;
    const auto [place, first] = headers_.try_emplace(source.path, headers);
    if (!first) std::erase_if(place->second, [&](const auto& name) { return !has(headers, name); });
  }

  /// Null where there is none, or none yet.
  Shared get(const std::vector<std::string>& options, const Headers& headers) {
    const std::pair key(headers, options);
    {
      const std::lock_guard lock(mutex_);
      if (made_.size() == kMostKept && made_.count(key) == 0) return nullptr;
      // A unit that comes while the header is being made does without: that takes no longer.
      if (const auto [place, first] = made_.try_emplace(key); !first) return place->second;
    }
    Shared header;
    if (!run_recoverable([&] { header = precompile(options, headers); })) header = nullptr;
    const std::lock_guard lock(mutex_);
    return made_[key] = header;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Headers> headers_;  ///< of units so far, by the source's path
  std::map<std::pair<Headers, std::vector<std::string>>, Shared> made_;
};

Kept& kept() {
  static Kept& all = *new Kept;  // for as long as anything compiles
  return all;
}

bool none_of(const llvm::StringSet<>& known, const std::vector<std::string>& names) {
  return std::none_of(names.begin(), names.end(),
                      [&](const std::string& name) { return known.contains(name); });
}

}  // namespace

std::shared_ptr<const PrecompiledHeader> use_precompiled_header(ClangRun& run,
                                                                std::vector<std::string>& options,
                                                                const Source& source,
                                                                const Target& target) {
  const auto author = header_options(source, target);
  if (!author) return nullptr;
  Shared header = kept().get(author->options, kept().headers_of(source));
  if (!header) header = kept().get(author->options, {});
  if (!header || !none_of(header->identifiers, author->macros)) return nullptr;
  run.add_file(kPrefixPath, prefix_text(header->headers));  // Clang looks whether it has changed
  run.add_file(kPrecompiledPath, {header->parsed.data(), header->parsed.size()});
  options.insert(options.end(), {"-include-pch", kPrecompiledPath});
  return header;
}

bool fits(const PrecompiledHeader& header, const UnitIncludes& unit) {
  // cuda_runtime.h comes first in any case.
  if (header.headers.empty()) return true;
  return std::all_of(header.headers.begin(), header.headers.end(),
                     [&](const auto& name) { return has(unit.headers, name); }) &&
         none_of(header.identifiers, unit.defined) && none_of(header.macros, unit.tested);
}

void remember_headers(const Source& source, const std::vector<std::string>& headers) {
  kept().remember(source, headers);
}

}  // namespace kiln::codegen::llvm_host
