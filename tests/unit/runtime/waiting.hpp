// Waiting for what another thread does.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

namespace kiln::test {

/// So much time on this machine: CI grants more where code is sanitized.
inline double patient(double seconds) {
  const char* const factor = std::getenv("KILN_TIMEOUT_FACTOR");
  return seconds * std::max(1.0, factor ? std::atof(factor) : 1.0);
}

/// Within a time that nothing which works takes.
inline bool becomes(const std::function<bool()>& what, double seconds = patient(30)) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; steady_clock::now() < end; std::this_thread::sleep_for(std::chrono::milliseconds(2)))
    if (what()) return true;
  return what();
}

}  // namespace kiln::test
