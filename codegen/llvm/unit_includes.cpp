#include "codegen/llvm/unit_includes.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include <clang/Basic/SourceManager.h>
#include <clang/Lex/PPCallbacks.h>
#include <llvm/ADT/StringExtras.h>

#include "codegen/llvm/clang_run.hpp"

namespace kiln::codegen::llvm_host {
namespace {

class IncludeWatch final : public clang::PPCallbacks {
 public:
  IncludeWatch(const clang::SourceManager& sources, UnitIncludes& unit)
      : sources_(sources), unit_(unit) {}

  void token() {
    if (!in_header_) open_ = false;
  }

 private:
  using Location = clang::SourceLocation;
  using Name = const clang::Token&;
  using Definition = const clang::MacroDefinition&;

  static bool is_header(llvm::StringRef path) {
    return path.consume_front(kHeaderDir) && path.starts_with("/");
  }
  bool watching() const { return open_ && !in_header_; }
  void tested(Name name) {
    if (watching()) tested_.push_back(name.getIdentifierInfo()->getName().str());
  }

  void FileChanged(Location place, FileChangeReason, clang::SrcMgr::CharacteristicKind,
                   clang::FileID) override {
    in_header_ = is_header(sources_.getFilename(place)) || sources_.isWrittenInBuiltinFile(place) ||
                 sources_.isWrittenInCommandLineFile(place);
  }
  void InclusionDirective(Location, Name, llvm::StringRef name, bool, clang::CharSourceRange,
                          clang::OptionalFileEntryRef file, llvm::StringRef, llvm::StringRef,
                          const clang::Module*, bool, clang::SrcMgr::CharacteristicKind) override {
    if (!watching() || !file || !is_header(file->getName()) || name == "cuda_runtime.h") return;
    std::vector<std::string>& headers = unit_.headers;
    if (std::find(headers.begin(), headers.end(), name) != headers.end()) return;
    headers.push_back(name.str());
    const auto move = [](std::vector<std::string>& from, std::vector<std::string>& to) {
      to.insert(to.end(), from.begin(), from.end());
      from.clear();
    };
    move(defined_, unit_.defined);
    move(tested_, unit_.tested);
  }
  void PragmaDirective(Location place, clang::PragmaIntroducerKind) override {
    llvm::StringRef line = sources_.getCharacterData(place);
    line = line.take_until([](char c) { return c == '\n'; });
    line.consume_front("#");
    line = line.ltrim();
    line.consume_front("pragma");
    if (line.trim() != "once") token();
  }
  void MacroDefined(Name name, const clang::MacroDirective*) override {
    if (watching()) defined_.push_back(name.getIdentifierInfo()->getName().str());
  }
  void MacroUndefined(Name, Definition, const clang::MacroDirective*) override { token(); }
  void MacroExpands(Name name, Definition, clang::SourceRange, const clang::MacroArgs*) override {
    tested(name);
  }
  void Defined(Name name, Definition, clang::SourceRange) override { tested(name); }
  void Ifdef(Location, Name name, Definition) override { tested(name); }
  void Ifndef(Location, Name name, Definition) override { tested(name); }
  using clang::PPCallbacks::Elifdef;
  void Elifdef(Location, Name name, Definition) override { tested(name); }
  using clang::PPCallbacks::Elifndef;
  void Elifndef(Location, Name name, Definition) override { tested(name); }

  const clang::SourceManager& sources_;
  UnitIncludes& unit_;
  std::vector<std::string> defined_, tested_;  ///< since the last header
  bool open_ = true;                           ///< nothing has come yet but includes
  bool in_header_ = false;  ///< or in what comes with the compiler and its options
};

}  // namespace

void watch_includes(clang::Preprocessor& preprocessor, UnitIncludes& unit) {
  auto watch = std::make_unique<IncludeWatch>(preprocessor.getSourceManager(), unit);
  preprocessor.setTokenWatcher([seen = watch.get()](const clang::Token&) { seen->token(); });
  preprocessor.addPPCallbacks(std::move(watch));
}

}  // namespace kiln::codegen::llvm_host
