// A process that serves, and is tuned behind its launches.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "unit/runtime/typed_fixture.hpp"

namespace kiln::test {

inline void run_once(const DynamicTuned& handle, int n) {
  Buffers b(n);
  handle(Stream{}, Values{n}, b.y.data(), static_cast<const float*>(b.x.data()), n);
}

/// The default takes 1 ms, a = 8 half of that.
struct Served : Process {
  explicit Served(const fs::path& directory) : Process(directory) {
    options.mode = Mode::background;
    of(8).seconds = 0.5e-3;
  }
};

/// Within a time that nothing which works takes.
inline bool becomes(const std::function<bool()>& what, double seconds = 30) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; steady_clock::now() < end; std::this_thread::sleep_for(std::chrono::milliseconds(2)))
    if (what()) return true;
  return what();
}

}  // namespace kiln::test
