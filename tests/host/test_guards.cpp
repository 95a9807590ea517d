// Kernels that write where they must not, on the host device through the public API: they are
// rejected, right ones are not.
#include "host_test.hpp"
#include "kiln/kiln.hpp"
#include "runtime/device/device.hpp"

namespace {

/// y[i] = x[i] with blocks of B = 32, 64, 128 threads, and `extra` besides.
kiln::KernelDefinition copying(const std::string& extra, const std::string& element = "float") {
  kiln::KernelDefinition k;
  k.name = k.entry = "copying";
  k.source.text = "template <int B> __global__ void copying(" + element + "* y, const " + element +
                  "* x, int n) {\n" +
                  "  const int i = blockIdx.x * B + threadIdx.x;\n"
                  "  if (i < n) y[i] = x[i];\n" +
                  extra + "\n}";
  k.arguments = {element + "*", "const " + element + "*", "int"};
  k.space.parameter("B", {32, 64, 128}, 64);
  k.problem_fields = {"n"};
  k.launch = [](auto config, auto problem) {
    return kiln::Launch{.grid = {unsigned((problem[0] + config[0] - 1) / config[0])},
                        .block = {unsigned(config[0])}};
  };
  k.workload = [element](auto problem, kiln::Workload& w) {
    const auto n = std::size_t(problem[0]);
    if (element == "float")
      w.output<float>(n).input<float>(n).scalar(int(n));
    else
      w.output<unsigned char>(n).input<unsigned char>(n, {0, 255}).scalar(int(n));
  };
  k.reference = [element](auto problem, auto args) {
    const std::size_t bytes = std::size_t(problem[0]) * (element == "float" ? 4 : 1);
    std::copy_n(static_cast<const char*>(args[1]), bytes, static_cast<char*>(args[0]));
  };
  return k;
}

kiln::Runtime on_host() {
  kiln::RuntimeOptions o;
  o.device = "host";
  o.store.disk = false;
  o.tuning.strategy = "exhaustive";
  return kiln::Runtime(o);
}

/// The reason for which B = 32, and it alone, is out.
std::string reason_of_32(const kiln::KernelDefinition& kernel, std::int64_t n = 1000) {
  const kiln::Runtime runtime = on_host();
  const kiln::TuneResult r = runtime.tuned(kernel).tune({n});
  std::string reason = "none";
  for (const kiln::Candidate& c : r.candidates) {
    CAPTURE(r.describe(c), c.reason);
    if (c.config[0] != 32) {
      CHECK(c.status == kiln::CandidateStatus::measured);
      continue;
    }
    CHECK(c.status == kiln::CandidateStatus::wrong_result);
    reason = c.reason;
  }
  CHECK(r.candidates.size() == 3);
  CHECK(r.winner().config[0] != 32);
  return reason;
}

}  // namespace

TEST_CASE("a kernel that writes an input is out, the right ones are not", "[host][guards]") {
  const auto kernel = copying("if (B == 32 && threadIdx.x == 0) ((float*)x)[7] = 5;");
  CHECK_THAT(reason_of_32(kernel), host_test::contains("wrote element 7 of argument 1, an input: 5 "
                                                       "instead of "));
  // A handle that launches it says so.
  auto alone = kernel;
  alone.space = {};
  alone.space.parameter("B", {32}, 32);
  const kiln::Runtime runtime = on_host();
  CHECK_THROWS_AS(runtime.tuned(alone).tune({1000}), kiln::TuningFailedError);
}

TEST_CASE("verify of a handle finds what the config in use writes", "[host][guards]") {
  // Right in what it is tuned for, wrong for another problem of its bucket.
  auto kernel = copying("if (n == 999 && i == 0) { if (B > 0) ((float*)x)[7] = 5; }");
  kernel.bucket = [](auto) { return kiln::Values{1000}; };
  const kiln::Runtime runtime = on_host();
  const auto handle = runtime.tuned(kernel);
  handle.tune({1000});
  CHECK(handle.verify({1000}).right);
  const kiln::Verification wrong = handle.verify({999});
  CHECK_FALSE(wrong.right);
  CHECK_THAT(wrong.why, host_test::contains("element 7 of argument 1"));
}

TEST_CASE("a kernel that writes around its arrays is out", "[host][guards]") {
  const auto reason = [](const std::string& write, std::int64_t n = 1000) {
    return reason_of_32(copying("if (B == 32 && i == 0) " + write), n);
  };
  CHECK(reason("y[n] = 9;") == "wrote outside argument 0, after its 1000 elements: element 1000");
  CHECK(reason("y[-1] = 1;") == "wrote outside argument 0, before its 1000 elements: element -1");
  CHECK_THAT(reason("((float*)x)[n + 2] = 9;"), host_test::contains("argument 1, after"));
  // A large array, aligned for huge pages; and blocks that do not look where the array ends.
  CHECK_THAT(reason("y[-1] = 1;", 1 << 20), host_test::contains("element -1"));
  CHECK_THAT(reason_of_32(copying("if (B == 32) y[i] = i < n ? x[i] : 0;")),
             host_test::contains("after its 1000 elements: element 1000"));
}

TEST_CASE("arrays of single bytes have guard zones of their own", "[host][guards]") {
  for (const char* value : {"0", "1", "128", "255"})
    CHECK(reason_of_32(
              copying(std::string("if (B == 32 && i == 0) y[n] = ") + value + ";", "unsigned char"),
              1001) == "wrote outside argument 0, after its 1001 elements: element 1001");
}

