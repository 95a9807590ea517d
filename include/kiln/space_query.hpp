// What a space holds: walk through it with the reasons of refusal, count it without walking.
//
//   const kiln::DynamicSpace space = typed_space.dynamic();
//   const kiln::SpaceCount count = kiln::count_configs(space, problem, limits);
//   kiln::for_each_config(space, problem, limits,
//                         [](auto config, const kiln::Constraint* violated) {
//                           if (violated) std::puts(violated->reason.c_str());
//                           return true;  // go on
//                         });
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kiln/space.hpp"

namespace kiln {

/// How many configs a space has for one problem on one device.
struct SpaceCount {
  struct Rejection {
    std::string reason;  ///< of the first constraint that fails
    double count = 0;
  };

  double combinations = 0;          ///< before constraints
  double allowed = 0;               ///< combinations that keep every constraint
  bool exact = true;                ///< false: `allowed` and `rejected` are estimated from samples
  std::vector<Rejection> rejected;  ///< in the order of the constraints; those that refuse nothing
                                    ///< are left out
};

/// Called with every combination: `violated` is the first constraint that fails, nullptr for an
/// allowed config. Returns false to stop. The config is valid during the call only.
using ConfigVisitor =
    std::function<bool(std::span<const std::int64_t> config, const Constraint* violated)>;

/// Visits every combination, the last parameter turning fastest; nothing is kept in memory. False
/// when the visitor stopped it. Takes time in proportion to `space.combinations()`.
/// @throws UserError when a parameter has more than 65536 values; whatever `visit` throws.
bool for_each_config(const DynamicSpace& space, std::span<const std::int64_t> problem,
                     const DeviceLimits& limits, const ConfigVisitor& visit);

/// Exact up to about a million (2^20) combinations; beyond, an estimate from 2^16 random ones,
/// the same at every call. Constraints that allow less than one in ten thousand of it may be
/// reported as `allowed` 0 with `exact` false.
/// @throws UserError when a parameter has more than 65536 values.
SpaceCount count_configs(const DynamicSpace& space, std::span<const std::int64_t> problem,
                         const DeviceLimits& limits);

}  // namespace kiln
