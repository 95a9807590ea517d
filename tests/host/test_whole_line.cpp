// The whole line on the host device through the public API: source files to launched kernels.
#include <filesystem>
#include <numeric>

#include "host_test.hpp"
#include "kiln/kiln.hpp"
#include "temporary_directory.hpp"

namespace fs = std::filesystem;

namespace {

class Scratch {
 public:
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((*this / name).parent_path());
    kiln::test::write_text(*this / name, text);
  }
  fs::path operator/(const std::string& name) const { return directory_.path() / name; }

 private:
  const kiln::test::TemporaryDirectory directory_;
};

std::size_t entries_below(const fs::path& store) {
  std::size_t entries = 0;
  std::error_code none;
  for (const auto& item : fs::recursive_directory_iterator(store, none))
    entries += item.is_regular_file() ? 1 : 0;
  return entries;
}

kiln::KernelDefinition kernel(const std::string& name, const fs::path& file) {
  kiln::KernelDefinition k;
  k.name = name;
  k.source.file = file;
  k.entry = name;
  k.arguments = {"int*", "int"};
  k.space.parameter("block", {32, 64}, 32);
  k.problem_fields = {"n"};
  k.launch = [](auto config, auto problem) {
    return kiln::Launch{.grid = {unsigned((problem[0] + config[0] - 1) / config[0])},
                        .block = {unsigned(config[0])}};
  };
  k.workload = [](auto problem, kiln::Workload& w) {
    w.output<int>(std::size_t(problem[0])).scalar(int(problem[0]));
  };
  return k;
}

kiln::RuntimeOptions options(const Scratch& scratch) {
  kiln::RuntimeOptions o;
  o.device = "host";
  o.store.directory = scratch / "store";
  return o;
}

/// Launches the kernel for n = 100 in a runtime of its own; says what came out and what that
/// compiled.
struct Outcome {
  int last;
  std::size_t compiled;
  std::size_t tuned;
};
Outcome launch(const Scratch& scratch, const kiln::KernelDefinition& k) {
  kiln::Runtime runtime(options(scratch));
  auto out = runtime.array<int>(100);
  runtime.tuned(k)(kiln::Stream{}, {100}, out.data(), 100);
  runtime.synchronize();
  return {out.download().back(), runtime.statistics().compiled, runtime.statistics().tuned};
}

const char* kBody = R"(
  const int i = blockIdx.x * block + threadIdx.x;
  if (i < n) out[i] = value(i);
})";

}  // namespace

TEST_CASE("touching a transitive header misses exactly that template", "[host][line]") {
  const Scratch scratch;
  scratch.write("lib/deep.hpp", "__device__ inline int value(int i) { return i + 1; }\n");
  scratch.write("lib/middle.hpp", "#include \"deep.hpp\"\n");
  scratch.write("first.cuh",
                std::string("#include \"lib/middle.hpp\"\n"
                            "template <int block> __global__ void first(int* out, int n) {") +
                    kBody);
  scratch.write("second.cuh",
                std::string("__device__ inline int value(int i) { return 2 * i; }\n"
                            "template <int block> __global__ void second(int* out, int n) {") +
                    kBody);
  const auto first = kernel("first", scratch / "first.cuh");
  const auto second = kernel("second", scratch / "second.cuh");

  CHECK(launch(scratch, first).compiled == 2);
  CHECK(launch(scratch, second).compiled == 2);
  CHECK(launch(scratch, first).compiled == 0);

  scratch.write("lib/deep.hpp", "__device__ inline int value(int i) { return i + 5; }\n");
  const Outcome touched = launch(scratch, first);
  CHECK(touched.compiled == 2);
  CHECK(touched.last == 104);
  CHECK(launch(scratch, second).compiled == 0);

  scratch.write("lib/deep.hpp", "__device__ inline int value(int i) { return i + 1; }\n");
  const Outcome restored = launch(scratch, first);
  CHECK(restored.compiled == 0);
  CHECK(restored.tuned == 0);
  CHECK(restored.last == 100);
}

TEST_CASE("a template that does not compile shows its log and changes no record", "[host][line]") {
  const Scratch scratch;
  scratch.write(
      "bad.cuh",
      "template <int block> __global__ void bad(int* out, int n) { out[0] = undeclared; }");
  try {
    launch(scratch, kernel("bad", scratch / "bad.cuh"));
    FAIL("it was launched");
  } catch (const kiln::TuningFailedError& error) {
    REQUIRE(error.reasons().size() == 2);
    for (const auto& reason : error.reasons()) {
      CHECK_THAT(reason.reason, host_test::contains("undeclared"));
      CHECK_THAT(reason.reason, host_test::contains("compile_failed"));
    }
  }
  CHECK(entries_below(scratch / "store") == 0);
}

