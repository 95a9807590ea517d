// Tunings on a GPU whose memory the program has nearly all taken: what it has reserved is left to
// it, and what does not fit is skipped and said. No other program may use the GPU meanwhile.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <thread>
#include <vector>

#include "gpu/program.hpp"
#include "kiln/kernels/gemm.hpp"

using namespace kiln;
using namespace kiln::test;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

constexpr std::size_t kLeft = 1024 * kMiB;  // of the device's memory
constexpr std::size_t kBlock = 256 * kMiB;  // what the program allocates again and again
/// The driver takes memory of its own for kernels that are loaded, so a program reserves more than
/// it allocates itself (docs/engine.md).
constexpr std::size_t kReserve = kBlock + 64 * kMiB;
constexpr std::size_t kOfTheDriver = 48 * kMiB;

std::size_t free_bytes(const runtime::DriverTable& driver) {
  std::size_t free = 0, total = 0;
  return driver.MemGetInfo(&free, &total) == CUDA_SUCCESS ? free : 0;
}

/// All of the device's memory but `left` bytes.
std::vector<runtime::CudaMemory> take_all_but(const Program& program, std::size_t left) {
  constexpr std::size_t kPage = 2 * kMiB, kMost = 16 * 1024 * kMiB;
  std::vector<runtime::CudaMemory> taken;
  for (;;) {
    const std::size_t free = free_bytes(*program.driver);
    if (free < left + kPage) return taken;
    taken.push_back(
        runtime::allocate_memory(program.context, std::min(free - left, kMost) / kPage * kPage));
  }
}

/// The program's other thread, which allocates and frees while something is tuned.
struct Tenant {
  std::atomic<int> served = 0, refused = 0;
  std::atomic<std::size_t> least_free = SIZE_MAX;

  void run(const runtime::CudaContext& context, const std::atomic<bool>& stop) {
    const runtime::CurrentContext current(context);
    const runtime::DriverTable& driver = context.driver();
    const auto watch = [&] {
      for (int i = 0; i < 5; ++i) {
        least_free = std::min(least_free.load(), free_bytes(driver));
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    };
    while (!stop) {
      CUdeviceptr block = 0;
      const bool there = driver.MemAlloc(&block, kBlock) == CUDA_SUCCESS;
      ++(there ? served : refused);
      watch();
      if (there) driver.MemFree(block);
      watch();
    }
  }
};

/// y = 2 x by way of `scratch` MiB of scratch.
KernelDefinition twice_by_scratch() {
  KernelDefinition k = twice();
  k.name = "twice_by_scratch";
  k.source.text = R"(
#include <kiln/workspace.cuh>
template <int scratch> requires(scratch == 0)
__global__ void twice(float* y, const float* x, int n) {
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
template <int scratch> requires(scratch != 0)
__global__ void twice(float* y, const float* x, int n, kiln::Workspace workspace) {
  float* const sums = static_cast<float*>(workspace.scratch);
  const int i = blockIdx.x * 128 + threadIdx.x;
  if (i >= n) return;
  sums[i] = 2 * x[i];
  y[i] = sums[i];
}
)";
  k.space = {};
  k.space.parameter("scratch", {0, 100, 300, 400, 500, 600, 650, 2048}, 0);
  k.launch = [](auto, auto p) {
    return Launch{{static_cast<unsigned>((p[0] + 127) / 128)}, {128}};
  };
  k.workspace = {.size =
                     [](auto c, auto, const DeviceLimits&) {
                       return WorkspaceSize{.bytes = static_cast<std::size_t>(c[0]) * kMiB};
                     },
                 .only_if = [](auto c) { return c[0] != 0; }};
  return k;
}

std::size_t skipped_for_memory(const TuneResult& result) {
  return static_cast<std::size_t>(std::ranges::count_if(result.candidates, [](const Candidate& c) {
    return c.status == CandidateStatus::not_tried &&
           c.reason.find("are reserved") != std::string::npos;
  }));
}

}  // namespace

TEST_CASE("a tuning leaves the program its memory", "[gpu][serving][slow]") {
  const Program program;
  RuntimeOptions options = in_memory();
  options.reserve_bytes = kReserve;
  const Runtime gpu(options);
  const auto kernel = templates::gemm_kernel<bfloat16>();
  const auto gemm = gpu.tuned(kernel);
  const auto by_scratch = gpu.tuned(twice_by_scratch());
  // The driver takes now the memory that it takes only once.
  gemm.tune({256, 256, 256}, {.max_evaluations = 4});
  const auto taken = take_all_but(program, kLeft);
  const std::size_t there = free_bytes(*program.driver);
  REQUIRE(there > kLeft - 64 * kMiB);
  REQUIRE(there < kLeft + 64 * kMiB);

  std::atomic<bool> stop = false;
  Tenant tenant;
  std::optional<TuneResult> fits, some;
  PrepareReport report;
  {
    std::jthread thread([&] { tenant.run(*program.context, stop); });
    const StopAtTheEnd at_the_end{stop};
    fits = gemm.tune({2048, 2048, 2048}, {.max_evaluations = 24, .max_seconds = 60});
    some = by_scratch.tune({1 << 20}, {.strategy = "exhaustive", .max_seconds = 60});
    report = gpu.prepare({{{kernel.name,
                            kernel.types,
                            gpu.device().target.arch,
                            {{"m", 16384}, {"n", 16384}, {"k", 8192}},
                            {}}}},
                         {.max_seconds = 120});
  }
  const std::size_t skipped = skipped_for_memory(*fits) + skipped_for_memory(*some);
  const std::size_t least = tenant.least_free;
  std::printf(
      "%d blocks of %zu MiB allocated beside a tuning, %d refused; at least %.1f MiB were free of "
      "%.1f, %zu of them reserved; skipped for memory: %zu candidates, %zu problems\n",
      tenant.served.load(), kBlock / kMiB, tenant.refused.load(), double(least) / kMiB,
      double(there) / kMiB, kReserve / kMiB, skipped, report.count(PreparedState::on_default));
  CHECK(tenant.served > 20);
  CHECK(tenant.refused == 0);
  CHECK(least + kOfTheDriver >= kReserve - kBlock);
  CHECK(least + kBlock + 50 * kMiB < there);  // the tunings did take memory

  CHECK(fits->winner().status == CandidateStatus::measured);
  CHECK(some->default_candidate().status == CandidateStatus::measured);
  const auto large = std::ranges::find(some->candidates, Values{2048}, &Candidate::config);
  REQUIRE(large != some->candidates.end());
  CHECK(large->status == CandidateStatus::not_tried);
  CHECK_THAT(large->reason,
             Catch::Contains("a workspace of 2147483648 bytes") && Catch::Contains("are reserved"));
  CHECK_FALSE(some->complete);
  REQUIRE(report.problems.size() == 1);
  CHECK(report.problems[0].state == PreparedState::on_default);
  CHECK_THAT(report.problems[0].why, Catch::Contains("are reserved"));
}
