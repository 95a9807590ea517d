// What tests of the kernels over rows share: shapes, configs, comparisons.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "template_test.hpp"

namespace template_test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Offsets are elements past an address that is aligned to 64 bytes.
struct RowShape {
  int rows, width;
  std::size_t x_offset, y_offset;

  std::size_t elements() const {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(width);
  }
  /// Those of blocks of 128.
  std::size_t scales() const {
    return static_cast<std::size_t>(kiln::scale_blocks(width) * kiln::scale_leading(rows));
  }
  std::string describe() const {
    return std::to_string(rows) + " x " + std::to_string(width) + " at " +
           std::to_string(x_offset) + ", " + std::to_string(y_offset);
  }
};
inline const std::vector<RowShape> kShapes{
    {1, 1, 0, 0},    {33, 2, 1, 1},   {3, 512, 0, 0},  {2, 4096, 0, 0}, {7, 37, 3, 3},
    {20, 129, 5, 5}, {5, 1000, 0, 8}, {5, 1001, 1, 1}, {2, 9999, 0, 3}, {1, 20000, 2, 2}};

inline std::string describe(const kiln::templates::RowConfig& c) {
  return "block=" + std::to_string(c.block) +
         " rows_per_block=" + std::to_string(c.rows_per_block) +
         " vector=" + std::to_string(c.vector) + " kept=" + std::to_string(c.kept) +
         " online=" + std::to_string(c.online) + " persistent=" + std::to_string(c.persistent) +
         " cluster=" + std::to_string(c.cluster) + " stages=" + std::to_string(c.stages);
}

/// The defaults of both kinds of targets, and what differs from them.
template <class T, class Kernel>
std::vector<kiln::templates::RowConfig> row_configs(const Kernel& kernel) {
  constexpr int kWidest = 16 / sizeof(T);
  std::vector<kiln::templates::RowConfig> configs{
      kernel.space.default_config(kiln::Target::Kind::cuda),
      kernel.space.default_config(kiln::Target::Kind::host),
      {.block = 64,
       .rows_per_block = 1,
       .vector = kWidest,
       .kept = 2,
       .online = false,
       .persistent = true},
      {.block = 128,
       .rows_per_block = 4,
       .vector = kWidest,
       .kept = 8,
       .online = false,
       .persistent = true},
      {.block = 64,
       .rows_per_block = 1,
       .vector = kWidest,
       .kept = 1,
       .online = true,
       .persistent = true},
      {.block = 32,
       .rows_per_block = 1,
       .vector = 2,
       .kept = 1,
       .online = true,
       .persistent = false}};
  // Rows that are kept whole, one ahead of the other.
  configs.push_back({.block = 128,
                     .rows_per_block = 1,
                     .vector = kWidest,
                     .kept = 4,
                     .online = true,
                     .persistent = true,
                     .resident = 128});
  // Rows that are copied ahead: by a block, and by each of its warps. More stages than rows.
  for (const int rows_per_block : {1, 4})
    configs.push_back({.block = 128,
                       .rows_per_block = rows_per_block,
                       .vector = kWidest,
                       .kept = 16,
                       .online = rows_per_block > 1,
                       .persistent = true,
                       .resident = 128,
                       .stages = rows_per_block > 1 ? 3 : 2});
  // Both types of two bytes go the same ways: one of them goes them all.
  if (std::is_same_v<T, kiln::float16>) configs.resize(3);
  return configs;
}

/// Elements that are farther off than allowed; all of them if something beside `got` was written.
template <class T>
std::size_t wrong_elements(Array<T>& got, Array<T>& want, const kiln::Tolerance& tolerance) {
  std::size_t wrong = got.margins_intact() ? 0 : got.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double a = static_cast<float>(got[i]), b = static_cast<float>(want[i]);
    const bool near =
        std::isnan(b)
            ? std::isnan(a)
            : a == b || std::abs(a - b) <= tolerance.absolute + tolerance.relative * std::abs(b);
    wrong += !near;
  }
  return wrong;
}

}  // namespace template_test
