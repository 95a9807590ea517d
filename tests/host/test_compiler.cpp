// The compiler as the rest of Kiln sees it: failures as data, options, threads, no LLVM when run.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host_test.hpp"
#include "temporary_directory.hpp"

using namespace host_test;

namespace {

bool llvm_is_loaded() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find("libLLVM") != std::string::npos || line.find("libkiln_llvm") != std::string::npos)
      return true;
  }
  return false;
}

}  // namespace

TEST_CASE("a compile error is data: the compiler's words, the options, the instance",
          "[host][compiler]") {
  Source source = source_of(
      "template <int n> __global__ void k(int* p) {\n  static_assert(n % 32 == 0, \"n: whole "
      "warps\");\n  p[0] = undefined_name;\n}",
      "k<33>");
  source.label = "k{n=33}";
  source.options = {"-DSOMETHING=1"};
  auto result = compiler().compile(source, kiln::Target::this_host());
  const auto& failure = std::get<kiln::CompileFailure>(result);
  CHECK(failure.kernel == "k{n=33}");
  CHECK(failure.compiler.find("clang 19") == 0);
  CHECK(std::count(failure.options.begin(), failure.options.end(), "-DSOMETHING=1") == 1);
  CHECK_THAT(failure.log,
             contains("test.cu:3:") && contains("undefined_name") && contains("whole warps"));
}

TEST_CASE("refused sources", "[host][compiler]") {
  CHECK_THAT(refusal(source_of("#include \"nowhere/missing.hpp\"\n__global__ void k() {}", "k")),
             contains("nowhere/missing.hpp"));
  CHECK_THAT(refusal(source_of("__global__ void k() {}", "other")), contains("other"));
  CHECK_THAT(refusal(source_of("__global__ void k();", "k")), contains("k"));
  CHECK_THAT(
      refusal(source_of("__global__ void k(int* p) { __shared__ int s = 3; p[0] = s; }", "k")),
      contains("initialis"));
  CHECK_THAT(
      refusal(source_of("__device__ int f(int n) { __syncthreads(); return n ? f(n - 1) : 0; }\n"
                        "__global__ void k(int* p) { p[0] = f(p[1]); }",
                        "k")),
      contains("recursive"));
  CHECK_THAT(refusal(source_of("__global__ void k(int& p) { p = 0; }", "k")), contains("by value"));
  Source source = source_of("__global__ void k(float* p, int n) { p[n] = 0; }", "k");
  source.signature = "void(float*, long)";
  CHECK_THAT(refusal(source), contains("void(float*, long)"));
  source.signature = "void(float*, int)";
  CHECK(std::holds_alternative<Binary>(compiler().compile(source, kiln::Target::this_host())));
  source.options = {"--no-such-option"};
  CHECK_THAT(refusal(source), contains("no-such-option"));
}

TEST_CASE("what is never defined is a compile error, by its readable name", "[host][compiler]") {
  CHECK_THAT(refusal(source_of("namespace ns { __device__ float helper(float, int); }\n"
                               "__global__ void k(float* p) { p[0] = ns::helper(p[1], 3); }",
                               "k")),
             contains("test.cu: error: ") && contains("ns::helper(float, int)"));
  CHECK_THAT(refusal(source_of("extern __device__ float table[8];\n"
                               "__global__ void k(float* p) { p[0] = table[int(p[1])]; }",
                               "k")),
             contains("never defined") && contains("table"));
  // Declared, but not used; used, and in the C library.
  Kernel k(
      "__device__ int unused(int);\n"
      "__global__ void k(float* p) { p[0] = expm1f(p[1]) + (p[1] > 1e30f ? 1.0f : 0.0f); }",
      "k");
  float values[2] = {7, 0};
  k({1}, {1}, 0, static_cast<float*>(values));
  CHECK(values[0] == 0);
}

TEST_CASE("pure recursion is allowed", "[host][compiler]") {
  Kernel k(
      "__device__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }\n"
      "__global__ void k(int* p) { p[threadIdx.x] = fib(threadIdx.x); }",
      "k");
  std::vector<int> out(12);
  k({1}, {12}, 0, out.data());
  CHECK(out == std::vector<int>{0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89});
}

TEST_CASE("a target that is not for the host is the caller's mistake", "[host][compiler]") {
  CHECK_THROWS_AS(
      compiler().compile(source_of("__global__ void k() {}", "k"), kiln::Target::parse("sm_80")),
      kiln::UserError);
}

