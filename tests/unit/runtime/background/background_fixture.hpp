// A process that serves, and is tuned behind its launches.
#pragma once

#include "unit/runtime/typed_fixture.hpp"
#include "unit/runtime/waiting.hpp"

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

}  // namespace kiln::test
