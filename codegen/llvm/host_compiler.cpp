// The plugin: what libkiln_llvm.so exports, and the compiler behind it.
#include <mutex>

#include <llvm/IR/Verifier.h>
#include <llvm/Support/FileSystem.h>
#include <llvm/Support/Format.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Transforms/Utils/Cloning.h>
#include <time.h>

#include "codegen/compiler.hpp"
#include "codegen/llvm/emit.hpp"
#include "codegen/llvm/frontend.hpp"
#include "codegen/llvm/guard.hpp"
#include "codegen/llvm/host_options.hpp"
#include "codegen/llvm/passes.hpp"
#include "kiln/detail/environment.hpp"
#include "kiln_llvm_identity.hpp"

namespace kiln::codegen::llvm_host {
namespace {

// For developing the passes: $KILN_LLVM_DUMP/<step>.ll is the IR after a step. The file `times`
// there gets a line per step with its CPU milliseconds, and the number of headers that were parsed
// ahead.
class Trace {
 public:
  Trace() : directory_(detail::environment("KILN_LLVM_DUMP")), last_(processor_ms()) {}

  void step(const char* name, const llvm::Module* module) {
    if (directory_.empty()) return;
    const double spent = processor_ms() - last_;
    std::error_code error;
    llvm::raw_fd_ostream times(directory_ + "/times", error, llvm::sys::fs::OF_Append);
    if (!error) times << name << ' ' << llvm::format("%.3f", spent) << '\n';
    if (module) {
      llvm::raw_fd_ostream out(directory_ + "/" + name + ".ll", error);
      if (!error) module->print(out, nullptr);
    }
    last_ = processor_ms();
  }
  void count(const char* name, std::size_t number) const {
    if (directory_.empty()) return;
    std::error_code error;
    llvm::raw_fd_ostream times(directory_ + "/times", error, llvm::sys::fs::OF_Append);
    if (!error) times << name << ' ' << number << '\n';
  }

 private:
  static double processor_ms() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
  }

  std::string directory_;
  double last_;
};

class HostCompiler final : public Compiler {
 public:
  HostCompiler() {
    static std::once_flag once;
    std::call_once(once, [] {
      llvm::InitializeNativeTarget();
      llvm::InitializeNativeTargetAsmPrinter();
      llvm::InitializeNativeTargetAsmParser();
    });
  }

  CompilerIdentity identity() const override {
    return {"clang", KILN_LLVM_VERSION, KILN_LLVM_BUILD};
  }

  std::vector<std::string> options(const Source& source, const Target& target) const override {
    return host_options(source, target);
  }

  IncludeContext includes(const Target&) const override { return host_includes(); }

  CompileResult compile(const Source& source, const Target& target) override {
    if (target.kind != Target::Kind::host) {
      throw UserError("the host compiler was asked for target " + target.arch);
    }
    Binary binary;
    bool compiled = false;
    const auto fatal = run_guarded([&] { compiled = build(source, target, binary); });
    if (fatal) binary.log += source.path + ": fatal error: " + *fatal + "\n";
    if (!compiled) return failure(source, target, std::move(binary.log));
    return binary;
  }

 private:
  // False: the kernel was refused, for the reasons in the binary's log.
  static bool build(const Source& source, const Target& target, Binary& binary) {
    try {
      return run_steps(source, target, binary);
    } catch (const LoweringError& error) {
      binary.log += source.path + ": error: " + error.what() + "\n";
      return false;
    }
  }

  static bool run_steps(const Source& source, const Target& target, Binary& binary) {
    Trace trace;
    std::unique_ptr<llvm::TargetMachine> machine = make_target_machine(target);
    llvm::LLVMContext context;
    send_diagnostics(context, source.path, binary.log);
    std::size_t headers_ahead = 0;
    const std::unique_ptr<llvm::Module> owner =
        run_frontend(source, target, context, binary.log, headers_ahead);
    if (!owner) return false;
    trace.count("headers_ahead", headers_ahead);
    trace.step("frontend", owner.get());
    owner->setDataLayout(machine->createDataLayout());
    keep_variables(*owner);
    // Each entry is lowered in a module of its own; the first one has the variables of all.
    const std::size_t entries = 1 + source.steps.size();
    std::vector<std::unique_ptr<llvm::Module>> modules;
    for (std::size_t step = 1; step < entries; ++step) {
      modules.push_back(llvm::CloneModule(*owner));
      share_variables(*modules.back());
    }
    std::vector<llvm::SmallVector<char, 0>> objects;
    for (std::size_t entry = 0; entry < entries; ++entry) {
      llvm::Module& module = entry == 0 ? *owner : *modules[entry - 1];
      select_entry(module, entry, entries);
      const KernelInfo info = lower(module, entry, source, *machine, trace);
      objects.push_back(emit_object(module, *machine));
      trace.step("object", nullptr);
      if (has_errors(context)) return false;
      const ResourceUsage usage{.static_shared = static_cast<int>(info.static_shared),
                                .max_threads = static_cast<int>(info.max_threads)};
      if (entry == 0) {
        binary.symbol = info.symbol;
        binary.resources = usage;
      } else {
        binary.steps.push_back({info.symbol, usage});
      }
    }
    binary.target = target;
    binary.code = link_shared_object(objects);
    trace.step("link", nullptr);
    return true;
  }

  // From a kernel as Clang emits it to optimized regions.
  static KernelInfo lower(llvm::Module& module, std::size_t entry, const Source& source,
                          llvm::TargetMachine& machine, Trace& trace) {
    KernelInfo info = read_kernel_info(module);
    info.entry = entry;
    define_arithmetic(module);
    inline_calls(module);
    lower_shared_memory(module, info);
    simplify_kernel(module, machine);
    check_definitions(module);
    trace.step("simplified", &module);
    form_regions(module, info);
    std::string broken;
    llvm::raw_string_ostream words(broken);
    if (llvm::verifyModule(module, &words)) {
      throw InternalError("the lowering of " + source.label + " produced invalid IR: " + broken);
    }
    trace.step("regions", &module);
    optimize_regions(module, machine);
    trace.step("optimized", &module);
    return info;
  }

  CompileFailure failure(const Source& source, const Target& target, std::string log) const {
    return {source.label, std::string("clang ") + KILN_LLVM_VERSION, options(source, target),
            std::move(log)};
  }
};

}  // namespace
}  // namespace kiln::codegen::llvm_host

extern "C" {

__attribute__((visibility("default"))) const char* kiln_llvm_plugin_build() {
  return KILN_LLVM_BUILD;
}

__attribute__((visibility("default"))) kiln::codegen::Compiler* kiln_llvm_create_compiler() {
  return new kiln::codegen::llvm_host::HostCompiler;
}
}
