#include "codegen/llvm/host_options.hpp"

#include <array>
#include <string_view>

#include "kiln_llvm_identity.hpp"

namespace kiln::codegen::llvm_host {
namespace {

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

// Options of NVRTC about GPU code generation. The author writes one list for all compilers.
bool is_for_gpus_only(const std::string& option) {
  static constexpr std::array names = {"device-as-default-execution-space",
                                       "default-device",
                                       "lineinfo",
                                       "generate-line-info",
                                       "G",
                                       "device-debug",
                                       "extra-device-vectorization",
                                       "dopt",
                                       "gpu-architecture",
                                       "arch",
                                       "maxrregcount",
                                       "ptxas-options",
                                       "Xptxas",
                                       "no-cache",
                                       "split-compile",
                                       "dlto",
                                       "dc",
                                       "rdc",
                                       "relocatable-device-code",
                                       "minimal",
                                       "ftz",
                                       "prec-div",
                                       "prec-sqrt",
                                       "diag-suppress",
                                       "use_fast_math",
                                       "restrict",
                                       "disable-warnings",
                                       "pch",
                                       "modify-stack-limit"};
  if (option.empty() || option[0] != '-') return false;
  std::string_view name = option;
  name.remove_prefix(starts_with(name, "--") ? 2 : 1);
  name = name.substr(0, name.find('='));
  for (std::string_view known : names) {
    if (name == known) return true;
  }
  return false;
}

struct AuthorOptions {
  std::vector<std::string> plain, includes;
};

AuthorOptions author_options(const Source& source) {
  AuthorOptions out;
  const auto& given = source.options;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string& option = given[i];
    const auto renamed = [&](std::string_view from, std::string to) {
      if (!starts_with(option, from)) return false;
      to += option.substr(from.size());
      (starts_with(to, "-I") ? out.includes : out.plain).push_back(std::move(to));
      return true;
    };
    if (is_for_gpus_only(option)) continue;
    if ((option == "-I" || option == "-D" || option == "-U") && i + 1 < given.size()) {
      (option == "-I" ? out.includes : out.plain).push_back(option + given[i + 1]);
      ++i;
      continue;
    }
    if (renamed("--include-path=", "-I") || renamed("-I", "-I") ||
        renamed("--define-macro=", "-D") || renamed("--undefine-macro=", "-U") ||
        renamed("--std=", "-std=")) {
      continue;
    }
    if (option == "-fmad=false" || option == "--fmad=false") {
      out.plain.push_back("-ffp-contract=off");
    } else if (option != "-fmad=true" && option != "--fmad=true") {
      out.plain.push_back(option);
    }
  }
  return out;
}

}  // namespace

std::string cpu_of(const Target& target) {
  return target.arch;  // the levels of x86-64 and `generic` are LLVM's own names
}

std::vector<std::string> host_options(const Source& source, const Target& target) {
  std::vector<std::string> options = {
      "-target-cpu", cpu_of(target), "-x", "c++", "-std=c++20", "-O2", "-disable-llvm-passes",
      "-mrelocation-model", "pic", "-pic-level", "2", "-fvisibility=hidden", "-ffp-contract=fast",
      // A constant out of range reaches define_arithmetic.
      "-fno-strict-float-cast-overflow", "-relaxed-aliasing", "-fno-rtti", "-fdeclspec",
      "-fgnuc-version=4.2.1", "-fno-threadsafe-statics", "-ferror-limit", "20", "-nostdsysteminc",
      "-DKILN_HOST_TARGET=1", "-DKILN_DEVICE_PASS=1", "-D__CUDACC__=1", "-D__CUDACC_RTC__=1",
      "-Wno-unknown-pragmas", "-Wno-pragma-once-outside-header", "-Wno-unused-value"};
  for (std::string& option : author_options(source).plain) options.push_back(std::move(option));
  return options;
}

std::vector<std::string> author_include_options(const Source& source) {
  return author_options(source).includes;
}

IncludeContext host_includes() {
  IncludeContext context;
  context.builtin_headers = {KILN_LLVM_HEADERS};
  context.macros.defined = {{"KILN_DEVICE_PASS", "1"},
                            {"KILN_HOST_TARGET", "1"},
                            {"__CUDACC__", "1"},
                            {"__CUDACC_RTC__", "1"}};
  context.macros.undefined = {"__CUDA_ARCH__", "__NVCC__", "_MSC_VER", "_WIN32"};
  return context;
}

}  // namespace kiln::codegen::llvm_host
