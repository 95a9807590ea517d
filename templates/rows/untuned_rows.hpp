// What the kernels over rows run with on a GPU before anything is measured.
#pragma once

#include <algorithm>
#include <bit>
#include <optional>

#include "templates/rows/row_space.hpp"

namespace kiln::templates {

/// The untuned config for a number of rows of a width. Its numbers come from an H200, where all
/// configs of six kernels were timed for 15 or 18 problems each (tests/recorded,
/// test_untuned_picks.cpp).
template <int bytes, RowUse use>
class UntunedRows {
 public:
  UntunedRows(int rows, int width, const DeviceLimits& d)
      : d_(d),
        rows_(rows),
        accesses_((width - 1) / kVector + 1),
        few_(rows <= d.usable_multiprocessors()) {}

  RowConfig config(bool clusters) const {
    const bool whole_clusters = clusters && d_.max_cluster_blocks >= kCluster;
    // Of many short rows that are only read, each has a warp, which needs no barrier.
    if (use.once && rows_ > 8 * d_.usable_multiprocessors() && accesses_ <= 256)
      return with(128, least(32), 1, 4);
    // For each of a few long rows there is more than one multiprocessor.
    if (whole_clusters && few_ && accesses_ > kOfBlock &&
        (!use.once || kCluster * rows_ <= 4 * d_.usable_multiprocessors()))
      if (const RowConfig c = cluster(128, 256); c.kept <= kMostKept) return c;
    // Of many long rows that are only read, small blocks are fastest, kept or not.
    if (use.once && !few_ && accesses_ > 512) return with(128, 4, 1, 1, 1024);
    // Otherwise a block keeps its row, or a cluster does.
    const RowConfig c = block();
    if (c.kept <= kMostKept && c.resident >= 1024) return c;
    if (whole_clusters && !use.once && accesses_ > 2 * kMostKept * c.block)
      if (const RowConfig of_cluster = cluster(256, 256); of_cluster.kept <= kMostKept)
        return of_cluster;
    // What it cannot keep it reads again.
    RowConfig again = with(c.block, use.once ? 4 : kMostKept);
    if (again.resident < 1024) again = with(c.block, 4);
    while (again.resident < again.block) again = with(again.block / 2, 4);  // too few registers
    return again;
  }

 private:
  static constexpr int kVector = 16 / bytes, kMostKept = 8, kCluster = 8;
  static constexpr int kOfBlock = 2048;  ///< accesses: a cluster must have more

  /// Accesses of each of so many threads, or threads with so many accesses each: a power of two.
  int least(int threads) const {
    return static_cast<int>(std::bit_ceil(static_cast<unsigned>((accesses_ - 1) / threads + 1)));
  }

  /// The fewest threads that keep four accesses each; where multiprocessors would be idle anyway,
  /// more threads that wait for fewer.
  RowConfig block() const {
    const int accesses = !few_ ? 4 : use.rows > 1 ? 1 : 2;
    const int most = few_ && (use.rows > 1 || (use.once && accesses_ > kOfBlock)) ? 1024 : 512;
    const int threads = std::clamp(least(accesses), 128, most);
    return with(threads, least(threads));
  }
  RowConfig cluster(int fewest, int most) const {
    const int threads = std::clamp(least(4 * kCluster), fewest, most);
    return with(threads, least(kCluster * threads), kCluster);
  }

  /// As many threads are resident as have registers.
  RowConfig with(int block, int kept, int cluster = 1, int rows_per_block = 1,
                 int most_resident = 2048) const {
    RowConfig c{.block = block,
                .rows_per_block = rows_per_block,
                .vector = kVector,
                .kept = kept,
                .online = use.online,
                .persistent = false,
                .resident = 256,
                .cluster = cluster};
    for (const int resident : {512, 1024, 1536, 2048})
      if (resident <= std::min(most_resident, d_.max_threads_per_multiprocessor) &&
          resident % block == 0 && row_registers(use, c, bytes) <= 65536 / resident / 8 * 8)
        c.resident = resident;
    return c;
  }

  const DeviceLimits& d_;
  const int rows_, accesses_;
  const bool few_;
};

/// Kernel::default_for.
template <int bytes, class Problem, RowUse use, bool clusters = false>
std::optional<RowConfig> row_default(const Problem& p, const DeviceLimits& d) {
  if (d.on_host()) return std::nullopt;
  return UntunedRows<bytes, use>(p.rows, p.width(), d).config(clusters);
}

}  // namespace kiln::templates
