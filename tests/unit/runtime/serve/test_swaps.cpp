// Launches of many threads while their config is exchanged and others are tuned.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "kiln_test.hpp"
#include "unit/runtime/typed_fixture.hpp"

using namespace kiln;
using namespace kiln::test;

TEST_CASE("launches beside swaps and a background tuner see one config each",
          "[runtime][background][threads]") {
  constexpr int kSwaps = 1000, kLaunchers = 8, kTuned = 16;
  const Directory directory;
  Process process(directory.path());
  std::atomic<int> torn{0}, launches{0};
  // What a launch has begun with: the entry is of the module, the block of the config.
  static thread_local unsigned block = 0;
  process.device->on_launch = [](const std::string& entry, void**) {
    block = static_cast<unsigned>(std::stoul(entry.substr(2)));
  };
  process.device->on_description = [&](const Launch& launch) {
    ++launches;
    torn += block != launch.block.x;
  };
  process.options.mode = Mode::background;
  process.options.max_problems = 1000;
  process.options.tuning.max_evaluations = 8;
  const Runtime runtime = process.runtime();
  std::vector<std::int64_t> versions(kSwaps / 4);
  std::iota(versions.begin(), versions.end(), 0);
  const auto handle = runtime.tuned(doubling({1, 2, 4, 8}, 2, versions));
  const TuningWindow window = runtime.window();
  {
    std::atomic<bool> over{false};
    std::atomic<int> begun{0};
    std::vector<std::jthread> launchers;
    for (int i = 0; i < kLaunchers; ++i)
      launchers.emplace_back([&, i] {
        Buffers b(128);
        // The first launches give the background something to tune.
        for (int round = 0; !over; ++round) {
          const int n = round < kTuned ? 64 + (round + i) % kTuned : 64;
          handle(Stream{}, Values{n}, b.y.data(), static_cast<const float*>(b.x.data()), n);
          if (round == kTuned) ++begun;
        }
      });
    while (begun < kLaunchers) std::this_thread::yield();
    const auto served = detail::Access::engine(runtime)->serving().handles().front();
    for (int i = 0; i < kSwaps; ++i) {
      const int before = launches;
      auto made = served->load_config(Values{64}, Values{1 << (i % 4), i / 4}, nullptr);
      served->problems().choose(std::get<detail::Launchable>(std::move(made)));
      while (launches == before) std::this_thread::yield();
    }
    while (runtime.statistics().tuned < kTuned - 1) std::this_thread::yield();
    over = true;
  }
  std::printf("swaps %d, torn %d (%d launches, %zu problems tuned beside them)\n", kSwaps,
              torn.load(), launches.load(), runtime.statistics().tuned);
  CHECK(torn == 0);
  // Each swap has unloaded what it replaced, once no launch used it.
  CHECK(runtime.metrics().modules_unloaded_total > kSwaps / 2);
}

TEST_CASE("what was confirmed while another thread made something else stays",
          "[runtime][problems]") {
  const Directory directory;
  Process process(directory.path());
  process.options.mode = Mode::untuned;
  const Runtime runtime = process.runtime();
  const auto handle = runtime.tuned(doubling());
  CHECK(handle.config({64}) == Values{2, 0});
  const auto served = detail::Access::engine(runtime)->serving().handles().front();
  const auto makes = [&]() -> runtime::Problems::Made {
    auto made = served->load_config(Values{64}, Values{8, 0}, nullptr);
    served->put_in_use(Values{64}, Values{2, 0}, nullptr);  // as an explicit tuning does
    return std::get<detail::Launchable>(std::move(made));
  };
  served->problems().make(Values{64}, makes, runtime::Problems::If::always);
  CHECK(handle.config({64}) == Values{2, 0});
}
