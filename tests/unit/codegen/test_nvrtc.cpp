#include <cstdio>
#include <cstring>
#include <map>
#include <thread>

#include "codegen/instance.hpp"
#include "codegen/nvrtc.hpp"
#include "codegen/resource_report.hpp"
#include "kiln_test.hpp"
#include "nvrtc_fixture.hpp"
#include "scratch.hpp"

using namespace kiln;
using namespace kiln::codegen;
using namespace kiln::codegen::test;

namespace {

constexpr const char* kVectorAdd = R"(
struct VectorAdd { int block; int items; constexpr int tile() const { return block * items; } };
template <VectorAdd c, class T>
__global__ void __launch_bounds__(c.block) vector_add(T* out, const T* a, const T* b, int n) {
  __shared__ T tile[c.tile()];
  for (int i = 0; i < c.items; ++i) {
    const int at = blockIdx.x * c.tile() + i * c.block + threadIdx.x;
    if (at < n) tile[threadIdx.x] = a[at];
    __syncthreads();
    if (at < n) out[at] = tile[c.block - 1 - threadIdx.x] + b[at];
    __syncthreads();
  }
}
)";

Source vector_add() {
  Source s;
  s.text = kVectorAdd;
  s.path = "vector_add.cuh";
  s.entry = "vector_add<VectorAdd{.block = 128, .items = 4}, float>";
  s.signature = "void(float*, const float*, const float*, int)";
  s.label = "vector_add<float>{block=128,items=4}";
  return s;
}

// The ELF header's e_flags: ptxas writes the architecture into it.
unsigned elf_flags(const Binary& b) {
  unsigned flags = 0;
  std::memcpy(&flags, b.code.data() + 0x30, 4);
  return flags;
}

}  // namespace

TEST_CASE("NVRTC says which build it is", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  const CompilerIdentity id = nvrtc()->identity();
  CHECK(id.name == "nvrtc");
  CHECK(contains(id.version, "."));
  CHECK(id.build.size() > 17);
  CHECK(contains(nvrtc()->library_path(), "nvrtc"));
}

TEST_CASE("a missing NVRTC is a value that says what to do", "[codegen][nvrtc]") {
  NvrtcOptions options;
  options.library = "/nonexistent/libnvrtc.so.13";
  NvrtcProbe probe = NvrtcCompiler::find(options);
  CHECK_FALSE(probe.compiler);
  CHECK(contains(probe.reason, "/nonexistent/libnvrtc.so.13"));
  CHECK(contains(probe.reason, "KILN_NVRTC"));
  // Something that is a library, but not this one.
  options.library = "libm.so.6";
  probe = NvrtcCompiler::find(options);
  CHECK_FALSE(probe.compiler);
  CHECK(contains(probe.reason, "nvrtcVersion"));
}

TEST_CASE("one kernel compiles for exact architectures", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  std::vector<unsigned> flags;
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a", "sm_120a"}) {
    CAPTURE(arch);
    const Binary b = must_compile(vector_add(), arch);
    CHECK(b.target == Target::parse(arch));
    CHECK(b.symbol == "_Z10vector_addIXtl9VectorAddLi128ELi4EEEfEvPT0_PKS1_S4_i");
    CHECK(b.log.empty());
    CHECK(std::memcmp(b.code.data(),
                      "\x7f"
                      "ELF",
                      4) == 0);
    CHECK(b.resources.registers > 0);
    CHECK(b.resources.registers < 64);
    CHECK(b.resources.max_threads == 128);
    CHECK(b.resources.static_shared == 128 * 4 * 4);
    CHECK(b.resources.spill_stores == 0);
    CHECK(b.resources.stack == 0);
    for (unsigned other : flags) CHECK(other != elf_flags(b));
    flags.push_back(elf_flags(b));
  }
}

TEST_CASE("compiling twice gives the same bytes", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  CHECK(must_compile(vector_add()).code == must_compile(vector_add()).code);
}

