#include "codegen/llvm/guard.hpp"

#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>

#include <llvm/IR/DiagnosticHandler.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/Support/CrashRecoveryContext.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/raw_ostream.h>
#include <pthread.h>
#include <signal.h>

#include "kiln/error.hpp"

namespace kiln::codegen::llvm_host {
namespace {

// What has to be known about a fatal error once the stack that it happened on is gone.
struct FatalError {
  std::string reason;
  bool out_of_memory = false;
};
thread_local FatalError* fatal_error = nullptr;

void end_work(const char* reason, bool out_of_memory) {
  llvm::CrashRecoveryContext* recovery = llvm::CrashRecoveryContext::GetCurrent();
  if (!fatal_error || !recovery) return;  // not in a compilation of ours
  fatal_error->reason = reason;
  fatal_error->out_of_memory = out_of_memory;
  recovery->HandleExit(1);
}

// LLVM turns an exit into a return to the caller only while it handles crashes, too. It need not:
// signals are the process's own business, so its handlers are taken out at once.
void enable_recovery() {
  constexpr int signals[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP};
  struct sigaction before[std::size(signals)];
  for (std::size_t i = 0; i < std::size(signals); ++i) ::sigaction(signals[i], nullptr, &before[i]);
  llvm::CrashRecoveryContext::Enable();
  for (std::size_t i = 0; i < std::size(signals); ++i) ::sigaction(signals[i], &before[i], nullptr);
  llvm::install_fatal_error_handler(
      [](void*, const char* reason, bool) { end_work(reason, false); });
  llvm::install_bad_alloc_error_handler(
      [](void*, const char* reason, bool) { end_work(reason, true); });
}

struct Work {
  llvm::function_ref<void()> run;
  FatalError fatal;
  bool ended = false;
  std::exception_ptr exception;
};

void* run_work(void* argument) {
  auto& work = *static_cast<Work*>(argument);
  fatal_error = &work.fatal;
  work.ended = !run_recoverable([&] {
    try {
      work.run();
    } catch (...) {
      work.exception = std::current_exception();
    }
  });
  fatal_error = nullptr;
  return nullptr;
}

class DiagnosticLog final : public llvm::DiagnosticHandler {
 public:
  DiagnosticLog(const std::string& path, std::string& log) : path_(path), log_(log) {}

  bool handleDiagnostics(const llvm::DiagnosticInfo& info) override {
    const bool error = info.getSeverity() == llvm::DS_Error;
    // The author need not know that a loop could not be unrolled or vectorised.
    if (!error && info.getSeverity() != llvm::DS_Warning) return true;
    if (info.getKind() == llvm::DK_OptimizationFailure) return true;
    std::string text;
    llvm::raw_string_ostream stream(text);
    llvm::DiagnosticPrinterRawOStream printer(stream);
    stream << path_ << (error ? ": error: " : ": warning: ");
    info.print(printer);
    if (text.empty() || text.back() != '\n') text += '\n';
    // One statement may be in several regions, or unrolled.
    if (log_.find(text) == std::string::npos) log_ += text;
    return true;
  }

 private:
  const std::string& path_;
  std::string& log_;
};

}  // namespace

bool run_recoverable(llvm::function_ref<void()> step) {
  return llvm::CrashRecoveryContext().RunSafely(step);
}

std::optional<std::string> run_guarded(llvm::function_ref<void()> run) {
  constexpr std::size_t kStack = 32 << 20;
  static std::once_flag once;
  std::call_once(once, enable_recovery);
  Work work{run, {}, false, nullptr};
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStack);
  pthread_t thread{};
  const int code = ::pthread_create(&thread, &attributes, run_work, &work);
  ::pthread_attr_destroy(&attributes);
  if (code != 0) {
    throw EnvironmentError(
        std::string("pthread_create failed for a thread that compiles, with a stack of 32 MiB: ") +
        std::strerror(code));
  }
  ::pthread_join(thread, nullptr);
  if (work.exception) std::rethrow_exception(work.exception);
  if (!work.ended) return std::nullopt;
  if (work.fatal.out_of_memory)
    throw EnvironmentError("LLVM is out of memory: " + work.fatal.reason);
  return work.fatal.reason.empty() ? "LLVM aborted without giving a reason" : work.fatal.reason;
}

void send_diagnostics(llvm::LLVMContext& context, const std::string& path, std::string& log) {
  context.setDiagnosticHandler(std::make_unique<DiagnosticLog>(path, log));
}

bool has_errors(const llvm::LLVMContext& context) { return context.getDiagHandlerPtr()->HasErrors; }

}  // namespace kiln::codegen::llvm_host
