#include "codegen/llvm_plugin.hpp"

#include <cstring>
#include <filesystem>
#include <mutex>
#include <utility>

#include "codegen/dynamic_library.hpp"
#include "codegen/llvm/host_options.hpp"
#include "kiln/detail/environment.hpp"
#include "kiln/detail/installation.hpp"
#include "kiln_llvm_identity.hpp"

namespace kiln::codegen {
namespace {

class LazyHostCompiler final : public Compiler {
 public:
  explicit LazyHostCompiler(std::vector<std::filesystem::path> plugins)
      : plugins_(std::move(plugins)) {}

  CompilerIdentity identity() const override {
    return {"clang", KILN_LLVM_VERSION, KILN_LLVM_BUILD};
  }
  IncludeContext includes(const Target&) const override { return llvm_host::host_includes(); }
  std::vector<std::string> options(const Source& source, const Target& target) const override {
    return llvm_host::host_options(source, target);
  }
  CompileResult compile(const Source& source, const Target& target) override {
    return open().compile(source, target);
  }

  /// The plugin's compiler; opens it at the first call.
  Compiler& open() {
    const std::lock_guard lock(mutex_);
    if (compiler_) return *compiler_;
    if (!has_llvm()) {
      throw EnvironmentError(
          "this build of Kiln has no host compiler: it was configured without LLVM 19; install "
          "the Clang, LLVM and LLD 19 development packages and configure with -Dllvm=enabled");
    }
    std::string tried;
    for (const std::filesystem::path& path : plugins_) {
      auto [library, error] =
          DynamicLibrary::open(path.string(), DynamicLibrary::Lifetime::process);
      if (!library) {
        tried += "\n  " + error;
        continue;
      }
      const auto build =
          reinterpret_cast<const char* (*)()>(library.symbol("kiln_llvm_plugin_build"));
      const auto create =
          reinterpret_cast<Compiler* (*)()>(library.symbol("kiln_llvm_create_compiler"));
      if (!build || !create || std::strcmp(build(), KILN_LLVM_BUILD) != 0) {
        tried += "\n  " + path.string() + ": belongs to another build of Kiln";
        continue;
      }
      library_ = std::move(library);
      compiler_.reset(create());
      return *compiler_;
    }
    throw EnvironmentError(
        "the host compiler could not be opened; install Kiln's LLVM plugin with the Clang and LLVM "
        "19 libraries, or name it in KILN_LLVM_PLUGIN. Tried:" +
        tried);
  }

 private:
  const std::vector<std::filesystem::path> plugins_;
  std::mutex mutex_;
  DynamicLibrary library_;
  std::unique_ptr<Compiler> compiler_;
};

}  // namespace

bool has_llvm() noexcept {
#ifdef KILN_HAS_LLVM
  return true;
#else
  return false;
#endif
}

std::vector<std::filesystem::path> host_compiler_plugins() {
  if (const auto named = detail::environment("KILN_LLVM_PLUGIN"); !named.empty()) return {named};
  return detail::plugin_paths("libkiln_llvm.so");
}

std::string host_compiler_obstacle(std::vector<std::filesystem::path> plugins) {
  try {
    LazyHostCompiler(std::move(plugins)).open();
    return {};
  } catch (const EnvironmentError& error) {
    return error.what();
  }
}

std::unique_ptr<Compiler> make_host_compiler(std::vector<std::filesystem::path> plugins) {
  return std::make_unique<LazyHostCompiler>(std::move(plugins));
}

}  // namespace kiln::codegen