TEST_CASE("resources agree between the cubin and ptxas", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  // 64 values live across a barrier do not fit 24 registers.
  const Source spilling = [] {
    Source s = kernel(R"(
      template <class T> __global__ void k(T* out, const T* a) {
        __shared__ T tile[256];
        T v[64];
        #pragma unroll
        for (int i = 0; i < 64; ++i) v[i] = a[i * blockDim.x + threadIdx.x];
        tile[threadIdx.x] = v[3];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 64; ++i)
          out[i * blockDim.x + threadIdx.x] = v[63 - i] * v[(i * 5) % 64] + tile[i];
      }
      extern "C" __global__ void other(int* p) { p[0] = 1; })",
                      "k<float>");
    s.options = {"--maxrregcount=24", "--ptxas-options=-v"};
    return s;
  }();
  for (const char* arch : {"sm_80", "sm_90a", "sm_100a"}) {
    CAPTURE(arch);
    const Binary b = must_compile(spilling, arch);
    CHECK(b.resources.registers <= 24);
    CHECK(b.resources.spill_stores > 0);
    CHECK(b.resources.spill_loads > 0);
    CHECK(b.resources.stack > 0);
    CHECK(b.resources.static_shared == 1024);
    CHECK(b.resources.max_threads == 0);
    const auto from_cubin = read_cubin_resources(b.code, b.symbol);
    REQUIRE(from_cubin);
    CHECK(from_cubin->registers == b.resources.registers);
    CHECK(from_cubin->static_shared == b.resources.static_shared);
    CHECK_FALSE(read_cubin_resources(b.code, "k"));
    CHECK(read_cubin_resources(b.code, "other")->registers < 24);
    Source roomy = spilling;
    roomy.options.clear();
    const Binary r = must_compile(roomy, arch);
    CHECK(r.resources.registers > 24);
    CHECK(r.resources.spill_stores == 0);
  }
}

TEST_CASE("a damaged cubin is no crash", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  const Binary b = must_compile(vector_add(), "sm_90a");
  REQUIRE(read_cubin_resources(b.code, b.symbol));
  for (std::size_t n = 0; n < b.code.size(); n += 7) {
    read_cubin_resources(b.code.view().first(n), b.symbol);
  }
  unsigned state = 7;
  int lost = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes(b.code.begin(), b.code.end());
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525u + 1013904223u;
      bytes[(state >> 8) % bytes.size()] = static_cast<std::byte>(state >> 24);
    }
    lost += !read_cubin_resources(bytes, b.symbol);
  }
  CHECK(lost > 0);
}

TEST_CASE("a compile error is data", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  Source s = vector_add();
  s.text += "int broken = nonsense;\n";
  const CompileFailure f = must_fail(s, "sm_90a");
  CHECK(f.kernel == s.label);
  CHECK(contains(f.compiler, "nvrtc "));
  CHECK(contains(f.log, "nonsense"));
  CHECK(contains(f.log, "vector_add.cuh(14)"));
  CHECK(std::find(f.options.begin(), f.options.end(), "--gpu-architecture=sm_90a") !=
        f.options.end());
  CHECK_FALSE(contains(f.log, "ptxas info"));
}

TEST_CASE("a missing header is named", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  CHECK(contains(must_fail(kernel("#include <no/such_header.cuh>\n__global__ void k() {}")).log,
                 "no/such_header.cuh"));
}

TEST_CASE("ptxas's refusals are told", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  const char* text = R"(__global__ void k(int* p) {
      __shared__ int a[16384];
      a[threadIdx.x] = p[0]; __syncthreads(); p[1] = a[threadIdx.x + 1]; })";
  CHECK(contains(must_fail(kernel(text)).log, "shared"));
  CHECK(contains(must_fail(kernel("__global__ void k() { asm(\"bogus.instr;\"); }")).log, "bogus"));
}

TEST_CASE("the entry must be there and be a kernel", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  CHECK(contains(must_fail(kernel("__global__ void k() {}", "absent")).log, "absent"));
  CHECK(!must_fail(kernel("__global__ void k() {}", "")).log.empty());
  CHECK(!must_fail(kernel("__global__ void k() {}", "k + 1")).log.empty());
  CHECK(!must_fail(kernel("__device__ int k;", "&k")).log.empty());
  CHECK(must_compile(kernel("extern \"C\" __global__ void k() {}")).symbol == "k");
  CHECK(must_compile(kernel("namespace n { __global__ void k() {} }", "n::k")).symbol ==
        "_ZN1n1kEv");
}

TEST_CASE("the signature is checked, and the message shows both", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  Source s = vector_add();
  s.signature = "void(float*, const float*, const double*, int)";
  const CompileFailure f = must_fail(s);
  CHECK(contains(f.log, "does not have the declared signature"));
  CHECK(contains(f.log, "const double *"));
  CHECK(contains(f.log, "const float *"));
  for (const char* wrong :
       {"void(float*, const float*, const float*)", "void(float*, float*, const float*, int)",
        "void(float*, const float*, const float*, unsigned)"}) {
    CAPTURE(wrong);
    s.signature = wrong;
    CHECK(contains(must_fail(s).log, "declared signature"));
  }
  // The 64-bit types of the host are `long`; a kernel's may be `long long`.
  Source wide = kernel("#include <cstdint>\n__global__ void k(int64_t n, const uint64_t* p) {}");
  wide.signature = "void(long, const unsigned long*)";
  must_compile(wide);
  wide.signature = "void(int, const unsigned long*)";
  CHECK(contains(must_fail(wide).log, "declared signature"));
}

