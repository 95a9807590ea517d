// What the benchmarks share: medians, scratch stores, and one line of output per figure.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "temporary_directory.hpp"

namespace perf {

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

/// Wall seconds of one call.
template <class F>
double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

using ScratchFolder = kiln::test::TemporaryDirectory;

inline void report(const char* what, double value, const char* unit, const char* goal = "") {
  std::printf("%-58s %10.3g %-6s %s\n", what, value, unit, goal);
}

}  // namespace perf
