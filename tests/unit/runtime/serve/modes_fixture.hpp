// A release job, and a program that finds less than it made.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "unit/runtime/typed_fixture.hpp"

namespace kiln::test {

/// A release job: `directory` gets the record of `n`, whose winner is `a`, and the candidates.
inline void tune_into(const fs::path& directory, int n, int a,
                      KernelDefinition kernel = doubling()) {
  Process process(directory);
  process.of(a).seconds = 0.5e-3;
  Buffers b(n);
  process.runtime().tuned(kernel)({}, Values{n}, b.y.data(), b.x.data(), n);
}

inline bool launch(const DynamicTuned& handle, int n) {
  Buffers b(n);
  handle({}, Values{n}, b.y.data(), b.x.data(), n);
  return b.doubled();
}

inline bool launch_all(const DynamicTuned& handle, int from, int to) {
  bool right = true;
  for (int n = from; n < to; ++n) right = launch(handle, n) && right;
  return right;
}

inline fs::path entry_of(const Directory& directory, const std::string& text) {
  for (const fs::path& file : directory.entries(".kiln"))
    if (read_text(file).find(text) != std::string::npos) return file;
  throw std::runtime_error("no entry with " + text);
}

}  // namespace kiln::test