TEST_CASE("targets NVRTC does not know are the caller's mistake", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  for (const Target& t :
       {Target{Target::Kind::host, "x86-64-v3"}, Target{Target::Kind::cuda, "sm_999"},
        Target{Target::Kind::cuda, "sm_80a"}}) {
    CAPTURE(t.arch);
    try {
      nvrtc()->compile(vector_add(), t);
      FAIL("accepted");
    } catch (const UserError& e) {
      CHECK(contains(e.what(), t.arch));
      CHECK(contains(e.what(), "sm_90"));
    }
  }
}

TEST_CASE("the author's options reach the compiler", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  Source s = kernel(
      "#if VALUE != 3 || KILN_DEVICE_PASS != 1\n#error value\n#endif\n__global__ void k() {}");
  CHECK(contains(must_fail(s).log, "value"));
  s.options = {"-DVALUE=3"};
  must_compile(s);
  const auto options = nvrtc()->options(s, Target::parse("sm_80"));
  CHECK(std::count(options.begin(), options.end(), "-DVALUE=3") == 1);
  s.options = {"--no-such-option"};
  CHECK(contains(must_fail(s).log, "no-such-option"));
  s.options = {"-DVALUE=3", "--std=c++17"};
  const Binary b = must_compile(s);
  CHECK(b.log.empty());
}

TEST_CASE("warnings are kept, the resource report is not", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  const Binary b = must_compile(kernel("__global__ void k() { int unused; }"));
  CHECK(contains(b.log, "unused"));
  CHECK_FALSE(contains(b.log, "ptxas"));
}

