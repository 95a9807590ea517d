#include "codegen/llvm/emit.hpp"

#include <list>
#include <memory>
#include <mutex>
#include <string>

#include <lld/Common/CommonLinkerContext.h>
#include <lld/Common/Driver.h>
#include <llvm/ADT/SmallString.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/Path.h>
#include <llvm/Support/Signals.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/TargetParser/Host.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "codegen/llvm/guard.hpp"
#include "codegen/llvm/host_options.hpp"
#include "codegen/llvm/passes.hpp"
#include "kiln/error.hpp"

LLD_HAS_DRIVER(elf)

namespace kiln::codegen::llvm_host {
namespace {

// A file in memory that has a path, for a linker that knows only paths.
class MemoryFile {
 public:
  explicit MemoryFile(const char* name) : descriptor_(::memfd_create(name, MFD_CLOEXEC)) {
    if (descriptor_ < 0)
      throw EnvironmentError("memfd_create failed; the host target needs Linux 3.17");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

  void write(llvm::ArrayRef<char> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(descriptor_, bytes.data(), bytes.size());
      if (n <= 0) throw EnvironmentError("writing an object to memory failed");
      bytes = bytes.drop_front(static_cast<std::size_t>(n));
    }
  }

 private:
  int descriptor_;
};

}  // namespace

std::unique_ptr<llvm::TargetMachine> make_target_machine(const Target& target) {
  const std::string triple = llvm::sys::getProcessTriple();
  std::string error;
  const llvm::Target* known = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!known) throw EnvironmentError("LLVM has no code generator for " + triple + ": " + error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Standard;
  std::unique_ptr<llvm::TargetMachine> machine(
      known->createTargetMachine(triple, cpu_of(target), "", options, llvm::Reloc::PIC_,
                                 std::nullopt, llvm::CodeGenOptLevel::Default));
  if (!machine) throw EnvironmentError("LLVM cannot create a code generator for " + triple);
  return machine;
}

llvm::SmallVector<char, 0> emit_object(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::SmallVector<char, 0> object;
  llvm::raw_svector_ostream stream(object);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::ObjectFile)) {
    throw EnvironmentError("LLVM's code generator cannot emit object files for this CPU");
  }
  passes.run(module);
  return object;
}

// LLD registers its output for removal on signals, and with that LLVM's handlers and an alternate
// stack. The process and this thread get theirs back.
class SignalGuard {
 public:
  SignalGuard() {
    stack_t ours{};
    ours.ss_sp = memory_.get();
    ours.ss_size = kBytes;
    ::sigaltstack(&ours, &theirs_);  // large enough for LLVM, which then makes none of its own
  }
  ~SignalGuard() {
    llvm::sys::unregisterHandlers();
    ::sigaltstack(&theirs_, nullptr);
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  static constexpr std::size_t kBytes = 256 << 10;
  std::unique_ptr<std::byte[]> memory_ = std::make_unique<std::byte[]>(kBytes);
  stack_t theirs_{};
};

std::vector<std::byte> link_shared_object(llvm::ArrayRef<llvm::SmallVector<char, 0>> objects) {
  std::list<MemoryFile> inputs;
  std::vector<std::string> input_paths;
  for (const llvm::SmallVector<char, 0>& object : objects) {
    inputs.emplace_back("kiln-object").write(object);
    input_paths.push_back(inputs.back().path());
  }
  std::string out, errors;
  llvm::raw_string_ostream out_stream(out), error_stream(errors);
  static std::mutex linker;  // LLD keeps its state in globals
  const std::lock_guard lock(linker);
  static bool usable = true;
  if (!usable)
    throw EnvironmentError("lld crashed before and cannot be used again in this process");
  // LLD replaces its output by rename, so the output needs a name in a directory.
  llvm::SmallString<128> folder;
  llvm::sys::path::system_temp_directory(/*ErasedOnReboot=*/true, folder);
  std::string name = (folder.str() + "/kiln-link-XXXXXX").str();
  const int reserved = ::mkstemp(name.data());
  if (reserved < 0)
    throw EnvironmentError("cannot create a temporary file in " + folder.str().str() +
                           " for the linker; set TMPDIR to a folder that can be written");
  ::close(reserved);
  std::vector<const char*> arguments = {"ld.lld", "-shared", "--build-id=none", "--hash-style=gnu",
                                        "-z",     "now",     "--threads=1",     "-O0",
                                        "-s",     "-o",      name.c_str(),      "--error-limit=0"};
  for (const std::string& path : input_paths) arguments.push_back(path.c_str());
  const SignalGuard guard;
  const lld::Result result =
      lld::lldMain(arguments, out_stream, error_stream, {{lld::Gnu, &lld::elf::link}});
  // After a fatal error LLD leaves its state to the exit that would follow. The next link needs a
  // clean one.
  if (!result.canRunAgain) usable = usable && run_recoverable(lld::CommonLinkerContext::destroy);
  std::vector<std::byte> bytes;
  if (auto buffer = llvm::MemoryBuffer::getFile(name, false, false);
      result.retCode == 0 && buffer) {
    const auto* data = reinterpret_cast<const std::byte*>((*buffer)->getBufferStart());
    bytes.assign(data, data + (*buffer)->getBufferSize());
  }
  ::unlink(name.c_str());
  if (!bytes.empty()) return bytes;
  // The objects are all that LLD reads, so an error that is not about the output is about the
  // kernel.
  if (errors.empty() || errors.find(name) != std::string::npos)
    throw EnvironmentError("lld failed to link a host kernel: " + errors);
  throw LoweringError("the linker refuses the kernel:\n" + errors);
}

}  // namespace kiln::codegen::llvm_host
