// Regions on a fake device: kernels with side effects, which could not be tuned alone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "kiln/region.hpp"
#include "kiln_test.hpp"
#include "unit/runtime/engine_fixture.hpp"

namespace kiln::test {

/// Ends the process when a test does not end: ranks that wait for each other can be stopped by
/// nothing else.
class Watchdog {
 public:
  explicit Watchdog(int seconds = 60)
      : thread_([seconds](std::stop_token stop) {
          std::mutex mutex;
          std::condition_variable_any changed;
          std::unique_lock lock(mutex);
          if (changed.wait_for(lock, stop, std::chrono::seconds(seconds), [] { return false; }) ||
              stop.stop_requested())
            return;
          std::fputs("the test hangs\n", stderr);
          std::_Exit(1);
        }) {}

 private:
  std::jthread thread_;
};

/// y[i] += 1 for n elements: launched twice it gives another result. Instances are `<name><a, 0>`.
inline KernelDefinition counting(const std::string& name,
                                 std::vector<std::int64_t> a = {1, 2, 4, 8}) {
  KernelDefinition k = doubling(std::move(a));
  k.name = k.entry = name;
  k.source.text = "template <int a, int b> __global__ void " + name + "(float* y, int n);";
  k.arguments = {"float*", "int"};
  k.workload = nullptr;
  k.reference = nullptr;
  return k;
}

inline std::string entry(const std::string& name, int a) {
  return name + "<" + std::to_string(a) + ", 0>";
}

inline void count_up(void** args) {
  auto* y = *static_cast<float**>(args[0]);
  for (int i = 0; i < *static_cast<int*>(args[1]); ++i) y[i] += 1;
}

/// A process whose device runs counting() kernels and remembers what it launched.
struct RegionProcess : Process {
  explicit RegionProcess(const fs::path& directory) : Process(directory) {
    device->compute = count_up;
    device->on_launch = [this](const std::string& instance, void**) {
      launched.push_back(instance);
      if (instance == delay) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (then) then(instance);
    };
  }
  Behaviour& kernel(const std::string& name, int a) { return (*script)[entry(name, a)]; }

  std::vector<std::string> launched;
  std::function<void(const std::string& instance)> then;
  std::string delay;  ///< an instance with which runs take longer, whatever its own time
};

inline std::int64_t chosen(const RegionResult& result, std::size_t site) {
  return result.sites.at(site).tuned.winner().config.at(0);
}

inline const Candidate& candidate(const RegionResult& result, std::size_t site, std::int64_t a) {
  for (const Candidate& c : result.sites.at(site).tuned.candidates)
    if (c.config.at(0) == a) return c;
  throw std::runtime_error("no such candidate");
}

/// `first` and `second` one after the other on 64 elements.
struct Pair {
  explicit Pair(RegionProcess& process)
      : runtime(process.runtime()),
        first(runtime.tuned(counting("first"))),
        second(runtime.tuned(counting("second"))) {}

  void operator()(Region& region) {
    ++runs;
    region(first, {}, {64}, y.data(), 64);
    region(second, {}, {64}, y.data(), 64);
  }
  RegionResult tune(const RegionOptions& options = {}) {
    return tune_region(runtime, [this](Region& region) { (*this)(region); }, options);
  }
  std::string refused(const RegionOptions& options) {
    try {
      tune(options);
    } catch (const UserError& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  Runtime runtime;
  DynamicTuned first, second;
  std::vector<float> y = std::vector<float>(64);
  std::size_t runs = 0;
};

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kiln::test