TEST_CASE("options, defines and include folders reach the compiler", "[host][compiler]") {
  const kiln::test::TemporaryDirectory folder;
  kiln::test::write_text(folder.path() / "mine.hpp", "#pragma once\nconstexpr int kMine = 17;\n");
  Source source =
      source_of("#include <mine.hpp>\n__global__ void k(int* p) { p[0] = kMine + VALUE; }", "k");
  source.include_dirs = {folder.path()};
  source.options = {"--define-macro=VALUE=5", "--device-as-default-execution-space", "-lineinfo"};
  auto result = compiler().compile(source, kiln::Target::this_host());
  REQUIRE(std::holds_alternative<Binary>(result));
  const HostModule module =
      HostModule::load(std::get<Binary>(result), kiln::runtime::HostWorkers::create());
  int out = 0, *p = &out;
  void* arguments[] = {&p};
  module.launch({1}, {1}, 0, arguments);
  CHECK(out == 22);
}

namespace {

/// What k(int*) of `text`, a file of this name, stores. Device headers of earlier units of the name
/// are parsed ahead, as far as that is allowed.
int result_of(const std::string& text, const std::string& path,
              const std::vector<std::string>& options = {}) {
  Source source = source_of(text, "k");
  source.path = path;
  source.options = options;
  auto compiled = compiler().compile(source, kiln::Target::this_host());
  if (const auto* failure = std::get_if<kiln::CompileFailure>(&compiled)) FAIL(failure->log);
  const HostModule module =
      HostModule::load(std::get<Binary>(std::move(compiled)), kiln::runtime::HostWorkers::create());
  int value = 0;
  int* pointer = &value;
  void* arguments[] = {&pointer, nullptr};
  module.launch({1}, {1}, 0, arguments);
  return value;
}

}  // namespace

TEST_CASE("what earlier units of a source included decides nothing", "[host][compiler]") {
  const std::string half = "#include <cuda_fp16.h>\n";
  const std::string uses_half =
      "__global__ void k(int* p) { p[0] = (int)__half2float(__half(3.0f)); }";
  const std::string math = "#include <math_constants.h>\n";
  const std::string uses_pi = "__global__ void k(int* p) { p[0] = (int)(100 * CUDART_PI_F); }";
  const std::string store = "__global__ void k(int* p) { p[0] = value(); }";
  struct Case {
    std::string before;  ///< an ordinary unit
    int ordinary;
    std::string text;
    int want;
  };
  const std::vector<Case> all = {
      // Names that would be taken.
      {half + uses_half, 3,
       "struct __half { int x; };\n__device__ int value() { return __half{4}.x; }\n" + store, 4},
      {half + uses_half, 3,
       "#define __float2half own\n#define __half float\n"
       "__device__ float own(float x) { return x + 1; }\n"
       "__device__ int value() { __half x = __float2half(4.0f); return (int)x; }\n" +
           store,
       5},
      // Macros of the header's that are asked for before it.
      {math + uses_pi, 314,
       "#ifdef CUDART_PI_F\n#define EARLY 1\n#else\n#define EARLY 2\n#endif\n" + math +
           "__device__ int value() { return EARLY; }\n" + store,
       2},
      {math + uses_pi, 314,
       "#ifndef CUDART_PI_F\n__device__ int value() { return 6; }\n#else\n"
       "__device__ int value() { return 7; }\n#endif\n" +
           math + store,
       6},
      {math + uses_pi, 314,
       "#if defined(CUDART_PI_F)\n#define EARLY 1\n#else\n#define EARLY 2\n#endif\n" + math +
           "__device__ int value() { return EARLY; }\n" + store,
       2},
      // What the header uses, defined before it.
      {half + uses_half, 3,
       "#define __half2float renamed\n" + half +
           "#undef __half2float\n__device__ int __half2float(int x) { return x + 8; }\n"
           "__device__ int value() { return __half2float(1); }\n" +
           store,
       9},
      // A macro of the header's, named by pasting.
      {math + uses_pi, 314,
       "constexpr float CUDART = 2;\n#define CAT(a, b) a##b\n"
       "#if CAT(CUDART, _PI_F)\n#endif\n" +
           math + "__device__ int value() { return (int)CUDART; }\n" + store,
       2},
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    const std::string path = "early" + std::to_string(i) + ".cu";
    // A macro of a header's name keeps all headers from being parsed ahead.
    CHECK(result_of(all[i].text, "plain.cu", {"-Dfloat4=float4"}) == all[i].want);
    for (int n = 0; n < 3; ++n) CHECK(result_of(all[i].before, path) == all[i].ordinary);
    CHECK(result_of(all[i].text, path) == all[i].want);
    CHECK(result_of(all[i].before, path) == all[i].ordinary);
    CHECK(result_of(all[i].text, path) == all[i].want);
  }
}

