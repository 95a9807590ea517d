// What every host test needs: compile a piece of kernel source and launch it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "codegen/llvm_plugin.hpp"
#include "kiln_test.hpp"
#include "runtime/device/host/host_module.hpp"

namespace host_test {

using kiln::codegen::Binary;
using kiln::codegen::Source;
using kiln::runtime::Extent;
using kiln::runtime::HostModule;

#if __has_include(<catch2/catch_all.hpp>)
inline auto contains(const std::string& text) { return Catch::Matchers::ContainsSubstring(text); }
#else
inline auto contains(const std::string& text) { return Catch::Contains(text); }
#endif

inline kiln::codegen::Compiler& compiler() {
  static const std::unique_ptr<kiln::codegen::Compiler> instance =
      kiln::codegen::make_host_compiler();
  return *instance;
}

inline Source source_of(std::string text, std::string entry) {
  Source source;
  source.text = std::move(text);
  source.include_dirs = {KILN_SOURCE_ROOT "/include", KILN_SOURCE_ROOT "/templates"};
  source.path = "test.cu";
  source.entry = std::move(entry);
  source.label = source.entry;
  return source;
}

inline Binary compile(std::string text, std::string entry) {
  const Source source = source_of(std::move(text), std::move(entry));
  auto result = compiler().compile(source, kiln::Target::this_host());
  if (auto* failure = std::get_if<kiln::CompileFailure>(&result))
    throw kiln::CompileError(*failure);
  return std::get<Binary>(std::move(result));
}

/// The compiler's words about a source that it must refuse.
inline std::string refusal(const Source& source) {
  auto result = compiler().compile(source, kiln::Target::this_host());
  REQUIRE(std::holds_alternative<kiln::CompileFailure>(result));
  return std::get<kiln::CompileFailure>(result).log;
}

/// As `compile`, once for each source: cases launch one kernel for several problems, and compiling
/// an emulated GEMM takes longer than running it.
inline Binary compile_once(const std::string& text, const std::string& entry) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, std::string>, Binary> binaries;
  const std::lock_guard lock(mutex);
  auto found = binaries.find({text, entry});
  if (found == binaries.end())
    found = binaries.emplace(std::pair(text, entry), compile(text, entry)).first;
  return found->second;
}

class Kernel {
 public:
  Kernel(const std::string& text, const std::string& entry)
      : module_(HostModule::load(compile_once(text, entry), kiln::runtime::HostWorkers::create())) {
  }

  template <class... P>
  void operator()(Extent grid, Extent block, std::size_t dynamic_shared, P... parameters) const {
    void* arguments[] = {static_cast<void*>(&parameters)..., nullptr};
    module_.launch(grid, block, dynamic_shared, arguments);
  }
  /// With guard zones around the shared memory.
  template <class... P>
  void in_clusters(Extent cluster, Extent grid, Extent block, std::size_t dynamic_shared,
                   const P&... parameters) const {
    void* arguments[] = {const_cast<void*>(static_cast<const void*>(&parameters))..., nullptr};
    module_.launch_checked(grid, block, dynamic_shared, arguments, cluster);
  }
  const HostModule& module() const { return module_; }

 private:
  HostModule module_;
};

}  // namespace host_test