TEST_CASE("a kernel that reads beyond an array, and lets it show, is wrong", "[host][guards]") {
  CHECK_THAT(reason_of_32(copying("if (B == 32 && i == 5) y[i] = x[i] + 1e-30f * x[n];")),
             host_test::contains("element 5 of argument 0"));
}

TEST_CASE("arrays are aligned as before, whatever lies around them", "[host][guards]") {
  const auto aligned = [](std::int64_t n, int alignment) {
    auto kernel = copying("if (i == 0 && ((unsigned long long)y | (unsigned long long)x) % " +
                          std::to_string(alignment) + ") y[0] = x[0] + 1;");
    const kiln::TuneResult r = on_host().tuned(kernel).tune({n});
    return r.count(kiln::CandidateStatus::measured) == 3;
  };
  CHECK(aligned(3, 256));
  CHECK(aligned(1024, 4096));
  CHECK(aligned(1 << 19, 2 << 20));
}

namespace {

/// y[i] = x[i] through dynamic shared memory of `bytes(B)` bytes; thread t uses element t +
/// `shift`.
kiln::KernelDefinition staging(std::function<unsigned(std::int64_t)> bytes, const char* shift) {
  kiln::KernelDefinition k = copying("");
  k.name = k.entry = "staging";
  k.source.text =
      std::string("template <int B> __global__ void staging(float* y, const float* x, ") +
      "int n) {\n"
      "  extern __shared__ float s[];\n"
      "  const int i = blockIdx.x * B + threadIdx.x, t = threadIdx.x + (" +
      shift +
      ");\n"
      "  if (i < n) s[t] = x[i];\n"
      "  __syncthreads();\n"
      "  if (i < n) y[i] = s[t];\n"
      "}";
  k.launch = [bytes](auto config, auto problem) {
    return kiln::Launch{.grid = {unsigned((problem[0] + config[0] - 1) / config[0])},
                        .block = {unsigned(config[0])},
                        .shared_bytes = bytes(config[0])};
  };
  return k;
}

}  // namespace

TEST_CASE("dynamic shared memory that was not asked for is not there", "[host][guards]") {
  const auto enough = [](std::int64_t block) { return unsigned(4 * block); };
  const auto none_for_32 = [](std::int64_t block) {
    return block == 32 ? 0u : unsigned(4 * block);
  };
  const auto less_for_32 = [](std::int64_t block) {
    return block == 32 ? 124u : unsigned(4 * block);
  };
  CHECK(on_host().tuned(staging(enough, "0")).tune({1000}).count(kiln::CandidateStatus::measured) ==
        3);
  const std::string outside = "wrote outside the shared memory of a block, ";
  CHECK_THAT(reason_of_32(staging(none_for_32, "0")),
             host_test::contains(outside + "after its 0 bytes (0 static, 0 dynamic): byte 0"));
  CHECK_THAT(
      reason_of_32(staging(less_for_32, "0")),
      host_test::contains(outside + "after its 124 bytes (0 static, 124 dynamic): byte 124"));
  CHECK_THAT(
      reason_of_32(staging(enough, "B == 32 ? -1 : 0")),
      host_test::contains(outside + "before its 128 bytes (0 static, 128 dynamic): byte -1"));
  // Far beyond, and a grid of one block.
  CHECK_THAT(reason_of_32(staging(none_for_32, "B == 32 ? 50000 : 0")),
             host_test::contains("byte 200000"));
  CHECK_THAT(reason_of_32(staging(less_for_32, "0"), 32), host_test::contains("byte 124"));
}

TEST_CASE("checked launches of a module compute the same, and leave nothing behind",
          "[host][guards]") {
  const host_test::Kernel kernel(
      "extern \"C\" __global__ void sum(int* out) {\n"
      "  __shared__ int fixed[3];\n"
      "  extern __shared__ int s[];\n"
      "  s[threadIdx.x] = threadIdx.x;\n"
      "  if (threadIdx.x == 0) fixed[2] = 1;\n"
      "  __syncthreads();\n"
      "  int t = fixed[2];\n"
      "  for (int i = 0; i < blockDim.x; ++i) t += s[i];\n"
      "  out[blockIdx.x * blockDim.x + threadIdx.x] = t;\n"
      "}",
      "sum");
  const auto run = [&](unsigned blocks, unsigned threads, std::size_t shared, bool checked) {
    std::vector<int> out(std::size_t(blocks) * threads);
    int* data = out.data();
    void* arguments[] = {&data, nullptr};
    if (checked)
      kernel.module().launch_checked({blocks}, {threads}, shared, arguments);
    else
      kernel.module().launch({blocks}, {threads}, shared, arguments);
    return out;
  };
  for (const unsigned blocks : {1u, 7u, 300u})
    for (const unsigned threads : {1u, 33u, 128u}) {
      const std::vector<int> out = run(blocks, threads, 4 * threads, true);
      CHECK(out == std::vector<int>(out.size(), int(1 + threads * (threads - 1) / 2)));
      CHECK_THROWS_AS(run(blocks, threads, 4 * threads - 1, true), kiln::runtime::WrongResult);
      CHECK(run(blocks, threads, 4 * threads, false) == out);
    }
}
