// What a program that serves is promised, at full size; tests hold smaller forms of it to the same.
//
//   perf_serving [DEVICE] [PROBLEMS] [BUDGET]     by default the host, 500 problems, 20 s
//
// 1. A manifest that is prepared within a budget that does not suffice: how long that took, what is
//    launchable, and what a second preparation tries twice.
// 2. Launches of 8 threads, alone, and beside a background that tunes and 1,000 swaps of what they
//    launch: the time within which a share of them returned.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "kiln/kernel.hpp"
#include "kiln/runtime.hpp"
#include "perf.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"

struct ScaleConfig {
  int block, items;
};
KILN_CONFIG(ScaleConfig, block, items)
struct ScaleProblem {
  int n;
};
KILN_PROBLEM(ScaleProblem, n)

namespace {

using Scale = kiln::Kernel<ScaleConfig, ScaleProblem, void(float*, const float*, int)>;
using Handle = kiln::Tuned<ScaleConfig, ScaleProblem, void(float*, const float*, int)>;

constexpr int kLaunchers = 8, kSwaps = 1000, kTuned = 32, kSmall = 4096;
constexpr double kAlone = 5;  ///< seconds

Scale scale() {
  return {.name = "scale",
          .source = {.text = R"(
struct ScaleConfig { int block, items; };
template <ScaleConfig c>
__global__ void __launch_bounds__(c.block) scale(float* y, const float* x, int n) {
  const int first = (blockIdx.x * c.block + threadIdx.x) * c.items;
  for (int i = first; i < first + c.items && i < n; ++i) y[i] = 3 * x[i];
})"},
          .entry = "scale",
          .config_type = "ScaleConfig",
          .space = kiln::Space<ScaleConfig, ScaleProblem>{{128, 1}}
                       .values(&ScaleConfig::block, {64, 128, 256, 512})
                       .values(&ScaleConfig::items, {1, 2, 4}),
          .launch =
              [](const ScaleConfig& c, const ScaleProblem& p) {
                const int tile = c.block * c.items;
                return kiln::Launch{.grid = {unsigned((p.n + tile - 1) / tile)},
                                    .block = {unsigned(c.block)}};
              },
          .problem = [](float*, const float*, int n) { return ScaleProblem{n}; },
          .workload =
              [](const ScaleProblem& p, kiln::Workload& w) {
                const auto n = std::size_t(p.n);
                w.output<float>(n).input<float>(n).scalar<int>(p.n);
              },
          .reference =
              [](float* y, const float* x, int n) {
                for (int i = 0; i < n; ++i) y[i] = 3 * x[i];
              }};
}

std::size_t tried(const Handle& handle, int problems) {
  std::size_t count = 0;
  for (int i = 0; i < problems; ++i)
    if (const auto known = handle.known({kSmall + i}))
      count += known->candidates.size() - known->count(kiln::CandidateStatus::not_tried);
  return count;
}

void prepare(const std::string& device, int problems, double budget) {
  const perf::ScratchFolder folder;
  kiln::RuntimeOptions options;
  options.device = device;
  options.store.directory = folder.path();
  std::size_t before = 0;
  for (const bool again : {false, true}) {
    const kiln::Runtime runtime(options);
    const Handle handle = runtime.tuned(scale());
    kiln::Manifest manifest;
    for (int i = 0; i < problems; ++i)
      manifest.wanted.push_back(
          {"scale", {}, runtime.device().target.arch, {{"n", kSmall + i}}, {}});
    const kiln::PrepareReport report = runtime.prepare(manifest, {.max_seconds = budget});
    runtime.seal(kiln::OnUnprepared::error);
    auto x = runtime.array<float>(std::size_t(kSmall + problems));
    auto y = runtime.array<float>(std::size_t(kSmall + problems));
    int launchable = 0;
    for (int i = 0; i < problems; ++i) try {
        handle({}, y.data(), x.data(), kSmall + i);
        ++launchable;
      } catch (const kiln::Error&) {
      }
    runtime.synchronize();
    const std::size_t now = tried(handle, problems);
    std::printf("%s preparation of %d problems within %.0f s:\n", again ? "second" : "first",
                problems, budget);
    perf::report("  took", report.seconds, "s", "(goal: 10 % more than the budget at most)");
    perf::report("  launchable", launchable, "", "(goal: all)");
    perf::report("  searched", double(report.searched), "");
    perf::report("  compiled", double(report.compiled), "", again ? "(goal: 0)" : "");
    perf::report("  candidates tried twice", double(report.evaluated) - double(now - before), "",
                 "(goal: 0)");
    before = now;
  }
}

/// Seconds of each launch.
class Load {
 public:
  Load(const kiln::Runtime& runtime, const Handle& handle) {
    for (auto& times : seconds_)
      threads_.emplace_back([&, this] {
        auto x = runtime.array<float>(kSmall), y = runtime.array<float>(kSmall);
        while (!over_) {
          times.push_back(
              perf::seconds([&] { handle(kiln::Stream{}, y.data(), x.data(), kSmall); }));
          ++launches_;
        }
      });
  }
  std::size_t launches() const { return launches_; }
  void end(const char* what, const char* goal) {
    over_ = true;
    threads_.clear();
    std::vector<double> all;
    for (const auto& times : seconds_) all.insert(all.end(), times.begin(), times.end());
    std::printf("%d threads, %s, %zu launches:\n", kLaunchers, what, all.size());
    std::sort(all.begin(), all.end());
    for (const double share : {0.5, 0.99, 0.999, 1.0}) {
      const auto nth = std::min(all.size() - 1, std::size_t(share * double(all.size())));
      perf::report(("  within, of " + std::to_string(share * 100).substr(0, 5) + " %").c_str(),
                   all[nth] * 1e6, "us", share == 0.999 ? goal : "");
    }
  }

