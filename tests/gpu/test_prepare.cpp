// A manifest prepared and a runtime sealed on a GPU; warm starts only load.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "gpu/program.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr int kProblems = 24;

/// Whether a launch of this problem normalises rows of ones to ones.
bool right(const Runtime& runtime, const DynamicTuned& handle, int hidden, int rows = 64) {
  const std::vector<float> ones(static_cast<std::size_t>(rows * hidden), 1.0f);
  const std::vector<float> weights(static_cast<std::size_t>(hidden), 1.0f);
  auto x = runtime.array(ones), w = runtime.array(weights);
  auto y = runtime.array<float>(ones.size());
  handle(Stream{}, {rows, hidden}, y.data(), static_cast<const float*>(x.data()),
         static_cast<const float*>(w.data()), rows, hidden, 0.0f);
  runtime.synchronize();
  for (const float value : y.download())
    if (!(value > 0.999f && value < 1.001f)) return false;
  return true;
}

}  // namespace

TEST_CASE("a manifest is prepared on a GPU, and later starts only load", "[gpu][prepare]") {
  const TemporaryDirectory directory;
  RuntimeOptions options;
  options.device = "cuda";
  options.store.directory = directory.path() / "store";
  const KernelDefinition kernel = shipped_kernels().make("rmsnorm", "f32");
  double cold = 0;
  {
    const Runtime gpu(options);
    const auto handle = gpu.tuned(kernel);
    const PrepareReport report = gpu.prepare(norms(gpu, kProblems), {.max_seconds = 30});
    cold = report.seconds;
    CHECK(report.seconds <= 33);
    CHECK(report.ready() == kProblems);
    CHECK(report.compiled > 0);
    REQUIRE(gpu.prepare(norms(gpu, kProblems)).complete());
  }
  double warm = 0, load = 0;
  for (int start = 0; start < 5; ++start) {
    const Runtime gpu(options);
    const auto handle = gpu.tuned(kernel);
    const PrepareReport report = gpu.prepare(norms(gpu, kProblems), {.work = PrepareWork::look_up});
    CHECK(report.complete());
    CHECK(report.count(PreparedState::known) == kProblems);
    CHECK(report.compiled == 0);
    CHECK(gpu.statistics().compiled == 0);
    REQUIRE(report.device_bytes);
    CHECK(*report.device_bytes >= 0);
    warm = start == 0 ? report.seconds : std::min(warm, report.seconds);
    load = report.load_seconds;

    gpu.seal(OnUnprepared::serve);
    CHECK(right(gpu, handle, 256));
    CHECK(right(gpu, handle, 256 * kProblems));
    CHECK(gpu.statistics().unprepared_served == 0);
    CHECK(right(gpu, handle, 256, 1));  // another bucket of rows
    CHECK(gpu.statistics().unprepared_served == 1);
    CHECK(gpu.statistics().compiled == 0);
    CHECK(gpu.statistics().tuned == 0);
  }
  std::printf("%d problems prepared: cold %.3f s, warm %.4f s, of it loading %.4f s\n", kProblems,
              cold, warm, load);
}
