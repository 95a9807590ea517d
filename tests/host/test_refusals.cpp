// Errors from which Clang, LLVM or LLD cannot go on, at every stage: the compilation fails with
// their words in its log, the process lives on, and nothing is printed.
#include <cstdio>
#include <thread>

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "host_test.hpp"

using namespace host_test;

namespace {

// What is written to descriptors 1 and 2 while it lives.
class Captured {
 public:
  Captured() : file_(std::tmpfile()) {
    std::fflush(stdout);
    for (int fd : {1, 2}) {
      saved_[fd - 1] = ::dup(fd);
      ::dup2(::fileno(file_), fd);
    }
  }
  ~Captured() { std::fclose(file_); }
  std::string end() {
    std::fflush(stdout);
    for (int fd : {1, 2}) {
      ::dup2(saved_[fd - 1], fd);
      ::close(saved_[fd - 1]);
    }
    std::string text(static_cast<std::size_t>(::lseek(::fileno(file_), 0, SEEK_END)), '\0');
    ::pread(::fileno(file_), text.data(), text.size(), 0) >= 0 || (text = "cannot be read", true);
    return text;
  }

 private:
  std::FILE* file_;
  int saved_[2];
};

std::string many_operands() {
  std::string declared, used;
  for (int i = 0; i < 24; ++i) {
    declared += "long v" + std::to_string(i) + " = p[" + std::to_string(i) + "]; ";
    used += (i ? ", " : "") + std::string("\"r\"(v") + std::to_string(i) + ")";
  }
  return "__global__ void k(long* p) { " + declared + "asm volatile(\"\" :: " + used + "); }";
}

struct Refused {
  const char* stage;
  std::string text;
  const char* words;  ///< in the log
};

std::vector<Refused> refused_at_every_stage() {
  return {
      {"front end", "__global__ void k(int* p) { p[0] = missing; }", "undeclared identifier"},
      {"front end, fatal",
       "#pragma clang __debug llvm_fatal_error\n__global__ void k(int* p) { p[0] = 1; }",
       "fatal error"},
      {"lowering", "__global__ void k(int* p) { __shared__ int s = 3; p[0] = s; }", "initialis"},
      {"assembler", "__global__ void k(int* p) { asm volatile(\"bar.sync 0;\"); p[0] = 1; }",
       "test.cu: error: <inline asm>:1:2: invalid instruction mnemonic 'bar.sync'"},
      {"assembler, outside of functions",
       "asm(\".global .u32 x;\");\n__global__ void k(int* p) { p[0] = 1; }", "error:"},
      {"registers", many_operands(), "inline assembly requires more registers than available"},
      {"instruction selection, fatal",
       "extern \"C\" int ctaid() __asm__(\"llvm.nvvm.read.ptx.sreg.ctaid.x\");\n"
       "__global__ void k(int* p) { p[0] = ctaid(); }",
       "Cannot select"},
      {"linker",
       "__global__ void k(int* p) { asm volatile(\"movl $elsewhere, %%eax\" ::: \"eax\"); }",
       "recompile with -fPIC"},
      {"linker, fatal",
       "asm(\".pushsection .note.gnu.property,\\\"a\\\",@note\\n.long 4\\n.popsection\");\n"
       "__global__ void k(int* p) { p[0] = 1; }",
       "data is too short"},
  };
}

void still_compiles() {
  Kernel k("__global__ void k(int* p) { __syncthreads(); p[threadIdx.x] = threadIdx.x + 5; }", "k");
  std::vector<int> out(3);
  k({1}, {3}, 0, out.data());
  CHECK(out == std::vector<int>{5, 6, 7});
}

}  // namespace

TEST_CASE("what a stage refuses is a failed compilation, and the next one works",
          "[host][refusal]") {
  for (int again = 0; again < 2; ++again) {
    for (const Refused& refused : refused_at_every_stage()) {
      CAPTURE(refused.stage);
      Captured output;
      auto result = compiler().compile(source_of(refused.text, "k"), kiln::Target::this_host());
      CHECK(output.end() == "");
      REQUIRE(std::holds_alternative<kiln::CompileFailure>(result));
      CHECK_THAT(std::get<kiln::CompileFailure>(result).log, contains(refused.words));
      still_compiles();
    }
  }
}

TEST_CASE("refusals on one thread leave compilations on others alone", "[host][refusal]") {
  const auto all = refused_at_every_stage();
  std::vector<int> failed(4), worked(4);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&, worker] {
      for (std::size_t i = 0; i < all.size(); ++i) {
        const bool good = (i + static_cast<std::size_t>(worker)) % 2;
        const std::string text = good ? "__global__ void k(int* p) { p[0] = 1; }" : all[i].text;
        auto result = compiler().compile(source_of(text, "k"), kiln::Target::this_host());
        const bool compiled = std::holds_alternative<Binary>(result);
        (good ? worked : failed)[worker] += compiled == good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int worker = 0; worker < 4; ++worker)
    CHECK(worked[worker] + failed[worker] == static_cast<int>(all.size()));
}

TEST_CASE("an error of the assembler is told once, however often the code is repeated",
          "[host][refusal]") {
  const std::string log = refusal(source_of(R"(
    __global__ void k(int* p, int n) {
      for (int i = 0; i < n; ++i) { __syncthreads(); asm volatile("bar.sync 0;"); }
      asm volatile("bar.sync 0;");
      p[0] = 1;
    })",
                                            "k"));
  const std::size_t first = log.find("bar.sync'");
  REQUIRE(first != std::string::npos);
  CHECK(log.find("bar.sync'", first + 1) == std::string::npos);
}

TEST_CASE("a loop that does not vectorise as it was asked to is no matter for the terminal",
          "[host][refusal]") {
  Captured output;
  const Binary binary = compile(R"(
    __global__ void k(int* p, int n) {
      #pragma clang loop vectorize(enable) interleave(enable)
      for (int i = 0; i < n; ++i) { if (p[i]) break; p[p[i]] = i; }
    })",
                                "k");
  CHECK(output.end() == "");
}

TEST_CASE("a thread with a small stack may compile", "[host][compiler]") {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, 64 << 10);
  bool compiled = false;
  pthread_t thread{};
  const int code = ::pthread_create(
      &thread, &attributes,
      [](void* result) -> void* {
        compile("__global__ void k(int* p) { p[threadIdx.x] = 1; }", "k");
        *static_cast<bool*>(result) = true;
        return nullptr;
      },
      &compiled);
  ::pthread_attr_destroy(&attributes);
  REQUIRE(code == 0);
  ::pthread_join(thread, nullptr);
  CHECK(compiled);
}

TEST_CASE("compiling leaves the handlers of signals alone", "[host][compiler]") {
  constexpr int signals[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGTRAP, SIGINT, SIGTERM};
  std::vector<struct sigaction> before(std::size(signals)), after(std::size(signals));
  for (std::size_t i = 0; i < before.size(); ++i) ::sigaction(signals[i], nullptr, &before[i]);
  compile("__global__ void k(int* p) { p[0] = 1; }", "k");
  for (std::size_t i = 0; i < before.size(); ++i) {
    ::sigaction(signals[i], nullptr, &after[i]);
    CHECK(before[i].sa_handler == after[i].sa_handler);
    CHECK(before[i].sa_flags == after[i].sa_flags);
  }
}
