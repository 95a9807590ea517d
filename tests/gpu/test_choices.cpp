// Choices on real hardware: picks among many GEMMs against cuBLASLt's own, what two processes come
// to, records that are not to be trusted, and alternatives that keep the host busy.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "choices_test.hpp"
#include "gpu/program.hpp"
#include "kiln/kernels/gemm_fp8_choice.hpp"
#include "temporary_directory.hpp"

namespace kiln::test {
struct DoubledProblem {
  int n;
};
}  // namespace kiln::test
KILN_PROBLEM(kiln::test::DoubledProblem, n)

using namespace kiln;
using namespace kiln::test;
using namespace kiln::templates;

namespace {

constexpr std::size_t kShapes = 200;

RuntimeOptions choosing_on(const std::filesystem::path& folder) {
  RuntimeOptions options;
  options.device = "cuda:0";
  options.store.directory = folder;
  options.tuning.max_seconds = 6;
  return options;
}

/// Numbers of both signs whose period is so long that no tile sees one twice.
std::vector<bfloat16> numbers(std::size_t count) {
  constexpr std::size_t kPeriod = 65521;
  std::vector<bfloat16> all(count);
  std::uint32_t state = 1;
  for (std::size_t i = 0; i < std::min(count, kPeriod); ++i) {
    state = state * 1664525u + 1013904223u;
    all[i] = bfloat16(static_cast<float>(state >> 8) / (1u << 23) - 1);
  }
  for (std::size_t i = kPeriod; i < count; ++i) all[i] = all[i - kPeriod];
  return all;
}

using GemmChoice = decltype(tuned(std::declval<const Runtime&>(), gemm_choice<bfloat16>()));

struct Operands {
  Operands(const Runtime& runtime, const GemmProblem& problem, std::size_t copies = 1)
      : p(problem), c(runtime.array<bfloat16>(size(p.m, p.n))) {
    const std::vector<bfloat16> of_a = numbers(size(p.m, p.k)), of_b = numbers(size(p.n, p.k));
    for (std::size_t i = 0; i < copies; ++i) {
      a.push_back(runtime.array(of_a));
      b.push_back(runtime.array(of_b));
    }
  }
  static std::size_t size(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
  static std::size_t bytes(const GemmProblem& p) {
    return sizeof(bfloat16) * (size(p.m, p.k) + size(p.n, p.k));
  }
  void launch(const GemmChoice& gemm, Stream stream, std::size_t copy = 0) const {
    gemm(stream, c.data(), static_cast<const bfloat16*>(a[copy].data()),
         static_cast<const bfloat16*>(b[copy].data()), p.m, p.n, p.k);
  }
  SideBySide::Work work(const GemmChoice& gemm) const {
    return [&](Stream stream, std::size_t copy) { launch(gemm, stream, copy); };
  }
  std::vector<bfloat16> result(const Program& program) const {
    program.wait();
    return c.download();
  }
  void clear() { c.upload(std::vector<bfloat16>(c.size(), bfloat16(-77.0F))); }

  const GemmProblem p;
  Array<bfloat16> c;
  std::vector<Array<bfloat16>> a, b;
};

/// Another process, as far as choices go: nothing is shared but the device.
struct Chooser {
  explicit Chooser(const std::filesystem::path& folder) : runtime(choosing_on(folder)) {}

  /// With the kernel's config.
  std::string pick(const GemmProblem& p) const {
    const ChosenAlternative chosen = gemm.chosen(p);
    if (chosen.name != "template") return chosen.text;
    const auto config = to_values(kernel.config(p));
    return chosen.text + ": " + gemm_kernel<bfloat16>().definition().space.describe(config);
  }

