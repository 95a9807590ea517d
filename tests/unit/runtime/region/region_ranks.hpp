// Ranks that tune a region together: threads, each with a device and a store of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kiln/communicators.hpp"
#include "region_fixture.hpp"

namespace kiln::test {

using Outcome = RankReport::Outcome;

/// Ranks as threads, each with a device and a store of its own.
struct RegionJob {
  explicit RegionJob(int size) {
    for (int r = 0; r < size; ++r) {
      directories.push_back(std::make_unique<Directory>());
      processes.push_back(std::make_unique<RegionProcess>(directories.back()->path()));
      options.emplace_back();
    }
    connect();
  }

  void connect() {
    auto ends = thread_communicators(static_cast<int>(processes.size()));
    for (std::size_t r = 0; r < options.size(); ++r) {
      options[r].ranks = std::move(ends[r]);
      options[r].together.first_seconds = options[r].together.step_seconds = 20;
      options[r].together.tune_seconds = 20;
    }
  }

  /// `step` on every rank; where it throws, the text is kept.
  using Step = std::function<void(std::size_t rank, Region&, DynamicTuned& first,
                                  DynamicTuned& second, float* y)>;
  void run(const Step& step) {
    const std::size_t size = processes.size();
    results.assign(size, {});
    thrown.assign(size, "");
    runs.assign(size, 0);
    in_use.assign(size, {});
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < size; ++r)
      threads.emplace_back([&, r] {
        const Runtime runtime = processes[r]->runtime();
        const auto kernel = [&](const char* name) {
          KernelDefinition k = counting(name);
          if (cost)
            k.cost = [&, r](auto, auto, const DeviceLimits&) {
              cost(r);
              return 1.0;
            };
          return k;
        };
        DynamicTuned first = runtime.tuned(kernel("first"));
        DynamicTuned second = runtime.tuned(kernel("second"));
        std::vector<float> y(64);
        try {
          results[r] = tune_region(
              runtime,
              [&](Region& region) {
                ++runs[r];
                step(r, region, first, second, y.data());
              },
              options[r]);
        } catch (const std::exception& error) {
          thrown[r] = error.what();
        }
        for (const DynamicTuned* handle : {&first, &second}) try {
            in_use[r].push_back(handle->config({64}));
          } catch (const UserError&) {  // not one of the region's: it would have to be tuned alone
            in_use[r].push_back({2, 0});
          }
      });
    threads.clear();
  }
  void run() { run(both); }

  static void both(std::size_t, Region& region, DynamicTuned& first, DynamicTuned& second,
                   float* y) {
    region(first, {}, {64}, y, 64);
    region(second, {}, {64}, y, 64);
  }

  RegionProcess& operator[](std::size_t r) { return *processes[r]; }

  void check_plan(std::int64_t first, std::int64_t second) const {
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK(thrown[r] == "");
      CHECK(results[r].agreed.why == "");
      CHECK(results[r].tuned());
      CHECK(results[r].agreed.rank == static_cast<int>(r));
      CHECK(results[r].agreed.plan_digest == results[0].agreed.plan_digest);
      REQUIRE(results[r].sites.size() == 2);
      CHECK(chosen(results[r], 0) == first);
      CHECK(chosen(results[r], 1) == second);
      CHECK(in_use[r] == std::vector<Values>{{first, 0}, {second, 0}});
      CHECK(runs[r] == runs[0]);
    }
  }
  void check_defaults(const std::string& why) const {
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK(in_use[r] == std::vector<Values>{{2, 0}, {2, 0}});
      if (!thrown[r].empty()) continue;
      CHECK_FALSE(results[r].tuned());
      CHECK_THAT(results[r].agreed.why, Catch::Contains(why));
    }
  }

  std::vector<std::unique_ptr<Directory>> directories;
  std::vector<std::unique_ptr<RegionProcess>> processes;
  std::vector<RegionOptions> options;
  std::vector<RegionResult> results;
  std::vector<std::string> thrown;
  std::vector<int> runs;
  std::vector<std::vector<Values>> in_use;
  std::function<void(std::size_t rank)> cost;  ///< what the kernels' cost functions do first
};

}  // namespace kiln::test
