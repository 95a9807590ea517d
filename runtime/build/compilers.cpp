#include "runtime/build/compilers.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include <unistd.h>

#include "codegen/llvm_plugin.hpp"
#include "codegen/nvrtc.hpp"
#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/installation.hpp"
#include "kiln/error.hpp"
#include "runtime/build/process_compiler.hpp"
#include "runtime/support/machine.hpp"

namespace kiln::runtime {

namespace {

constexpr unsigned kMostProcesses = 256;
std::optional<unsigned> asked_by_environment() {
  const std::string_view text = detail::environment("KILN_COMPILE_PROCESSES");
  if (text.empty()) return {};
  unsigned count = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || stop != text.data() + text.size() || count > kMostProcesses)
    throw UserError(detail::format(
        "KILN_COMPILE_PROCESSES is '{}': it must be a number from 0 to {}", text, kMostProcesses));
  return count;
}

std::shared_ptr<codegen::Compiler> make(Target::Kind kind, const CompilePlan& plan,
                                        bool background) {
  CompilerPlace place{.kind = kind, .nvrtc = codegen::NvrtcOptions::from_environment()};
  if (kind == Target::Kind::host)
    for (const auto& path : codegen::host_compiler_plugins())
      place.plugins.push_back(path.string());
  std::shared_ptr<codegen::Compiler> here = open_compiler(place, Opening::when_compiling);
  if (plan.processes == 0) return here;
  place.nvrtc.library = here->library_path();
  // Two threads of a process wait for each other in NVRTC. A process more takes 50 ms to start.
  return std::make_shared<ProcessCompiler>(std::move(here), place,
                                           PoolOptions{.executable = plan.executable,
                                                       .processes = plan.processes,
                                                       .threads = 1,
                                                       .background = background});
}

}  // namespace

CompilePlan compile_plan(std::optional<unsigned> asked) {
  if (asked && *asked > kMostProcesses)
    throw UserError(
        detail::format("compile_processes is {}: it may be {} at most", *asked, kMostProcesses));
  const bool by_option = asked.has_value();
  if (!asked) asked = asked_by_environment();
  if (asked && *asked == 0)
    return {.why_here = by_option ? "because the program's options say so"
                                  : "because of KILN_COMPILE_PROCESSES=0"};
  const unsigned cores = usable_cores();
  if (!asked && cores <= 2)
    return {.why_here = detail::format("because it may use {} core(s)", cores)};
  const auto executable = detail::installation().programs / "kiln-compiler";
  if (::access(executable.c_str(), X_OK) != 0)
    return {.why_here = executable.string() + " is missing", .broken = true};
  return {
      .processes = asked ? *asked : jobs_that_fit(std::min(cores, kMostProcesses), kCompilerBytes),
      .executable = executable.string()};
}

std::string obstacle_of(const CompilePlan& plan) {
  // A process that has opened no compiler answers as well: that it has none.
  ProcessPool pool(
      {.executable = plan.executable, .setup = CompilerPlace{.kind = Target::Kind::host}.pack()});
  const ProcessPool::Outcome outcome = pool.run({});
  if (const auto* unusable = std::get_if<ProcessPool::Unusable>(&outcome)) return unusable->reason;
  if (const auto* lost = std::get_if<ProcessPool::Lost>(&outcome)) return lost->reason;
  if (const auto* end = std::get_if<ProcessPool::Interrupted>(&outcome)) return end->reason;
  return {};
}

Builder::MakeCompiler compiler_maker(std::optional<unsigned> asked, bool background) {
  return [plan = compile_plan(asked), background](Target::Kind kind) {
    return make(kind, plan, background);
  };
}

std::shared_ptr<codegen::Compiler> make_compiler(Target::Kind kind) {
  return make(kind, compile_plan({}), false);
}

}  // namespace kiln::runtime