TEST_CASE("macros of the author's reach a unit, and its headers where they use them",
          "[host][compiler]") {
  const std::string text = "__global__ void k(int* p) { p[0] = VALUE; }";
  for (const int value : {5, 6, 5})
    CHECK(result_of(text, "macros.cu", {"-DVALUE=" + std::to_string(value)}) == value);
  Source source = source_of("__global__ void k(int* p) { p[0] = 1; }", "k");
  compile(source.text, "k");
  source.options = {"-Dfloat4=7"};
  CHECK_THAT(refusal(source), contains("float4"));
}

TEST_CASE("what was parsed ahead does not show in the code", "[host][compiler]") {
  const kiln::test::TemporaryDirectory directory;
  ::setenv("KILN_LLVM_DUMP", directory.path().c_str(), 1);
  Source source = source_of(
      "// A kernel.\n#pragma once\n#include <cuda_fp16.h>\n#include <cooperative_groups.h>\n"
      "__global__ void k(float* p, const __half* x) {\n"
      "  __shared__ float s[64];\n"
      "  s[threadIdx.x] = sqrtf(__half2float(x[threadIdx.x]));\n"
      "  cooperative_groups::this_thread_block().sync();\n"
      "  p[threadIdx.x] = fminf(s[63 - threadIdx.x], __shfl_down_sync(~0u, p[0], 1));\n"
      "}",
      "k");
  source.path = "ahead.cu";
  const auto code = [&] {
    auto compiled = compiler().compile(source, kiln::Target::this_host());
    return std::get<Binary>(std::move(compiled)).code;
  };
  // Such a macro keeps the headers out: their identifiers may not be touched.
  source.options = {"-Dfloat4=float4"};
  const auto plain = code();
  source.options = {};
  for (int i = 0; i < 4; ++i) CHECK(code() == plain);
  ::unsetenv("KILN_LLVM_DUMP");
  // For a new source only cuda_runtime.h is known.
  std::vector<int> ahead;
  std::ifstream times(directory.path() / "times");
  for (std::string name, value; times >> name >> value;)
    if (name == "headers_ahead") ahead.push_back(std::stoi(value));
  CHECK(ahead == std::vector<int>{0, 3, 3, 3, 3});
}

TEST_CASE("a unit with a mistake is described once, as it is", "[host][compiler]") {
  const std::string good = "__global__ void k(int* p) { p[0] = 1; }";
  std::string first;
  for (int i = 0; i < 3; ++i) {
    const std::string said = refusal(source_of(good + "\nint x = nothing_here;", "k"));
    CHECK(said.find("undeclared identifier") == said.rfind("undeclared identifier"));
    CHECK_THAT(said, contains("test.cu:2:"));
    if (i == 0) first = said;
    CHECK(said == first);
    compile(good, "k");
  }
}

