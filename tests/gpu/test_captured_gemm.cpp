// Captured GEMMs: what takes tensor maps or a workspace is exchanged in a graph like any other.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <vector>

#include "gpu/program.hpp"
#include "kiln/kernels/gemm_kernel.hpp"

using namespace kiln;
using namespace kiln::test;
using kiln::templates::Gemm;

namespace {

constexpr int kM = 256, kSide = 1024;  ///< m; n and k
const Values kProblem{kM, kSide, kSide};

using enum kiln::templates::GemmBody;
const Gemm kPointers{mma, 64, 128, 64, 3, 32, 32, 8, 8};
const Gemm kSlowPointers{mma, 16, 16, 32, 1, 16, 16, 8, 1};
const Gemm kFast{tma, 64, 32, 128, 1, 64, 64, 8, 8};
const Gemm kSlow{tma, 256, 176, 64, 1, 128, 64, 8, 8};

Values values_of(const Gemm& config) {
  const auto values = to_values(config);
  return {values.begin(), values.end()};
}

Gemm in_parts(Gemm config) {
  config.parts = 2;
  return config;
}

const Gemm kParts = in_parts({tma, 64, 64, 128, 1, 64, 64, 8, 8});

/// A GEMM that runs untuned with one config, and has another one that is far faster with cold
/// caches.
KernelDefinition between(const Gemm& untuned, const Gemm& winner) {
  KernelDefinition kernel = templates::gemm_kernel<bfloat16>().definition();
  const Values slow = values_of(untuned), fast = values_of(winner);
  kernel.untuned_by_cost = {};
  kernel.default_for = [=](auto, const DeviceLimits&) { return slow; };
  kernel.configs = [=](auto, const DeviceLimits&) { return std::vector<Values>{slow, fast}; };
  return kernel;
}

/// Small integers: sums of products are exact, whatever their order.
std::vector<bfloat16> small_integers(std::size_t count, unsigned step) {
  std::vector<bfloat16> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = bfloat16(static_cast<float>((i * step >> 3) % 3) - 1);
  return values;
}

struct Operands {
  Array<bfloat16> a, b, c;

  explicit Operands(const Runtime& gpu)
      : a(gpu.array(small_integers(std::size_t{kM} * kSide, 7))),
        b(gpu.array(small_integers(std::size_t{kSide} * kSide, 11))),
        c(gpu.array(std::vector<bfloat16>(std::size_t{kM} * kSide))) {}

  template <class Launcher>
  void launch(const Launcher& launch) const {
    launch(c.data(), static_cast<const bfloat16*>(a.data()), static_cast<const bfloat16*>(b.data()),
           kM, kSide, kSide);
  }
  void clear() { c.upload(std::vector<bfloat16>(c.size())); }
  std::vector<std::uint16_t> result() const {
    std::vector<std::uint16_t> bits;
    for (const bfloat16 value : c.download()) bits.push_back(value.bits);
    return bits;
  }
};

}  // namespace

TEST_CASE("captured GEMMs with tensor maps and workspaces become the winner",
          "[gpu][capture][maps]") {
  const Program program;
  const Runtime gpu(in_memory());
  if (gpu.device().limits.compute_capability != 90) return say_skipped("needs sm_90");
  struct Exchange {
    const char* what;
    Gemm captured, winner;
  };
  for (const Exchange& exchange :
       {Exchange{"maps for pointers", kPointers, kFast}, Exchange{"other maps", kSlow, kFast},
        Exchange{"maps and a workspace for pointers", kSlowPointers, kParts},
        Exchange{"other maps and a workspace", in_parts(kSlow), kParts},
        Exchange{"maps for maps and a workspace", in_parts(kSlow), kFast},
        Exchange{"pointers for maps and a workspace", in_parts(kSlow), kPointers}}) {
    INFO(exchange.what);
    const auto gemm = gpu.tuned(between(exchange.captured, exchange.winner));
    // Two launches: the second one's operands are elsewhere.
    Operands first(gpu), second(gpu);
    const auto launch = [&](const Operands& operands) {
      operands.launch([&](auto... args) { gemm(program.stream, kProblem, args...); });
    };
    first.launch([&](auto... args) {
      Region production;
      production(gemm, program.stream, kProblem, args...);
    });
    program.wait();
    const auto expected = first.result();
    REQUIRE(std::ranges::count(expected, 0) < static_cast<std::ptrdiff_t>(expected.size()));
    program.begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    launch(first);
    launch(second);
    const auto graph = program.end();
    const auto exec = program.instantiate(graph);
    const auto run = [&] {
      first.clear();
      second.clear();
      for (int i = 0; i < 3; ++i) program.run(exec);
      program.wait();
      CHECK(first.result() == expected);
      CHECK(second.result() == expected);
    };
    run();

    gemm.tune(kProblem);
    REQUIRE(gemm.config(kProblem) == values_of(exchange.winner));
    const auto device = runtime::make_cuda_device(program.driver, 0);
    const auto seconds = [&] {
      return device->time(program.stream, [&] {
        for (int i = 0; i < 20; ++i) program.run(exec);
      });
    };
    const double before = seconds();
    const RefreshResult done = gpu.refresh({graph.get(), exec.get()});
    CAPTURE(done.kept.empty() ? "" : done.kept[0].why);
    CHECK(done.refreshed == 2);
    run();
    const double after = seconds();
    std::printf("%s: a refreshed graph takes %.3f of the time before\n", exchange.what,
                after / before);
    // It launches something else now: the winner was chosen with cold caches, which the graph's
    // are not.
    CHECK((after < .8 * before || after > 1.2 * before));
    run();
    CHECK(gpu.refresh({graph.get(), exec.get()}).refreshed == 2);
    run();
  }
}

TEST_CASE("a graph keeps the workspaces that its refreshed launches use", "[gpu][capture][maps]") {
  const Program program;
  if (runtime::make_cuda_device(program.driver, 0)->info().limits.compute_capability != 90)
    return say_skipped("needs sm_90");
  std::optional<Runtime> gpu(in_memory());
  const Runtime other(in_memory());
  Operands operands(other);
  std::optional<runtime::CudaGraph> graph;
  std::optional<runtime::CudaGraphExec> exec;
  {
    const auto gemm = gpu->tuned(between(in_parts(kSlow), kParts));
    operands.launch([&](auto... args) {
      Region production;
      production(gemm, program.stream, kProblem, args...);
    });
    program.wait();
    program.begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    operands.launch([&](auto... args) { gemm(program.stream, kProblem, args...); });
    graph.emplace(program.end());
    exec.emplace(program.instantiate(*graph));
    gemm.tune(kProblem);
    CHECK(gpu->refresh({graph->get(), exec->get()}).refreshed == 1);
  }
  const auto expected = operands.result();
  CHECK(std::ranges::count(expected, 0) < static_cast<std::ptrdiff_t>(expected.size()));
  gpu.reset();
  graph.reset();
  // Memory that was freed would be given to these, and its semaphores would not be 0.
  std::vector<Array<float>> others;
  for (int i = 0; i < 8; ++i) others.push_back(other.array(std::vector<float>(4 << 20, 1e30f)));
  operands.clear();
  for (int i = 0; i < 100; ++i) program.run(*exec);
  program.wait();
  CHECK(operands.result() == expected);
}
