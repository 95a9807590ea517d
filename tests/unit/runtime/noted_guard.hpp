// A guard of ranks' launches (RankOptions::guard) that tells what it has.
#pragma once

#include <functional>

namespace kiln::test {

struct NotedGuard {
  bool inside = false;  ///< launches are being made
  int calls = 0;

  /// Refers to this object.
  std::function<void(const std::function<void()>&)> guard() {
    return [this](const std::function<void()>& launches) {
      ++calls;
      inside = true;
      try {
        launches();
      } catch (...) {
        inside = false;
        throw;
      }
      inside = false;
    };
  }
};

}  // namespace kiln::test
