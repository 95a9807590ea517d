// What the host halves of the kernels over rows share: space, launch, cost.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include "templates/kernels.hpp"

namespace kiln::templates {

/// Numbers of rows share a tuning, widths do not.
template <class Problem>
Problem token_bucket(const Problem& p) {
  Problem bucket = p;
  bucket.rows = count_bucket(p.rows);
  return bucket;
}

/// How a kernel uses registers, and what it may choose.
struct RowUse {
  int rows = 1;       // that are kept at once; the next one apart
  int beside = 0;     // arrays beside them
  bool ahead = true;  // the next row is kept, too, where blocks walk
  bool online = false;
  int function = 0;   // registers of what is computed of each element
  bool once = false;  // nothing is written of each element, so one pass suffices, kept or not
};

/// Registers of a thread, as NVRTC needs them to spill none.
constexpr int row_registers(const RowUse& use, const RowConfig& c, int element_bytes) {
  const int of_array = c.kept * c.vector * element_bytes / 4;
  const int rows = use.rows + (use.ahead && c.persistent && c.stages == 0 ? 1 : 0);
  const int beside = c.kept <= 2 || c.persistent ? use.beside : 0;
  int others = use.function + (use.rows > 1 ? 32 : 24);
  if (use.beside > 0) others += c.kept / 2 + (c.online ? c.kept >= 4 ? 30 : 6 : 0);
  return others + (c.kept >= 16 ? 60 : 0) + (rows + beside) * of_array;
}

/// The config that a GPU runs untuned if it keeps the row, or if no config does.
template <int bytes, RowUse use>
constexpr RowConfig row_usual() {
  RowConfig usual{.block = 256,
                  .rows_per_block = 1,
                  .vector = 16 / bytes,
                  .kept = 4,
                  .online = use.online,
                  .persistent = false};
  if (row_registers(use, usual, bytes) > 64) usual.resident = 512;
  return usual;
}

template <int bytes, class Problem, RowUse use>
constexpr Space<RowConfig, Problem> row_space() {
  constexpr int kWidest = 16 / bytes;
  return Space<RowConfig, Problem>{row_usual<bytes, use>()}
      // A thread takes turns with the others of its row, so a row has few.
      .default_on(Target::Kind::host, {.block = 128,
                                       .rows_per_block = 4,
                                       .vector = kWidest,
                                       .kept = 1,
                                       .online = use.online,
                                       .persistent = false,
                                       .resident = 2048})
      .values(&RowConfig::block, {128, 256, 512, 1024})
      .values(&RowConfig::rows_per_block, {1, 4, 8})
      .values(&RowConfig::kept, {1, 2, 4, 8, 16})
      .values(&RowConfig::persistent, {false, true})
      .values(&RowConfig::resident, {256, 512, 1024, 1536, 2048})
      .values_on(Target::Kind::host, &RowConfig::resident, {2048})
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
      .where_on(Target::Kind::cuda, "whole blocks are resident, and what their threads keep",
                [](const RowConfig& c, const Problem& p, const DeviceLimits&) {
                  const auto fits = [&](int threads) {
                    constexpr int kAll = 65536;
                    return row_registers(use, c, bytes) <= kAll / threads / 8 * 8;
                  };
                  // Few threads read much at once, of what they do not keep or is copied ahead.
                  const bool few = c.resident == 512 &&
                                   (c.stages > 0 || (c.kept == 4 && p.width() > 16 * c.step()));
                  return c.resident % c.block == 0 && fits(c.resident) &&
                         (c.resident >= 1024 || !fits(2 * c.resident) || few);
                })
      .where("of more than four accesses that are kept, half as many would not do",
             [](const RowConfig& c, const Problem& p, const DeviceLimits&) {
               return c.kept <= 4 || c.kept / 2 * c.step() < p.width();
             })
      .where_on(Target::Kind::cuda, "fewer accesses than four are kept where they are the row",
                [](const RowConfig& c, const Problem& p, const DeviceLimits&) {
                  return c.kept >= 4 || c.kept * c.step() >= p.width();
                })
      .where_on(Target::Kind::cuda, "four or two are kept where half as many would not do",
                [](const RowConfig& c, const Problem& p, const DeviceLimits&) {
                  return c.kept == 1 || c.block == 256 || c.kept / 2 * c.step() < p.width();
                })
      .where("blocks that walk over the rows are fewer than one for each",
             [](const RowConfig& c, const Problem& p, const DeviceLimits& d) {
               return !c.persistent ||
                      c.grid(p.rows, d.usable_multiprocessors()) < c.blocks(p.rows);
             });
}

/// Adds clusters, which keep all of a row that a block would read twice.
template <int bytes, class Problem>
constexpr Space<RowConfig, Problem> clustered(Space<RowConfig, Problem> space) {
  return space.values(&RowConfig::cluster, {1, 2, 4, 8})
      .values_on(Target::Kind::host, &RowConfig::cluster, {1})
      .where("the device has clusters",
             [](const RowConfig& c, const Problem&, const DeviceLimits& d) {
               return c.cluster == 1 || c.cluster <= d.max_cluster_blocks;
             })
      .where("a cluster has one row, which it keeps, and a block could not",
             [](const RowConfig& c, const Problem& p, const DeviceLimits&) {
               constexpr int kOfBlock = 262144 / bytes / 4;  // half of the registers
               return c.cluster == 1 ||
                      (c.rows_per_block == 1 && !c.persistent && p.width() > kOfBlock / 2 &&
                       c.kept * c.step() >= p.width());
             });
}

/// Rows that blocks walk over may be copied to shared memory ahead of time.
template <int bytes, class Problem>
constexpr Space<RowConfig, Problem> staged(Space<RowConfig, Problem> space) {
  return space.values(&RowConfig::stages, {0, 2, 3, 6})
      .values_on(Target::Kind::host, &RowConfig::stages, {0})
      .where("the device copies in bulk",
             [](const RowConfig& c, const Problem&, const DeviceLimits& d) {
               return c.stages == 0 || d.compute_capability >= 90;
             })
      .where("rows that are copied ahead are kept whole by blocks that walk, and begin at 16 bytes",
             [](const RowConfig& c, const Problem& p, const DeviceLimits&) {
               return c.stages == 0 ||
                      (c.persistent && p.width() <= c.kept * c.step() && p.width() % c.vector == 0);
             })
      .where("the rows that are copied ahead fit shared memory, and are enough",
             [](const RowConfig& c, const Problem& p, const DeviceLimits& d) {
               constexpr int kOfBlock = 2048, kFew = 32768;  // bytes beside the stages; in flight
               if (c.stages == 0) return true;
               const auto of_row = static_cast<int>(c.shared_bytes(p.width(), bytes));
               const int all = c.resident_blocks() * of_row;
               return c.resident <= 1024 && of_row <= d.shared_per_block_optin - kOfBlock &&
                      all >= kFew &&
                      all + c.resident_blocks() * kOfBlock <= d.shared_per_multiprocessor;
             });
}

template <int bytes, class Problem>
Launch row_launch(const RowConfig& c, const Problem& p, const DeviceLimits& d) {
  return {{p.width() > 0 ? c.grid(p.rows, d.usable_multiprocessors()) : 0},
          {static_cast<unsigned>(c.threads())},
          c.shared_bytes(p.width(), bytes),
          {static_cast<unsigned>(c.cluster)}};
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
template <class Problem>
double row_cost(const RowConfig& c, const Problem& p, const RowWork& work, int bytes,
                const DeviceLimits& d) {
  if (!d.on_host()) return std::numeric_limits<double>::quiet_NaN();
  const double conversion = bytes == 2 ? 2 : 1;
  const double elements = p.width() * (work.element + 1.1 * work.passes * conversion / c.vector);
  const double turns = work.reductions * (c.warps_per_row() > 1 ? 8 + 0.5 * c.warps_per_row() : 5);
  const double kept = 0.2 * work.passes * c.kept * c.vector;
  return p.rows * (elements + c.threads_per_row() * (turns + kept));
}

}  // namespace kiln::templates
