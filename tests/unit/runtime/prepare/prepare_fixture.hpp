// Manifests for the fake device, and what was made of them.
#pragma once

#include <optional>
#include <vector>

#include "unit/runtime/serve/modes_fixture.hpp"

namespace kiln::test {

inline WantedInstance wanted(int n, std::optional<int> a = {}) {
  WantedInstance w{"doubling", {}, "generic", {{"n", n}}, {}};
  if (a) w.config = {{"a", *a}, {"b", 0}};
  return w;
}

inline Manifest problems(const std::vector<int>& ns) {
  Manifest manifest;
  for (const int n : ns) manifest.wanted.push_back(wanted(n));
  return manifest;
}

inline std::vector<PreparedState> states(const PrepareReport& report) {
  std::vector<PreparedState> all;
  for (const PreparedProblem& p : report.problems) all.push_back(p.state);
  return all;
}

using States = std::vector<PreparedState>;

}  // namespace kiln::test
