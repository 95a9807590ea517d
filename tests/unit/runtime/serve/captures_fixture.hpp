// A process whose streams the program captures, for tests of what launches do then.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

#include "kiln/region.hpp"
#include "unit/runtime/capturing_device.hpp"
#include "unit/runtime/ranks_fixture.hpp"
#include "unit/runtime/typed_fixture.hpp"

namespace kiln::test {

constexpr int kCaptured = 60;  ///< elements of the problem that is launched

const Stream kStream{reinterpret_cast<void*>(0x5000)};

/// A process whose device can be captured. The first rank of several, if there are.
struct Capturer : Process {
  explicit Capturer(const fs::path& directory, bool ranks = false) : Process(directory) {
    device = graphs = std::make_shared<CapturingDevice>(script);
    device->compute = compute_doubling;
    compiler->on_compile = [this](const codegen::Source&) {
      graphs->forbidden("compile");
      if (block) {
        inside = true;
        while (block) std::this_thread::yield();
      }
    };
    if (!ranks) return;
    auto ends = thread_communicators(2);
    options.tuning.together.first_seconds = options.tuning.together.step_seconds = 30;
    const auto watched = std::make_shared<Watched>(std::move(ends[0]));
    watched->before = [this](int) {
      graphs->forbidden("collective");
      inside = true;
    };
    options.tuning.ranks = watched;
    other_end = std::move(ends[1]);
  }

  std::shared_ptr<CapturingDevice> graphs;
  std::shared_ptr<Communicator> other_end;
  std::atomic<bool> block{false}, inside{false};
};

inline void launch(const DynamicTuned& handle, Buffers& b, Stream stream) {
  handle(stream, Values{kCaptured}, b.y.data(), static_cast<const float*>(b.x.data()), kCaptured);
}
inline void launch_in_a_region(const DynamicTuned& handle, Buffers& b, Stream stream) {
  Region production;
  production(handle, stream, Values{kCaptured}, b.y.data(), static_cast<const float*>(b.x.data()),
             kCaptured);
}

}  // namespace kiln::test
