// A compiler in processes that do as a test says.
#pragma once

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "kiln_test.hpp"
#include "odd_compiler.hpp"
#include "runtime/build/process_compiler.hpp"
#include "temporary_directory.hpp"

namespace kiln::test {

/// The compiler in this process, which says that it was asked.
class CompilerHere final : public OddCompiler {
 public:
  codegen::CompileResult compile(const codegen::Source&, const Target& target) override {
    ++asked;
    return binary_of("here", target);
  }
  std::atomic<int> asked{0};
};

/// A program beside this one.
inline std::filesystem::path beside(const char* name) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
}

/// True unless `pid` is gone, or a zombie that its new parent has not seen yet.
inline bool alive(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return false;
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && text[name_end + 2] != 'Z' && text[name_end + 2] != 'X';
}

template <class Condition>
bool within(double seconds, const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

inline std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

inline codegen::Source odd_source(const std::string& text) {
  codegen::Source source;
  source.text = text;
  source.entry = "k";
  source.label = "k{a=" + text + "}";
  source.options = {"-O", "two words"};
  source.include_dirs = {"/a", ""};
  source.values = {-1, std::int64_t{1} << 62};
  return source;
}

inline const Target kOddTarget{Target::Kind::host, "generic"};

struct ProcessBench {
  /// `as`: a name of odd_compiler that says what is wrong with it.
  explicit ProcessBench(runtime::PoolOptions options = {}, const std::string& as = {}) {
    const auto odd_compiler = beside("odd_compiler");
    options.executable = odd_compiler;
    if (!as.empty()) {
      options.executable = folder.path() / as;
      std::filesystem::create_symlink(odd_compiler, options.executable);
    }
    compiler = std::make_unique<runtime::ProcessCompiler>(
        here, runtime::CompilerPlace{.kind = Target::Kind::host}, std::move(options));
  }

  codegen::CompileResult compile(const std::string& text) const {
    return compiler->compile(odd_source(text), kOddTarget);
  }
  /// The code that it was compiled to; else the failure's log.
  std::string outcome(const std::string& text) const {
    const codegen::CompileResult result = compile(text);
    if (const auto* failure = std::get_if<CompileFailure>(&result)) return failure->log;
    return code_of(std::get<codegen::Binary>(result));
  }
  std::vector<pid_t> processes() const { return compiler->pool().processes(); }

  TemporaryDirectory folder;
  std::shared_ptr<CompilerHere> here = std::make_shared<CompilerHere>();
  std::unique_ptr<runtime::ProcessCompiler> compiler;
};

}  // namespace kiln::test
