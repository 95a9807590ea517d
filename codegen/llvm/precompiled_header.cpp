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
#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringSet.h>

#include "codegen/llvm/clang_run.hpp"
#include "codegen/llvm/host_options.hpp"

namespace kiln::codegen::llvm_host {
namespace {

constexpr const char* kPrefixPath = "/kiln/prefix.hpp";
constexpr const char* kPrecompiledPath = "/kiln/prefix.pch";
constexpr const char* kFirstInclude = "#include <cuda_runtime.h>\n";
/// Each is about a MB; programs have two or three.
constexpr std::size_t kMostKept = 16, kMostSources = 256;

struct Prefix {
  std::string text;
  llvm::SmallVector<char, 0> parsed;
  llvm::StringSet<> identifiers;  ///< all that were met, also those that macros made
};
using PrecompiledHeader = std::shared_ptr<const Prefix>;

/// Precompiles to memory.
class PrecompileAction final : public clang::ASTFrontendAction {
 public:
  std::shared_ptr<clang::PCHBuffer> buffer = std::make_shared<clang::PCHBuffer>();
  llvm::StringSet<> identifiers;

 private:
  void EndSourceFileAction() override {
    for (const auto& known : getCompilerInstance().getPreprocessor().getIdentifierTable())
      identifiers.insert(known.getKey());
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

PrecompiledHeader precompile(std::vector<std::string> options, const std::string& text) {
  options.push_back(std::string("-I") + kHeaderDir);
  PrecompileAction action;
  std::string log;
  if (!ClangRun().execute(action, std::move(options), kPrefixPath, text, log) ||
      !action.buffer->IsComplete)
    return nullptr;
  return std::make_shared<const Prefix>(
      Prefix{text, std::move(action.buffer->Data), std::move(action.identifiers)});
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

/// What this process has precompiled, and what for. Safe to use from several threads.
class Kept {
 public:
  /// The units' first lines, as far as they are known: cuda_runtime.h, and what earlier units of
  /// this source included.
  std::string text_for(const Source& source) {
    const std::lock_guard lock(mutex_);
    const auto known = texts_.find(source.path);
    return known == texts_.end() ? kFirstInclude : known->second;
  }
  void remember(const Source& source, const std::vector<std::string>& headers) {
    std::string text = kFirstInclude;
    for (const std::string& header : headers) text += "#include <" + header + ">\n";
    const std::lock_guard lock(mutex_);
    if (texts_.size() < kMostSources || texts_.count(source.path)) texts_[source.path] = text;
  }

  /// Null where there is none, or none yet.
  PrecompiledHeader get(const std::vector<std::string>& options, const std::string& text) {
    const std::pair key(text, options);
    {
      const std::lock_guard lock(mutex_);
      if (made_.size() == kMostKept && made_.count(key) == 0) return nullptr;
      // A unit that comes while the header is being made does without. Waiting would be dangerous:
      // what makes it may end on a fatal error of Clang's, and never be done.
      if (const auto [place, first] = made_.try_emplace(key); !first) return place->second;
    }
    PrecompiledHeader header = precompile(options, text);
    const std::lock_guard lock(mutex_);
    return made_[key] = header;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;  ///< by the source's path
  std::map<std::pair<std::string, std::vector<std::string>>, PrecompiledHeader> made_;
};

Kept& kept() {
  static Kept& all = *new Kept;  // for as long as anything compiles
  return all;
}

}  // namespace

std::shared_ptr<const void> use_precompiled_header(ClangRun& run, std::vector<std::string>& options,
                                                   const Source& source, const Target& target) {
  const auto author = header_options(source, target);
  if (!author) return nullptr;
  const PrecompiledHeader header = kept().get(author->options, kept().text_for(source));
  if (!header || std::any_of(author->macros.begin(), author->macros.end(), [&](const auto& macro) {
        return header->identifiers.contains(macro);
      }))
    return nullptr;
  run.add_file(kPrefixPath, header->text);  // Clang looks whether it is still the same
  run.add_file(kPrecompiledPath, llvm::StringRef(header->parsed.data(), header->parsed.size()));
  options.insert(options.end(), {"-include-pch", kPrecompiledPath});
  return header;
}

void remember_headers(const Source& source, const std::vector<std::string>& headers) {
  kept().remember(source, headers);
}

}  // namespace kiln::codegen::llvm_host