TEST_CASE("compilations run concurrently", "[host][compiler]") {
  std::vector<int> results(16, -1);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&results, worker] {
      for (int i = 0; i < 4; ++i) {
        const int n = worker * 4 + i;
        Kernel k(
            "template <int n> __global__ void k(int* p) { __shared__ int s[64]; s[threadIdx.x] = "
            "n; "
            "__syncthreads(); if (threadIdx.x == 0) p[0] = s[63] * 2; }",
            "k<" + std::to_string(n) + ">");
        k({1}, {64}, 0, &results[n]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int n = 0; n < 16; ++n) CHECK(results[n] == 2 * n);
}

TEST_CASE("equal sources give equal bytes", "[host][compiler]") {
  const std::string text =
      "__global__ void k(float* p) { __shared__ float s[8]; s[threadIdx.x] = p[threadIdx.x]; "
      "__syncthreads(); p[threadIdx.x] = s[7 - threadIdx.x]; }";
  CHECK(compile(text, "k").code == compile(text, "k").code);
}

// argv[0] again, in a process that has not compiled anything: see "[runs_without_llvm]" below.
TEST_CASE("a stored binary runs in a process without LLVM", "[host][compiler]") {
  const Binary binary = compile(
      "__global__ void k(int* p, int n) { __shared__ int s[64]; s[threadIdx.x] = n; "
      "__syncthreads(); "
      "p[threadIdx.x] = s[63 - threadIdx.x] + threadIdx.x; }",
      "k");
  CHECK(llvm_is_loaded());
  char path[] = "/tmp/kiln-host-binary-XXXXXX";
  const int file = ::mkstemp(path);
  REQUIRE(file >= 0);
  REQUIRE(::write(file, binary.code.data(), binary.code.size()) == ssize_t(binary.code.size()));
  ::close(file);
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("KILN_HOST_TEST_BINARY", path, 1);
    ::execl("/proc/self/exe", "host_tests", "[runs_without_llvm]", static_cast<char*>(nullptr));
    ::_exit(99);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  ::unlink(path);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("child of the test above", "[.][runs_without_llvm]") {
  const char* path = std::getenv("KILN_HOST_TEST_BINARY");
  REQUIRE(path);
  const std::string bytes = kiln::test::read_text(path);
  Binary binary;
  binary.target = kiln::Target::this_host();
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  binary.code = std::vector<std::byte>(data, data + bytes.size());
  const HostModule module = HostModule::load(binary, kiln::runtime::HostWorkers::create());
  std::vector<int> out(64);
  int* p = out.data();
  int n = 7;
  void* arguments[] = {&p, &n};
  module.launch({1}, {64}, 0, arguments);
  for (int i = 0; i < 64; ++i) REQUIRE(out[i] == 7 + i);
  REQUIRE_FALSE(llvm_is_loaded());
}

TEST_CASE("damaged bytes are refused, not run", "[host][module]") {
  Binary binary = compile("__global__ void k(int* p) { p[0] = 1; }", "k");
  const auto workers = kiln::runtime::HostWorkers::create();
  Binary empty = binary;
  empty.code = {};
  CHECK_THROWS_AS(HostModule::load(empty, workers), kiln::EnvironmentError);
  Binary cut = binary;
  cut.code = cut.code.part(0, 40);
  CHECK_THROWS_AS(HostModule::load(cut, workers), kiln::EnvironmentError);
  Binary foreign = binary;
  foreign.target = kiln::Target::parse("sm_80");
  CHECK_THROWS_AS(HostModule::load(foreign, workers), kiln::UserError);
}

TEST_CASE("identity names every input without opening the plugin", "[host][compiler]") {
  const auto fresh = kiln::codegen::make_host_compiler();
  const auto identity = fresh->identity();
  CHECK(identity.name == "clang");
  CHECK(identity.version.substr(0, 3) == "19.");
  CHECK(identity.build.size() == 64);
  const auto headers = fresh->includes(kiln::Target::this_host()).builtin_headers;
  CHECK(std::count(headers.begin(), headers.end(), "cuda_bf16.h") == 1);
  CHECK(std::count(headers.begin(), headers.end(), "stdint.h") == 1);
}

TEST_CASE("modules outlive nothing they should not, and many can be loaded", "[host][module]") {
  const Binary binary = compile("__global__ void k(int* p) { p[threadIdx.x] += 1; }", "k");
  const auto workers = kiln::runtime::HostWorkers::create();
  std::vector<HostModule> modules;
  for (int i = 0; i < 100; ++i) modules.push_back(HostModule::load(binary, workers));
  std::vector<int> out(8);
  int* p = out.data();
  void* arguments[] = {&p};
  for (int i = 0; i < 100; i += 3) modules.erase(modules.begin() + i % 50);
  for (const HostModule& module : modules) module.launch({1}, {8}, 0, arguments);
  CHECK(out == std::vector<int>(8, int(modules.size())));
}

TEST_CASE("a compiler's warnings are in the binary, not on standard error", "[host][compiler]") {
  const kiln::test::TemporaryDirectory folder;
  std::fflush(stderr);
  const int kept = ::dup(2);
  const int file = ::open((folder.path() / "stderr").c_str(), O_CREAT | O_RDWR, 0600);
  REQUIRE(file >= 0);
  ::dup2(file, 2);
  const Binary binary = compile("__global__ void k(int* y) { int odd = 3.5; y[0] = odd; }", "k");
  ::dup2(kept, 2);
  ::close(kept);
  const auto written = ::lseek(file, 0, SEEK_END);
  ::close(file);
  CHECK(written == 0);
  CHECK_THAT(binary.log, contains("test.cu:1"));
  CHECK_THAT(binary.log, contains("warning"));
}
