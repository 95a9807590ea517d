// What the host halves of the kernels over rows share: space, launch, cost.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include <tbb/parallel_for.h>

#include "kiln/kernel.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

/// Numbers of rows share a tuning, widths do not.
template <class Problem>
Problem token_bucket(const Problem& p) {
  Problem bucket = p;
  bucket.rows = count_bucket(p.rows);
  return bucket;
}

/// `kArrays` arrays of T are kept in registers at once.
template <class T, class Problem, int kArrays = 1>
constexpr Space<RowConfig, Problem> row_space(bool online) {
  constexpr int kWidest = 16 / sizeof(T);
  return Space<RowConfig, Problem>{{.block = 256,
                                    .rows_per_block = 1,
                                    .vector = kWidest,
                                    .kept = 4,
                                    .online = online,
                                    .persistent = false}}
      // A thread takes turns with the others of its row, so a row has few.
      .default_on(Target::Kind::host, {.block = 128,
                                       .rows_per_block = 4,
                                       .vector = kWidest,
                                       .kept = 1,
                                       .online = online,
                                       .persistent = false})
      .values(&RowConfig::block, {128, 256, 512, 1024})
      .values(&RowConfig::rows_per_block, {1, 4, 8})
      .values(&RowConfig::kept, {1, 2, 4, 8, 16})
      .values(&RowConfig::persistent, {false, true})
      .where("a block's threads fit the device",
             [](const RowConfig& c, const Problem&, const DeviceLimits& d) {
               return c.threads() <= d.max_threads_per_block;
             })
      .where("each row has one warp if a block has several rows",
             [](const RowConfig& c, const Problem&, const DeviceLimits&) {
               return c.rows_per_block == 1 || c.rows_per_block * 32 == c.block;
             })
      .where_on(Target::Kind::cuda, "a row that a warp reads has at most 32 accesses per thread",
                [](const RowConfig& c, const Problem& p, const DeviceLimits&) {
                  return c.rows_per_block == 1 || p.width() <= 32 * c.step();
                })
      .where_on(Target::Kind::cuda, "what a thread keeps fits its registers",
                [](const RowConfig& c, const Problem&, const DeviceLimits&) {
                  constexpr int kOthers = 52, kOfBlocks = 65536;
                  return kArrays * c.kept * c.vector * static_cast<int>(sizeof(T)) / 4 + kOthers <=
                         kOfBlocks / c.block;
                })
      .where("of more than four accesses that are kept, half as many would not do",
             [](const RowConfig& c, const Problem& p, const DeviceLimits&) {
               return c.kept <= 4 || c.kept / 2 * c.step() < p.width();
             })
      .where("blocks that walk over the rows are fewer than one for each",
             [](const RowConfig& c, const Problem& p, const DeviceLimits& d) {
               return !c.persistent ||
                      c.grid(p.rows, d.usable_multiprocessors()) < c.blocks(p.rows);
             });
}

template <class Problem>
Launch row_launch(const RowConfig& c, const Problem& p, const DeviceLimits& d) {
  return {{p.width() > 0 ? c.grid(p.rows, d.usable_multiprocessors()) : 0},
          {static_cast<unsigned>(c.threads())},
          c.shared_bytes()};
}

/// Kernel::numerics of kernels that sum a row: its threads' sums, and the accesses' order.
template <class Problem>
std::string row_sums(const RowConfig& c, const Problem&) {
  return std::to_string(c.threads_per_row()) + " sums, " + std::to_string(c.vector) +
         " elements at a time" + (c.online ? ", in one pass" : "");
}

/// What a kernel does with a row, for `row_cost`.
struct RowWork {
  double element;     // nanoseconds of one core per element, conversions aside
  double passes;      // over the row
  double reductions;  // over its threads
};

/// On the host: nanoseconds of one core. Threads take turns between barriers and shuffles, so a
/// thread costs more than the elements that it saves another, and what it keeps across them is
/// stored and loaded. A GPU is left to the general model.
template <class T, class Problem>
double row_cost(const RowConfig& c, const Problem& p, const RowWork& work, const DeviceLimits& d) {
  if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
  const double conversion = sizeof(T) == 2 ? 2 : 1;
  const double elements = p.width() * (work.element + 1.1 * work.passes * conversion / c.vector);
  const double turns = work.reductions * (c.warps_per_row() > 1 ? 8 + 0.5 * c.warps_per_row() : 5);
  const double kept = 0.2 * work.passes * c.kept * c.vector;
  return p.rows * (elements + c.threads_per_row() * (turns + kept));
}

/// `f(row)` for each, on all cores.
template <class F>
void for_each_row(int rows, F f) {
  tbb::parallel_for(0, rows, [&](int r) { f(static_cast<std::ptrdiff_t>(r)); });
}

/// A unit in the last place either way, and the order in which floats are added.
template <class T>
constexpr double kRounding = 2e-5;
template <>
inline constexpr double kRounding<float16> = 2e-3;
template <>
inline constexpr double kRounding<bfloat16> = 1.6e-2;

}  // namespace kiln::templates