TEST_CASE("a missing header is named; a missing template is the caller's mistake", "[host][line]") {
  const Scratch scratch;
  scratch.write("lost.cuh",
                "#include \"no_such_header.hpp\"\n"
                "template <int block> __global__ void lost(int* out, int n) { out[0] = n; }");
  CHECK_THROWS_WITH(launch(scratch, kernel("lost", scratch / "lost.cuh")),
                    host_test::contains("no_such_header.hpp"));
  CHECK_THROWS_WITH(launch(scratch, kernel("gone", scratch / "gone.cuh")),
                    host_test::contains("gone.cuh"));
  CHECK(entries_below(scratch / "store") == 0);
}

TEST_CASE("a definition whose arguments are not the template's is refused by name",
          "[host][line]") {
  const Scratch scratch;
  scratch.write("typed.cuh",
                "template <int block> __global__ void typed(float* out, int n) { out[0] = n; }");
  CHECK_THROWS_WITH(launch(scratch, kernel("typed", scratch / "typed.cuh")),
                    host_test::contains("void(int*, int)"));
}

TEST_CASE("one candidate that does not compile leaves the others in the race", "[host][line]") {
  const Scratch scratch;
  scratch.write("half.cuh",
                "template <int block> __global__ void half(int* out, int n) {\n"
                "  static_assert(block != 64, \"block is not 64\");\n"
                "  const int i = blockIdx.x * block + threadIdx.x;\n"
                "  if (i < n) out[i] = i;\n}");
  kiln::Runtime runtime(options(scratch));
  const kiln::TuneResult result = runtime.tuned(kernel("half", scratch / "half.cuh")).tune({100});
  CHECK(result.winner().config == kiln::Values{32});
  REQUIRE(result.candidates.size() == 2);
  CHECK(result.candidates[1].status == kiln::CandidateStatus::compile_failed);
  CHECK_THAT(result.candidates[1].reason, host_test::contains("block is not 64"));
}

TEST_CASE("a source whose own macros would hide the parameters", "[host][line]") {
  const Scratch scratch;
  scratch.write("block.hpp", "#ifndef block\n#define block 64\n#endif\n");
  scratch.write("guarded.cuh",
                "#include \"block.hpp\"\n"
                "__global__ void guarded(int* out, int n) {\n"
                "  const int i = blockIdx.x * block + threadIdx.x;\n"
                "  if (i < n) out[i] = i + blockDim.x - block;\n}");
  kiln::KernelDefinition k = kernel("guarded", scratch / "guarded.cuh");
  k.reference = [](auto problem, std::span<void* const> args) {
    for (int i = 0; i < problem[0]; ++i) static_cast<int*>(args[0])[i] = i;
  };
  kiln::Runtime runtime(options(scratch));
  k.passing = kiln::Passing::constants;
  CHECK_THROWS_WITH(runtime.tuned(k).tune({100}),
                    host_test::contains("2 x ") &&
                        host_test::contains("the source defines the macro block") &&
                        host_test::contains("Passing::macros"));
  k.passing = kiln::Passing::macros;
  CHECK(runtime.tuned(k).tune({100}).count(kiln::CandidateStatus::measured) == 2);
  // Without the guard the source has its way with macros, too: right for 64, refused for 32.
  scratch.write("block.hpp", "#undef block\n#define block 64\n");
  const kiln::TuneResult result = runtime.tuned(k).tune({100});
  CHECK(result.count(kiln::CandidateStatus::measured) == 1);
  REQUIRE(result.count(kiln::CandidateStatus::compile_failed) == 1);
  for (const kiln::Candidate& c : result.candidates)
    if (c.status == kiln::CandidateStatus::compile_failed)
      CHECK_THAT(c.reason, host_test::contains("defines the macro block anew"));
}

TEST_CASE("a misspelt entry, and what was meant", "[host][line]") {
  const Scratch scratch;
  scratch.write("scale.cuh",
                "template <int block> __global__ void __launch_bounds__(block)\n"
                "scale(int* out, int n) { out[0] = n; }");
  kiln::KernelDefinition k = kernel("scale", scratch / "scale.cuh");
  k.entry = "scael";
  try {
    launch(scratch, k);
    FAIL("it was launched");
  } catch (const kiln::TuningFailedError& error) {
    const std::string text = error.what();
    CHECK_THAT(text,
               host_test::contains("2 x ") &&
                   host_test::contains("scale.cuh has no function scael; did you mean scale?"));
    CHECK(std::count(text.begin(), text.end(), '\n') < 20);
  }
}

TEST_CASE("blocks that need more memory than there is are refused", "[host][line]") {
  // A gigabyte per thread that lives across a barrier.
  const host_test::Kernel k(
      "__global__ void k(int* p) {\n"
      "  int a[1 << 28];\n  a[p[0]] = 1;\n  __syncthreads();\n  p[threadIdx.x] = a[p[1]];\n}",
      "k");
  std::vector<int> values(1024);
  CHECK_THROWS_AS(k({4096}, {1024}, 0, values.data()), kiln::UserError);
  CHECK_THROWS_WITH(k({4096}, {1024}, 0, values.data()),
                    host_test::contains("bytes of memory are needed"));
}
