// Waiting for what another thread does.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace kiln::test {

/// Within a time that nothing which works takes.
inline bool becomes(const std::function<bool()>& what, double seconds = 30) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; steady_clock::now() < end; std::this_thread::sleep_for(std::chrono::milliseconds(2)))
    if (what()) return true;
  return what();
}

}  // namespace kiln::test
