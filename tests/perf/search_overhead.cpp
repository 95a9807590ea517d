// What each strategy itself costs for 200 evaluations in spaces of 10^7 and more raw combinations
// with tight constraints, and how much memory the process then takes. Usage: search_overhead
#include <cmath>

#include <sys/resource.h>

#include "perf.hpp"
#include "runtime/search/strategy.hpp"

namespace {

using kiln::DynamicSpace;
using kiln::Values;

constexpr std::size_t kEvaluations = 200;
const std::vector<std::int64_t> kPowers{1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

/// Constraints that each tie a few parameters together.
DynamicSpace tied() {
  DynamicSpace space;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"}) space.parameter(name, kPowers, 1);
  return space
      .where("a * b * c is 4096", [](auto c, auto, auto&) { return c[0] * c[1] * c[2] == 4096; })
      .where("d is half of e", [](auto c, auto, auto&) { return 2 * c[3] == c[4]; })
      .where("f is at most g / 64", [](auto c, auto, auto&) { return 64 * c[5] <= c[6]; })
      .where("d is at least a", [](auto c, auto, auto&) { return c[3] >= c[0]; });
}

/// One constraint over all parameters, no part of which can be checked on a part of a config.
DynamicSpace entangled() {
  DynamicSpace space;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g", "h"})
    space.parameter(name, {1, 2, 3, 4, 5, 6, 7, 8}, 1);
  return space.where("the sum is 57", [](auto c, auto, auto&) {
    std::int64_t sum = 0;
    for (const std::int64_t x : c) sum += x;
    return sum == 57 && c[0] % 2 == 1;
  });
}

/// Tiles of a matrix product.
DynamicSpace tiles() {
  DynamicSpace space;
  space.parameter("bm", {16, 32, 64, 128, 256}, 64)
      .parameter("bn", {16, 32, 64, 128, 256}, 64)
      .parameter("bk", {8, 16, 32, 64}, 16)
      .parameter("wm", {8, 16, 32, 64, 128}, 32)
      .parameter("wn", {8, 16, 32, 64, 128}, 32)
      .parameter("tm", {1, 2, 4, 8, 16}, 4)
      .parameter("tn", {1, 2, 4, 8, 16}, 4)
      .parameter("stages", {1, 2, 3, 4, 5}, 2)
      .parameter("vector", {1, 2, 4, 8}, 4)
      .parameter("swizzle", {0, 1}, 0)
      .parameter("split", {1, 2, 4, 8, 16}, 1);
  return space.where("wm divides bm", [](auto c, auto, auto&) { return c[0] % c[3] == 0; })
      .where("wn divides bn", [](auto c, auto, auto&) { return c[1] % c[4] == 0; })
      .where("a warp has 32 threads",
             [](auto c, auto, auto&) {
               return c[3] % c[5] == 0 && c[4] % c[6] == 0 && c[3] / c[5] * (c[4] / c[6]) == 32;
             })
      .where("8 or 16 warps",
             [](auto c, auto, auto&) {
               const auto warps = c[0] / c[3] * (c[1] / c[4]);
               return warps == 8 || warps == 16;
             })
      .where("shared memory fills three quarters of 96 KiB at least", [](auto c, auto, auto&) {
        const auto bytes = (c[0] + c[1]) * c[2] * 4 * c[7];
        return bytes <= 98304 && bytes > 73728;
      });
}

double time_of(const Values& config) {
  double time = 1;
  for (std::size_t i = 0; i < config.size(); ++i)
    time += std::fabs(std::log2(static_cast<double>(config[i] + 1)) - static_cast<double>(i % 5));
  return time;
}

/// Evaluations done; fewer when the space holds no more.
std::size_t search(const std::string& name, const kiln::runtime::SearchSpace& space,
                   std::size_t batch) {
  const auto strategy = kiln::runtime::make_strategy(name, {space, 1, kEvaluations});
  std::size_t done = 0;
  while (done < kEvaluations) {
    const auto some = strategy->propose(std::min(batch, kEvaluations - done));
    if (some.empty()) break;
    done += some.size();
    for (const Values& config : some) strategy->observe(config, time_of(config));
  }
  return done;
}

}  // namespace

int main() {
  const kiln::DeviceLimits limits;
  const Values problem{1};
  const std::pair<const char*, DynamicSpace> spaces[] = {
      {"tied", tied()}, {"entangled", entangled()}, {"tiles", tiles()}};
  for (const auto& [kind, dynamic] : spaces) {
    double allowed = 0;
    kiln::for_each_config(dynamic, problem, limits, [&](auto, const kiln::Constraint* violated) {
      allowed += violated == nullptr;
      return true;
    });
    std::printf("%s: %.3g combinations, %g allowed (%.1e)\n", kind, dynamic.combinations(), allowed,
                allowed / dynamic.combinations());
    for (const std::string& name : kiln::runtime::strategy_names()) {
      for (const std::size_t batch : {1, 16}) {
        // The space is made anew, so that what it learns of itself is paid for each time.
        std::size_t done = 0;
        const double seconds = perf::seconds([&] {
          const kiln::runtime::SearchSpace space(dynamic, problem, limits);
          done = search(name, space, batch);
        });
        std::string what = name;
        what.append(", batches of ").append(std::to_string(batch));
        if (done < kEvaluations) what.append(", ended after ").append(std::to_string(done));
        perf::report(what.c_str(), seconds, "s", "< 1");
      }
    }
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  perf::report("peak memory of the process", static_cast<double>(usage.ru_maxrss) / 1024, "MiB");
}
