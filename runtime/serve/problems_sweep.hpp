// What problems.cpp does at the end of each change.
#pragma once

#include <optional>

#include "runtime/serve/problems.hpp"

namespace kiln::runtime {

/// Frees at its end what can be freed then, without the lock. With `publishes` all handles keep
/// to their bound after that; the new problem stays, because the caller has what was published.
class Problems::Sweep {
 public:
  explicit Sweep(Problems& problems, bool publishes = false)
      : problems_(problems), publishes_(publishes) {}
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;
  /// Where there is no memory, a later one frees it.
  ~Sweep();
  /// What is about to be published.
  void note(const detail::Launchable& now, const detail::Launchable* before) {
    published_ = {{now.problem.begin(), now.problem.end()}, now.config, {}};
    if (before) published_->before = before->config;
  }

 private:
  struct Published {
    Values problem, config;
    std::optional<Values> before;
  };
  Problems& problems_;
  const bool publishes_;
  std::optional<Published> published_;
};

}  // namespace kiln::runtime
