// What the host halves of the kernels over rows share beside their space: what they are made of,
// and what references are.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "kiln/paths.hpp"
#include "templates/rows/untuned_rows.hpp"

namespace kiln::templates {

/// A function of a row.
using OfRow = std::function<void(std::ptrdiff_t)>;
/// `f(row)` for each, on all cores.
void for_each_row(int rows, const OfRow& f);

/// A unit in the last place either way, and the order in which floats are added.
template <class T>
constexpr double kRounding = 2e-5;
template <>
inline constexpr double kRounding<float16> = 2e-3;
template <>
inline constexpr double kRounding<bfloat16> = 1.6e-2;

/// A kernel over rows, but for its data, reference and costs. `name`: of it and its entry; `sizes`:
/// the number of rows among the arguments, which the width follows.
template <class T, class Problem>
RowKernel<Problem> row_kernel(const std::string& name, const char* file,
                              const Space<RowConfig, Problem>& space, std::size_t sizes) {
  RowKernel<Problem> kernel{{.name = name,
                             .source = {.file = templates_dir() / "rows" / file},
                             .entry = "kiln::templates::" + name,
                             .config_type = "kiln::templates::RowConfig",
                             .types = {device_name<T>()},
                             .space = space}};
  kernel.launch = row_launch<sizeof(T), Problem>;
  kernel.relations = {{sizes, "rows"}, {sizes + 1, std::string(field_infos<Problem>()[1].name)}};
  kernel.bucket = token_bucket<Problem>;
  kernel.numerics = row_sums<Problem>;
  return kernel;
}

/// Kernel::flops: a fixed number for each element.
template <class Problem>
std::function<double(const Problem&)> row_flops(double of_element) {
  return [of_element](const Problem& p) { return of_element * p.rows * p.width(); };
}
/// Kernel::bytes: `per_row` arrays of all rows, and `once` of one row.
template <class Problem>
std::function<double(const Problem&)> row_bytes(double per_row, double once, int element_bytes) {
  return [=](const Problem& p) { return (per_row * p.rows + once) * p.width() * element_bytes; };
}
/// Kernel::cost
template <class Problem>
std::function<double(const RowConfig&, const Problem&, const DeviceLimits&)> row_costs(
    const RowWork& work, int element_bytes) {
  return [=](const RowConfig& c, const Problem& p, const DeviceLimits& d) {
    return row_cost(c, p, work, element_bytes, d);
  };
}

/// Rows that blocks or warps keep and do not walk over.
template <int bytes, RowUse use>
Space<RowConfig, HiddenRows> standing() {
  return row_space<bytes, HiddenRows, use>()
      .default_on(Target::Kind::host, {.block = 128,
                                       .rows_per_block = 1,
                                       .vector = 16 / bytes,
                                       .kept = 4,
                                       .online = false,
                                       .persistent = false,
                                       .resident = 2048})
      .where("blocks do not walk over the rows", [](const RowConfig& c, const HiddenRows&,
                                                    const DeviceLimits&) { return !c.persistent; })
      .checked();
}

}  // namespace kiln::templates
