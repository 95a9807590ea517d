// A choice on the fake device: a kernel, and callables that take what a test says by its clock.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "environment_variable.hpp"
#include "kiln/choice.hpp"
#include "kiln/manifest.hpp"
#include "unit/runtime/typed_fixture.hpp"

namespace kiln::test {

using Doubling = Choice<DoublingProblem, void(float*, const float*, int)>;
using DoublingWay = Alternative<DoublingProblem, void(float*, const float*, int)>;

/// A process with a choice, `twice`: the kernel of typed_doubling(), and what a test adds.
struct Chooser : Process {
  explicit Chooser(const fs::path& directory) : Process(directory) {}

  Behaviour& of_typed(int a) { return (*script)[typed_entry(a)]; }
  void kernel_takes(double seconds) {
    for (const int a : {1, 2, 4, 8}) of_typed(a).seconds = seconds;
  }
  /// An alternative that doubles, and takes `seconds`.
  DoublingWay way(std::string name, double seconds) {
    return {.name = name,
            .version = "1",
            .call = [this, name, seconds](const auto&, Stream, float* y, const float* x, int n) {
              ++calls[name];
              for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
              device->pass(seconds);
            }};
  }
  Doubling twice() { return choice(typed_doubling(), "twice"); }

  std::map<std::string, int> calls;
};

/// A process with a folder of its own, and a choice that a test may add to. Every config of the
/// kernel takes 1 ms.
struct Twice {
  Twice() { process.kernel_takes(1e-3); }

  Directory directory;
  Chooser process{directory.path()};
  Doubling twice = process.twice();
};

/// The same, where problems up to the next multiple of 64 share a bucket.
struct TwiceInBuckets : Twice {
  TwiceInBuckets() {
    twice.bucket = [](const DoublingProblem& p) { return DoublingProblem{(p.n + 63) / 64 * 64}; };
  }
};

/// Whether a launch gives what is right.
inline bool launches(const TunedChoice<DoublingProblem, void(float*, const float*, int)>& f,
                     int n) {
  Buffers data(n);
  f({}, data.y.data(), data.x.data(), n);
  return data.doubled();
}

inline WantedInstance wanted_choice(int n, std::uint64_t launches = 0) {
  WantedInstance w{"twice", {}, "generic", {{"n", n}}, {}};
  w.is_choice = true;
  w.launches = launches;
  return w;
}

/// Of `twice`.
inline Manifest of_choices(const std::vector<int>& ns) {
  Manifest manifest;
  for (const int n : ns) manifest.wanted.push_back(wanted_choice(n));
  return manifest;
}

}  // namespace kiln::test
