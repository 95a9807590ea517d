// A process that serves, and is tuned behind its launches.
#pragma once

#include "kiln_test.hpp"
#include "unit/runtime/ranks_fixture.hpp"
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

/// The same for ranks. One that is left alone in a commit says so
/// in time.
inline Job serving_job(int ranks) {
  Job job(static_cast<std::size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    job[r].options.mode = Mode::background;
    job[r].options.compile_threads = 1;
    job[r].of(8).seconds = 0.5e-3;
  }
  RankOptions options = job.settings();
  options.first_seconds = patient(15);
  job.set(options);
  return job;
}

/// Leaves a window open until the background has tuned a problem.
inline void tune_in_window(const Runtime& runtime) {
  const TuningWindow window = runtime.window();
  becomes([&] { return runtime.statistics().tuned == 1; });
}

/// Launches n = 60, and leaves a window open until the background has tuned it.
inline void tune_behind(const Runtime& runtime, const DynamicTuned& handle) {
  run_once(handle, 60);
  const TuningWindow window = runtime.window();
  REQUIRE(becomes([&] { return runtime.statistics().tuned == 1; }));
}

}  // namespace kiln::test