TEST_CASE("common standard headers are there", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  must_compile(kernel(R"(
    #include <bit>
    #include <cassert>
    #include <cfloat>
    #include <climits>
    #include <cmath>
    #include <cstddef>
    #include <cstdint>
    #include <cstdio>
    #include <cstring>
    #include <initializer_list>
    #include <limits>
    #include <type_traits>
    #include <utility>
    #include <assert.h>
    #include <float.h>
    #include <limits.h>
    #include <math.h>
    #include <stddef.h>
    #include <stdint.h>
    #include <stdio.h>
    #include <string.h>
    template <class T> using limits = std::numeric_limits<T>;
    static_assert(limits<int>::max() == INT_MAX && limits<int>::min() == INT_MIN);
    static_assert(limits<int64_t>::max() == INT64_MAX && limits<long>::min() == LONG_MIN);
    static_assert(limits<uint16_t>::max() == 65535 && limits<uint64_t>::max() == UINT64_MAX);
    static_assert(limits<int8_t>::min() == -128 && limits<char>::max() == 127);
    static_assert(limits<float>::max() == FLT_MAX && limits<float>::infinity() > FLT_MAX);
    static_assert(limits<double>::quiet_NaN() != limits<double>::quiet_NaN());
    static_assert(sizeof(std::uint8_t) == 1 && sizeof(int16_t) == 2 && sizeof(uint32_t) == 4 &&
                  sizeof(std::int64_t) == 8 && sizeof(uintptr_t) == sizeof(void*));
    static_assert(std::is_same_v<std::decay_t<const int (&)[3]>, const int*>);
    static_assert(std::is_same_v<std::remove_cvref_t<const volatile int&&>, int>);
    static_assert(std::is_same_v<std::remove_pointer_t<int* const>, int>);
    static_assert(std::is_same_v<std::make_index_sequence<3>, std::index_sequence<0, 1, 2>>);
    static_assert(std::is_same_v<std::conditional_t<true, int, float>, int>);
    static_assert(std::is_same_v<std::add_lvalue_reference_t<void>, void>);
    static_assert(std::is_signed_v<float> && !std::is_signed_v<bool> && !std::is_unsigned_v<float>);
    static_assert(std::is_integral_v<const char> && !std::is_integral_v<float*>);
    static_assert(std::is_same_v<std::make_unsigned_t<long long>, unsigned long long>);
    static_assert(std::bit_cast<unsigned>(1.0f) == 0x3f800000u);
    struct S { int a; char b; short c; };
    static_assert(std::is_trivially_copyable_v<S> && std::is_class_v<S> && std::is_aggregate_v<S>);
    __global__ void k(float* p) {
      assert(p);
      size_t o = offsetof(S, c);
      std::pair q{1, 2.f};
      std::swap(p[1], p[2]);
      p[0] = std::sqrt(std::fabs(p[1])) + float(o) + INFINITY + q.second + std::fmax(p[3], float(M_PI));
      std::memcpy(p + 4, p, sizeof(float));
      if (std::isnan(p[2])) std::printf("%f\n", p[2]);
    })"));
}

TEST_CASE("files in the source's folders are used, and its own come before CUDA's",
          "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  Scratch files;
  files.write("mine/part.cuh", "#include \"sub/more.cuh\"\n");
  files.write("mine/sub/more.cuh", "__global__ void k() {}\n");
  Source s = kernel("#include <part.cuh>\n");
  s.include_dirs = {files.path("mine")};
  must_compile(s);

  IncludeCache cache;
  IncludeContext context = nvrtc()->includes(Target::parse("sm_80"));
  context.include_dirs.insert(context.include_dirs.begin(), s.include_dirs.begin(),
                              s.include_dirs.end());
  const IncludeClosure before = include_closure(s.text, context, cache);
  CHECK(before.complete);
  CHECK(before.files.size() == 2);
  const Binary first = must_compile(s);
  files.write("mine/sub/more.cuh", "__global__ void k(int* p) { *p = 1; }\n");
  CHECK(include_closure(s.text, context, cache).digest != before.digest);
  CHECK(must_compile(s).code != first.code);
}

TEST_CASE("four threads compile at once", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  const Binary expected = must_compile(vector_add(), "sm_90a");
  std::atomic<int> good = 0, refused = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 3; ++i) {
        auto result = nvrtc()->compile(vector_add(), Target::parse("sm_90a"));
        good += std::holds_alternative<Binary>(result) &&
                std::get<Binary>(result).code == expected.code;
        Source bad = vector_add();
        bad.text += "int broken" + std::to_string(t) + " = nonsense" + std::to_string(t) + ";\n";
        auto failed = nvrtc()->compile(bad, Target::parse("sm_80"));
        refused += std::holds_alternative<CompileFailure>(failed) &&
                   contains(std::get<CompileFailure>(failed).log, "nonsense" + std::to_string(t));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(good == 12);
  CHECK(refused == 12);
}

TEST_CASE("a cubin tells its variables, also those that no kernel reads", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  const Binary binary = must_compile(kernel(R"(
    __constant__ float filter[9];
    static __constant__ int unused[5];
    namespace image { __device__ double scale; static __constant__ float gain[3]; }
    namespace { __constant__ int hidden[2]; }
    template <class T> __constant__ T table[4];
    extern __shared__ float dynamic[];
    __global__ void k(float* y, int n) {
      __shared__ float tile[32];
      tile[threadIdx.x] = filter[n % 9] + hidden[n & 1] + table<float>[n & 3];
      if (n < 0) printf("negative: %d\\n", n);
      __syncthreads();
      dynamic[threadIdx.x] = tile[n & 31] + image::scale;
      y[n] = dynamic[0];
    })"));
  std::map<std::string, std::uint64_t> sizes;
  for (const CubinVariable& v : read_cubin_variables(binary.code)) sizes[v.name] = v.bytes;
  CHECK(sizes == std::map<std::string, std::uint64_t>{{"filter", 36},
                                                      {"unused", 20},
                                                      {"image::gain", 12},
                                                      {"image::scale", 8},
                                                      {"(anonymous namespace)::hidden", 8},
                                                      {"table<float>", 16}});
  // Whatever is cut off, nothing is read past the end.
  const auto whole = binary.code.view();
  for (std::size_t size = 0; size < whole.size(); size += 61) {
    const std::vector<std::byte> part(whole.begin(), whole.begin() + std::ptrdiff_t(size));
    for (const CubinVariable& v : read_cubin_variables(part)) CHECK_FALSE(v.name.empty());
  }
}

TEST_CASE("a text may include a file that is named like its kernel", "[codegen][nvrtc]") {
  KILN_NEEDS_NVRTC(probe());
  const Scratch scratch;
  scratch.write("scale.cu", "__global__ void scale(float* y) { y[threadIdx.x] *= FACTOR; }\n");
  KernelDefinition k;
  k.name = "scale";
  k.source.text = "#include \"scale.cu\"\n";
  k.source.include_dirs = {scratch.path(".")};
  k.entry = "scale";
  k.passing = Passing::constants;
  k.arguments = {"float*"};
  k.space.parameter("FACTOR", {2, 3}, 2);
  k.launch = [](auto, auto) { return Launch{}; };
  IncludeCache cache;
  const Target target = Target::parse("sm_80");
  const Source source = make_source(k, Values{3}, target, *nvrtc(), cache);
  CHECK(must_compile(source).symbol == "_Z5scalePf");
}
