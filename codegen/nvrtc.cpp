#include "codegen/nvrtc.hpp"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <variant>

#include "codegen/nvrtc_headers.hpp"
#include "codegen/nvrtc_library.hpp"
#include "codegen/resource_report.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::codegen {
namespace {

// Appended to a source whose entry has a declared type. `long` and `long long` count as the same,
// since the 64-bit integer types of the host and of NVRTC differ in just that.
constexpr std::string_view kEntryCheck = R"(
#line 1 "check of the kernel's signature"
namespace kiln_entry_check {
template <class T> struct canonical { using type = T; };
template <> struct canonical<long> { using type = long long; };
template <> struct canonical<unsigned long> { using type = unsigned long long; };
template <class T> struct canonical<const T> { using type = const typename canonical<T>::type; };
template <class T> struct canonical<T*> { using type = typename canonical<T>::type*; };
template <class R, class... A> struct canonical<R(A...)> {
  using type = typename canonical<R>::type(typename canonical<A>::type...);
};
template <class A, class B> inline constexpr bool same = false;
template <class T> inline constexpr bool same<T, T> = true;
template <class Actual, class Declared> struct entry {
  static_assert(same<typename canonical<Actual>::type, typename canonical<Declared>::type>,
      "the kernel's entry does not have the declared signature");
};
}
)";
constexpr std::string_view kEntryChecked =
    "static_assert(sizeof(kiln_entry_check::entry<decltype({}), {}>) > 0);\n";

constexpr const char* kReport = "--ptxas-options=-v";

bool chooses_standard(const std::vector<std::string>& options) {
  return std::any_of(options.begin(), options.end(), [](std::string_view o) {
    return o.starts_with("-std") || o.starts_with("--std");
  });
}

// A program of NVRTC's; move-only by being a local.
class Program {
 public:
  Program(const NvrtcTable& nvrtc, const std::string& text, const char* name) : nvrtc_(nvrtc) {
    std::vector<const char*> texts;
    std::vector<const char*> names;
    for (const NvrtcHeader& header : nvrtc_headers()) {
      texts.push_back(header.text);
      names.push_back(header.name);
    }
    nvrtc_.check(nvrtc_.CreateProgram(&handle_, text.c_str(), name, static_cast<int>(names.size()),
                                      texts.data(), names.data()),
                 "nvrtcCreateProgram");
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (handle_) nvrtc_.DestroyProgram(&handle_);
  }

  nvrtcProgram get() const { return handle_; }

  std::string log() const {
    std::size_t size = 0;
    nvrtc_.check(nvrtc_.GetProgramLogSize(handle_, &size), "nvrtcGetProgramLogSize");
    std::string text(size, '\0');
    if (size > 0) nvrtc_.check(nvrtc_.GetProgramLog(handle_, text.data()), "nvrtcGetProgramLog");
    while (!text.empty() && text.back() == '\0') text.pop_back();
    return text;
  }

  std::vector<std::byte> cubin() const {
    std::size_t size = 0;
    nvrtc_.check(nvrtc_.GetCUBINSize(handle_, &size), "nvrtcGetCUBINSize");
    std::vector<std::byte> bytes(size);
    nvrtc_.check(nvrtc_.GetCUBIN(handle_, reinterpret_cast<char*>(bytes.data())), "nvrtcGetCUBIN");
    return bytes;
  }

  nvrtcResult compile(const std::vector<std::string>& options) const {
    std::vector<const char*> pointers;
    for (const std::string& option : options) pointers.push_back(option.c_str());
    return nvrtc_.CompileProgram(handle_, static_cast<int>(pointers.size()), pointers.data());
  }

 private:
  const NvrtcTable& nvrtc_;
  nvrtcProgram handle_ = nullptr;
};

// The kernel's own entry, then the steps.
std::vector<std::string> entries_of(const Source& source) {
  std::vector<std::string> entries{source.entry};
  entries.insert(entries.end(), source.steps.begin(), source.steps.end());
  return entries;
}

// If its report is asked for, ptxas does not print some errors (too much shared memory). They are
// worth a second run.
std::string explain_silence(const NvrtcTable& nvrtc, const std::string& text, const char* name,
                            const Source& source, std::vector<std::string> options) {
  std::erase(options, kReport);
  const Program program(nvrtc, text, name);
  for (const std::string& entry : entries_of(source))
    nvrtc.AddNameExpression(program.get(), entry.c_str());
  program.compile(options);
  std::string log = program.log();
  return log.empty() ? "the compiler failed without a message" : log;
}

