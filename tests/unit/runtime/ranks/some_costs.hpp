// Costs of candidates as a cost model might guess them, always the same.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "runtime/ranks/shard.hpp"

namespace kiln::test {

inline std::vector<runtime::ranks::Cost> some_costs(std::size_t count) {
  std::mt19937 random(7);
  std::vector<runtime::ranks::Cost> costs(count);
  for (runtime::ranks::Cost& c : costs) {
    c.compile = 0.02F + static_cast<float>(random() % 1000) / 2000;
    c.run = 0.01F + static_cast<float>(random() % 1000) / 5000;
  }
  return costs;
}

}  // namespace kiln::test
