// Spaces for the tests of searching: random ones with random constraints, and awkward ones.
#pragma once

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "runtime/search/strategy.hpp"

namespace kiln::test {

using runtime::Point;
using runtime::Random;
using runtime::SearchSpace;

inline const DeviceLimits kLimits;
inline const Values kProblem{1};
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A parameter's name. Appended to: GCC 12 warns of `"p" + std::to_string(i)` without cause.
inline std::string numbered(std::size_t i) { return std::string("p").append(std::to_string(i)); }

/// One to five parameters with a few values in any order, none to three random constraints.
inline DynamicSpace random_space(Random& random) {
  DynamicSpace space;
  const std::size_t dimensions = 1 + random.below(5);
  for (std::size_t d = 0; d < dimensions; ++d) {
    std::vector<std::int64_t> values;
    const std::size_t kind = random.below(4);
    const std::size_t count = 1 + random.below(5);
    for (std::size_t i = 0; i < count; ++i)
      values.push_back(kind == 0 ? std::int64_t{1} << i : static_cast<std::int64_t>(i * kind) - 2);
    random.shuffle(values);
    const std::int64_t any = values[0];
    space.parameter(numbered(d), std::move(values), any,
                    kind == 3 ? FieldKind::enumeration : FieldKind::integer);
  }
  for (std::size_t i = random.below(4); i-- > 0;) {
    const std::size_t a = random.below(dimensions), b = random.below(dimensions);
    const auto limit = static_cast<std::int64_t>(random.below(12)) - 3;
    switch (random.below(3)) {
      case 0:
        space.where("a sum", [=](auto c, auto, const auto&) { return c[a] + c[b] <= limit; });
        break;
      case 1:
        space.where("a product", [=](auto c, auto, const auto&) { return c[a] * c[b] >= limit; });
        break;
      default:
        space.where("a parity", [=](auto c, auto, const auto&) { return (c[a] + c[b]) % 2 == 0; });
    }
  }
  return space;
}

/// 20 million combinations, of which 13140 are allowed.
inline DynamicSpace tight_space() {
  DynamicSpace space;
  for (const char* name : {"a", "b", "c", "d", "e", "f", "g"})
    space.parameter(name, {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, 1);
  space.parameter("h", {0, 1}, 0, FieldKind::boolean);
  space
      .where("a * b * c is 4096",
             [](auto c, auto, const auto&) { return c[0] * c[1] * c[2] == 4096; })
      .where("d is half of e", [](auto c, auto, const auto&) { return 2 * c[3] == c[4]; })
      .where("f is at most g / 64", [](auto c, auto, const auto&) { return 64 * c[5] <= c[6]; });
  return space;
}

inline std::set<Values> allowed_configs(const DynamicSpace& space) {
  std::set<Values> all;
  for_each_config(space, kProblem, kLimits, [&](auto config, const Constraint* violated) {
    if (!violated) all.emplace(config.begin(), config.end());
    return true;
  });
  return all;
}

/// A time per config, smooth in some places and rough in others; some cannot be used.
inline double time_of(const Values& config) {
  double time = 1;
  std::uint64_t mix = 17;
  for (std::size_t i = 0; i < config.size(); ++i) {
    const auto x = static_cast<double>(config[i]);
    time += std::fabs(x - static_cast<double>(i)) / (1 + std::fabs(x));
    mix = (mix ^ static_cast<std::uint64_t>(config[i] + 1000)) * 0x9e3779b97f4a7c15;
  }
  return (mix >> 40) % 7 == 0 ? kInfinity : time;
}

}  // namespace kiln::test