// Everything but success and these is the environment's fault, not the source's.
bool is_refusal(nvrtcResult result, const std::string& log) {
  return result == NVRTC_ERROR_COMPILATION || result == NVRTC_ERROR_INVALID_OPTION ||
         result == NVRTC_ERROR_INVALID_INPUT || result == NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID ||
         (result == NVRTC_ERROR_INTERNAL_ERROR && !log.empty());
}

// 90 for sm_90a.
int arch_number(const Target& target) { return std::atoi(target.arch.c_str() + 3); }

std::string list_archs(const std::vector<int>& archs) {
  std::string text;
  for (int arch : archs) text += detail::format("{}sm_{}", text.empty() ? "" : " ", arch);
  return text;
}

const std::string& digest_of_headers() {
  static const std::string digest = [] {
    std::string all;
    for (const NvrtcHeader& header : nvrtc_headers()) {
      for (std::string_view part : {std::string_view(header.name), std::string_view(header.text)}) {
        all += std::to_string(part.size()) + ":";
        all += part;
      }
    }
    return to_hex(sha256(all)).substr(0, 16);
  }();
  return digest;
}

}  // namespace

struct NvrtcCompiler::Impl {
  std::shared_ptr<const NvrtcLibrary> nvrtc;
  bool use_nvrtc_cache;
  CompilerIdentity identity;

  std::string compiler_name() const { return identity.name + " " + identity.version; }

  void require_supported(const Target& target) const {
    if (target.kind != Target::Kind::cuda) {
      throw UserError(detail::format("target {} is not a CUDA architecture; NVRTC compiles for {}",
                                     target.arch, list_archs(nvrtc->archs)));
    }
    const int number = arch_number(target);
    if (std::find(nvrtc->archs.begin(), nvrtc->archs.end(), number) == nvrtc->archs.end()) {
      refuse(target);
    }
  }
  [[noreturn]] void refuse(const Target& target) const {
    throw UserError(detail::format("{} does not know target {}; it compiles for {} and variants",
                                   compiler_name(), target.arch, list_archs(nvrtc->archs)));
  }

  // What is passed beyond options(): it does not change the code.
  std::vector<std::string> invocation(std::vector<std::string> options,
                                      const Source& source) const {
    std::vector<std::string> all;
    for (const std::string& dir : source.include_dirs) all.push_back("--include-path=" + dir);
    all.insert(all.end(), options.begin(), options.end());
    for (const std::string& dir : nvrtc->include_dirs) all.push_back("--include-path=" + dir);
    const bool knows_no_cache = nvrtc->major > 12 || (nvrtc->major == 12 && nvrtc->minor >= 9);
    if (knows_no_cache && !use_nvrtc_cache) all.emplace_back("--no-cache");
    all.emplace_back(kReport);
    return all;
  }

  // A kernel of the compiled program, or why there is none.
  std::variant<BinaryEntry, std::string> entry_of(const Source& source, const std::string& entry,
                                                  const Program& program,
                                                  std::span<const std::byte> cubin,
                                                  const std::string& log) const {
    const char* symbol = nullptr;
    if (nvrtc->table.GetLoweredName(program.get(), entry.c_str(), &symbol) != NVRTC_SUCCESS ||
        !symbol)
      return "the source has no kernel `" + entry + "`";
    const auto resources = read_cubin_resources(cubin, symbol);
    if (!resources) return "`" + entry + "` is not a __global__ function";
    const PtxasLog report = split_ptxas_log(log, symbol);
    if (!report.kernel)
      throw EnvironmentError(detail::format(
          "{} wrote no resource report for {}, so register spills cannot be detected. "
          "Use another NVRTC (KILN_NVRTC).",
          compiler_name(), source.label));
    BinaryEntry made{symbol, *resources};
    made.resources.spill_stores = report.kernel->spill_stores;
    made.resources.spill_loads = report.kernel->spill_loads;
    return made;
  }

  CompileFailure failure(const Source& source, const std::vector<std::string>& options,
                         std::string log) const {
    return {source.label.empty() ? source.entry : source.label, compiler_name(), options,
            std::move(log)};
  }
};