  const Runtime runtime;
  const GemmChoice gemm = tuned(runtime, gemm_choice<bfloat16>());
  const decltype(runtime.tuned(gemm_kernel<bfloat16>())) kernel =
      runtime.tuned(gemm_kernel<bfloat16>());
};

bool same(const std::vector<bfloat16>& a, const std::vector<bfloat16>& b) {
  return std::ranges::equal(a, b, {}, &bfloat16::bits, &bfloat16::bits);
}

/// What the choice launches in a graph gives what it gives without, bit for bit.
bool replays(const Program& program, const GemmChoice& gemm, Operands& operands) {
  operands.launch(gemm, program.stream);
  const std::vector<bfloat16> eager = operands.result(program);
  operands.clear();
  program.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  operands.launch(gemm, program.stream);
  const auto graph = program.end();
  const auto exec = program.instantiate(graph);
  program.run(exec);
  return same(operands.result(program), eager);
}

}  // namespace

// $KILN_TEST_SHAPES bounds how many.
TEST_CASE("picks among GEMMs are no slower than cuBLASLt's first, and two processes agree",
          "[gpu][choice][slow]") {
  const TemporaryDirectory one, two;
  const Program program;
  const Chooser here(one.path()), there(two.path());
  const GemmChoice first = tuned(here.runtime, gemm_choice<bfloat16>(), {.choose = "cublaslt"});
  if (const std::string why = here.gemm.alternatives({64, 64, 64}).front().why_not; !why.empty())
    KILN_SKIP("cuBLASLt: " + why);
  SideBySide times(detail::Access::engine(here.runtime)->device());
  Comparison all;
  for (const auto& [m, n, k] : gemm_shapes(shapes_to_test(kShapes))) {
    const GemmProblem p{m, n, k};
    const std::string pick = here.pick(p), other = there.pick(p);
    CAPTURE(m, n, k, pick, other);
    const std::size_t copies = times.copies_of(Operands::bytes(p));
    Operands operands(here.runtime, p, copies);
    CHECK(replays(program, here.gemm, operands));
    const runtime::Interval behind =
        times.behind(operands.work(here.gemm), operands.work(first), copies);
    runtime::Interval apart;
    if (pick != other)
      apart = times.behind(operands.work(here.gemm), operands.work(there.gemm), copies);
    const std::size_t slower = all.slower;
    all.add(&behind, pick == other ? nullptr : &apart);
    if (all.slower > slower || (pick != other && apart.estimate != 0))
      std::printf(
          "m=%d,n=%d,k=%d: %s, %+.2f %% behind the first (%+.2f to %+.2f); the other: %s, "
          "%+.2f %% (%+.2f to %+.2f)\n",
          m, n, k, pick.c_str(), 100 * behind.estimate, 100 * behind.low, 100 * behind.high,
          other.c_str(), 100 * apart.estimate, 100 * apart.low, 100 * apart.high);
    CHECK(all.slower == slower);
  }
  std::puts(all.summary().c_str());
  CHECK(all.agreed());
}

TEST_CASE("a GEMM's record of another library, or of no algorithm, is checked again",
          "[gpu][choice]") {
  const TemporaryDirectory folder;
  const GemmProblem p{256, 1024, 2048};
  int tried = 0, checked = 0;
  std::string why;
  const auto known = [&] {
    const Runtime runtime(choosing_on(folder.path()));
    const auto gemm = tuned(runtime, gemm_choice<bfloat16>(), {.backends = {"cublaslt"}});
    if (why = gemm.alternatives(p).front().why_not; !why.empty()) return false;
    const bool on_record = gemm.known(p).has_value();
    gemm.prepare(p);
    CHECK(gemm.chosen(p).name == "cublaslt");
    const auto now = gemm.known(p);
    REQUIRE(now);
    CHECK(now->count(CandidateStatus::measured) > 0);
    return on_record;
  };
  CHECK_FALSE(known());
  if (!why.empty()) KILN_SKIP("cuBLASLt: " + why);
  CHECK(known());
  for (const char* parameter : {"alternative", "cublaslt.tile", "cublaslt.algo"}) {
    CAPTURE(parameter);
    ++tried;
    CHECK(change_records(folder.path(), [&](auto& record) {
            return change_candidates(record, "gemm", "cublaslt", parameter, [](auto& value) {
              value = value.template get<std::int64_t>() + 1000;
            });
          }) == 1);
    const bool miss = !known();
    CHECK(miss);
    checked += miss ? 1 : 0;
    CHECK(known());
  }
  std::printf("changed records tried %d, checked again %d\n", tried, checked);
}

TEST_CASE("cuBLASLt's candidates keep to the workspace that they may have", "[gpu][choice]") {
  const TemporaryDirectory folder;
  const Runtime runtime(choosing_on(folder.path()));
  int tried = 0;
  for (const GemmProblem& p :
       {GemmProblem{16, 1024, 14336}, GemmProblem{64, 512, 8192}, GemmProblem{1024, 1024, 1024}}) {
    CAPTURE(p.m, p.n, p.k);
    auto choice = gemm_choice<bfloat16>();
    choice.alternatives[0].cublaslt->workspace = 0;
    const GemmChoice without = tuned(runtime, choice, {.backends = {"cublaslt"}});
    if (const std::string why = without.alternatives(p).front().why_not; !why.empty())
      KILN_SKIP("cuBLASLt: " + why);
    without.prepare(p);
    // A stream on which nothing was launched before: what needs a workspace cannot be captured.
    const Program program;
    Operands operands(runtime, p);
    operands.clear();
    program.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_NOTHROW(operands.launch(without, program.stream));
    const auto graph = program.end();
    program.run(program.instantiate(graph));
    const auto captured = operands.result(program);
    operands.launch(without, program.stream);
    CHECK(same(operands.result(program), captured));
    ++tried;
  }
  std::printf("choices without workspace tried %d\n", tried);
}

TEST_CASE("launches and graphs of cuBLASLt's 8-bit floats keep to their own scales",
          "[gpu][choice]") {
  const TemporaryDirectory folder;
  const Runtime runtime(choosing_on(folder.path()));
  const GemmProblem p{64, 128, 256};
  const auto gemm = tuned(runtime, gemm_fp8_choice<>(), {.backends = {"cublaslt"}});
  if (const std::string why = gemm.alternatives(p).front().why_not; !why.empty())
    KILN_SKIP("cuBLASLt: " + why);
  gemm.prepare(p);
  const std::vector<float8_e4m3> twos(Operands::size(p.m, p.k), float8_e4m3(2)),
      halves(Operands::size(p.n, p.k), float8_e4m3(0.5F));
  const auto a = runtime.array(twos), b = runtime.array(halves);
  struct Scaled {
    Array<float> a, b;
    float product;
    Array<bfloat16> c;
  };
  std::vector<Scaled> all;
  for (const auto& [of_a, of_b] : {std::pair{1.0F, 1.0F}, {4.0F, 0.5F}, {0.25F, 0.125F}})
    all.push_back({runtime.array(std::vector{of_a}), runtime.array(std::vector{of_b}), of_a * of_b,
                   runtime.array<bfloat16>(Operands::size(p.m, p.n))});
  const Program program;
  const auto launch_all = [&] {
    for (const Scaled& s : all)
      gemm(program.stream, s.c.data(), static_cast<const float8_e4m3*>(a.data()),
           static_cast<const float8_e4m3*>(b.data()), p.m, p.n, p.k,
           static_cast<const float*>(s.a.data()), static_cast<const float*>(s.b.data()));
  };
  const auto check_all = [&] {
    program.wait();
    for (Scaled& s : all) {
      const std::vector<bfloat16> c = s.c.download();
      CHECK(std::ranges::all_of(
          c, [&](bfloat16 x) { return x == static_cast<float>(p.k) * s.product; }));
      s.c.upload(std::vector<bfloat16>(c.size(), bfloat16(-77.0F)));
    }
  };
  launch_all();
  check_all();
  program.begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
  launch_all();
  const auto graph = program.end();
  program.run(program.instantiate(graph));
  check_all();
}

namespace {

using DoubledWay = Alternative<DoubledProblem, void(float*, const float*, int)>;

/// twice(), which stores each element `rounds` times.
KernelDefinition twice_in_rounds(const std::vector<std::int64_t>& rounds) {
  KernelDefinition kernel = twice("in rounds");
  kernel.space = DynamicSpace();
  kernel.space.parameter("block", {128}, 128).parameter("rounds", rounds, rounds.front());
  return kernel;
}

void spin(double seconds) {
  const auto begin = Clock::now();
  while (seconds_since(begin) < seconds) {
  }
}

}  // namespace

TEST_CASE("150 us of host work count where launches are timed eagerly, and in no graph",
          "[gpu][choice]") {
  constexpr double kHost = 150e-6, kLeast = 50e-6, kMost = 110e-6;
  const TemporaryDirectory folder;
  const Runtime runtime(choosing_on(folder.path()));
  std::vector<std::int64_t> rounds{1};
  while (rounds.size() < 40) rounds.push_back(rounds.back() + rounds.back() / 4 + 1);
  const DynamicTuned kernel = runtime.tuned(twice_in_rounds(rounds));
  const Arrays arrays(runtime, kN);
  // The slow one takes longer than the fast one on the device, and less than the host work.
  std::int64_t slow = 0;
  for (const std::int64_t r : rounds) {
    const DynamicTuned fixed = kernel.with_config({128, r});
    const double seconds =
        measure(runtime, [&](Stream s) { arrays.launch(fixed, s); }, {.seconds = 0.05}).median;
    if (seconds < kLeast) continue;
    if (seconds < kMost) slow = r;
    break;
  }
  if (slow == 0) KILN_SKIP("no kernel of this device takes 50 to 110 us");
  const auto way = [&](const char* name, std::int64_t r, double host_seconds) {
    return DoubledWay{.name = name,
                      .version = std::to_string(r),
                      .call = [fixed = kernel.with_config({128, r}), host_seconds](
                                  const auto&, Stream stream, float* y, const float* x, int n) {
                        spin(host_seconds);
                        fixed(stream, {n}, y, x, n);
                      }};
  };
  Choice<DoubledProblem, void(float*, const float*, int)> choice{
      .name = "doubled", .problem = [](float*, const float*, int n) { return DoubledProblem{n}; }};
  choice.alternatives = {way("slow", slow, 0), way("hosted", 1, kHost)};
  choice.workload = [](const DoubledProblem& p, Workload& w) {
    const auto n = static_cast<std::size_t>(p.n);
    w.output<float>(n).input<float>(n).scalar<int>(p.n);
  };
  choice.reference = [](float* y, const float* x, int n) {
    for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
  };
  const auto f = tuned(runtime, choice);
  const DoubledProblem p{static_cast<int>(kN)};
  int tried = 0, mixed = 0;
  const auto chosen = [&](Launching launching, bool on_record) {
    TuneOptions options;
    options.launching = launching;
    const TuneResult result = f.tune(p, options);
    ++tried;
    mixed += result.from_store == on_record ? 0 : 1;
    CHECK(result.from_store == on_record);
    REQUIRE(result.count(CandidateStatus::measured) == 2);
    CAPTURE(result.candidates[0].seconds, result.candidates[1].seconds);
    // The host's work begins a little before the clock does.
    CHECK((result.candidates[1].seconds > 0.8 * kHost) == (launching == Launching::eager));
    return f.chosen(p).name;
  };
  CHECK(chosen(Launching::graph, false) == "hosted");
  CHECK(chosen(Launching::graph, true) == "hosted");
  CHECK(chosen(Launching::eager, false) == "slow");
  CHECK(chosen(Launching::eager, true) == "slow");
  CHECK(chosen(Launching::graph, false) == "hosted");
  std::printf("measuring policies tried %d, mixed %d\n", tried, mixed);
}