 private:
  std::atomic<bool> over_{false};
  std::atomic<std::size_t> launches_{0};
  std::vector<double> seconds_[kLaunchers];
  std::vector<std::jthread> threads_;
};

void swap(const std::string& device) {
  const perf::ScratchFolder folder;
  kiln::RuntimeOptions options;
  options.device = device;
  options.mode = kiln::Mode::background;
  options.store.directory = folder.path();
  options.max_problems = 1000;
  const kiln::Runtime runtime(options);
  const Handle handle = runtime.tuned(scale());
  auto x = runtime.array<float>(kSmall), y = runtime.array<float>(kSmall);
  handle({}, y.data(), x.data(), kSmall);
  {
    Load load(runtime, handle);
    std::this_thread::sleep_for(std::chrono::duration<double>(kAlone));
    load.end("alone", "");
  }
  // Problems for the background, of which only the first is launched any more.
  for (int i = 0; i < kTuned; ++i) handle({}, y.data(), x.data(), kSmall - i);
  const auto served = kiln::detail::Access::engine(runtime)->serving().handles().front();
  const kiln::TuningWindow window = runtime.window();
  Load load(runtime, handle);
  const int blocks[] = {64, 128, 256, 512};
  for (int i = 0; i < kSwaps; ++i) {
    const std::size_t before = load.launches();
    auto made = served->load_config(kiln::Values{kSmall}, kiln::Values{blocks[i % 4], 1}, nullptr);
    served->problems().choose(std::get<kiln::detail::Launchable>(std::move(made)));
    while (load.launches() == before) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::duration<double>(kAlone / kSwaps));
  }
  load.end("beside 1000 swaps and an open window", "(goal: twice that of those alone)");
  perf::report("problems tuned meanwhile", double(runtime.statistics().tuned), "");
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string device = argc > 1 ? argv[1] : "host";
  prepare(device, argc > 2 ? std::atoi(argv[2]) : 500, argc > 3 ? std::atof(argv[3]) : 20);
  swap(device);
} catch (const std::exception& error) {
  std::fprintf(stderr, "serving: %s\n", error.what());
  return 1;
}