NvrtcProbe NvrtcCompiler::find(const NvrtcOptions& options) {
  NvrtcProbe probe;
  auto nvrtc = opened_nvrtc(options, probe.reason);
  if (!nvrtc) return probe;
  CompilerIdentity identity{"nvrtc", detail::format("{}.{}", nvrtc->major, nvrtc->minor),
                            nvrtc->build + "+" + digest_of_headers()};
  auto impl = std::make_unique<const Impl>(
      Impl{std::move(nvrtc), options.use_nvrtc_cache, std::move(identity)});
  probe.compiler.reset(new NvrtcCompiler(std::move(impl)));
  return probe;
}

NvrtcCompiler::NvrtcCompiler(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
NvrtcCompiler::~NvrtcCompiler() = default;

CompilerIdentity NvrtcCompiler::identity() const { return impl_->identity; }
const std::vector<std::string>& NvrtcCompiler::cuda_include_dirs() const {
  return impl_->nvrtc->include_dirs;
}
std::vector<std::string> NvrtcCompiler::header_folders() const { return cuda_include_dirs(); }
std::string NvrtcCompiler::library_path() const { return impl_->nvrtc->path; }

std::vector<std::string> NvrtcCompiler::options(const Source& source, const Target& target) const {
  impl_->require_supported(target);
  std::vector<std::string> options = {"--gpu-architecture=" + target.arch,
                                      "--device-as-default-execution-space",
                                      "--define-macro=KILN_DEVICE_PASS=1"};
  if (!chooses_standard(source.options)) options.emplace_back("--std=c++20");
  options.insert(options.end(), source.options.begin(), source.options.end());
  return options;
}

IncludeContext NvrtcCompiler::includes(const Target& target) const {
  impl_->require_supported(target);
  IncludeContext context;
  context.include_dirs = impl_->nvrtc->include_dirs;
  for (const NvrtcHeader& header : nvrtc_headers()) context.builtin_headers.push_back(header.name);
  const std::string arch = std::to_string(10 * arch_number(target));
  context.macros.defined = {{"KILN_DEVICE_PASS", "1"},
                            {"__CUDACC_RTC__", ""},
                            {"__CUDACC__", ""},
                            {"__CUDA_ARCH__", arch}};
  context.macros.undefined = {"KILN_HOST_TARGET", "__NVCC__", "_MSC_VER", "_WIN32"};
  return context;
}

CompileResult NvrtcCompiler::compile(const Source& source, const Target& target) {
  const std::vector<std::string> all = impl_->invocation(options(source, target), source);
  const NvrtcTable& nvrtc = impl_->nvrtc->table;
  const std::vector<std::string> entries = entries_of(source);
  std::string text = source.text;
  if (!source.signature.empty()) {
    text += kEntryCheck;
    for (const std::string& entry : entries)
      text += detail::format(kEntryChecked, entry, source.signature);
  }
  const char* const name = source.path.empty() ? "kernel.cu" : source.path.c_str();
  const Program program(nvrtc, text, name);
  for (const std::string& entry : entries) {
    const nvrtcResult named = nvrtc.AddNameExpression(program.get(), entry.c_str());
    if (named == NVRTC_ERROR_INVALID_INPUT || entry.empty()) {
      return impl_->failure(source, all, "`" + entry + "` is not a name expression");
    }
    nvrtc.check(named, "nvrtcAddNameExpression");
  }

  const nvrtcResult compiled = program.compile(all);
  const std::string log = program.log();
  if (compiled != NVRTC_SUCCESS) {
    if (!is_refusal(compiled, log)) nvrtc.check(compiled, "nvrtcCompileProgram");
    std::string messages = split_ptxas_log(log, "").messages;
    if (messages.find("--nv_arch") != std::string::npos) impl_->refuse(target);
    if (messages.empty()) messages = explain_silence(nvrtc, text, name, source, all);
    return impl_->failure(source, all, std::move(messages));
  }

  Binary binary;
  binary.target = target;
  binary.code = program.cubin();
  std::vector<BinaryEntry> compiled_entries;
  for (const std::string& entry : entries) {
    auto made = impl_->entry_of(source, entry, program, binary.code, log);
    if (auto* why = std::get_if<std::string>(&made))
      return impl_->failure(source, all, std::move(*why));
    compiled_entries.push_back(std::get<BinaryEntry>(std::move(made)));
  }
  binary.log = split_ptxas_log(log, "").messages;
  binary.symbol = std::move(compiled_entries.front().symbol);
  binary.resources = compiled_entries.front().resources;
  binary.steps.assign(std::make_move_iterator(compiled_entries.begin() + 1),
                      std::make_move_iterator(compiled_entries.end()));
  return binary;
}

}  // namespace kiln::codegen
