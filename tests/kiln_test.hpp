// Catch2, version 2 (Debian 12) or 3 (newer distributions), under one include, and test cases that
// skip themselves.
#pragma once

#include <cstdio>
#include <string>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

namespace kiln::test {

/// Catch2 2 has no skipped cases: scripts/count_tests.py reads this line, and counts the running
/// case as skipped instead of passed.
inline void say_skipped(const std::string& why) {
  const std::string name = Catch::getResultCapture().getCurrentTestName();
  std::printf("case skipped: %s\t%s\n", name.c_str(), why.substr(0, why.find('\n')).c_str());
  std::fflush(stdout);
}

}  // namespace kiln::test

/// Ends a test case that cannot run here. Not for one section of several: the whole case counts as
/// skipped.
#define KILN_SKIP(why)              \
  do {                              \
    ::kiln::test::say_skipped(why); \
    return;                         \
  } while (false)
/// Ends it without NVRTC; `probe` is a codegen::NvrtcProbe.
#define KILN_NEEDS_NVRTC(probe) \
  if (!(probe).compiler) KILN_SKIP("NVRTC: " + (probe).reason)
