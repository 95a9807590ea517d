// Configurations of gemm_tma.cuh, the GEMM for Hopper: TMA feeds shared memory, wgmma multiplies.
//
// "Rows" and "columns" are those of the product that the tensor cores compute: rows are along m and
// columns along n, or, with `swap`, rows are along n and columns along m, for products with few
// rows.
//
// Operands come through tensor maps with a swizzle of 128 bytes and an L2 promotion of 256 bytes;
// R x C is a box's contiguous elements x the others; K is box_k(), 64 or, of 8-bit floats, 128.
//   A: [m][k], box K x copied_m(), or with `swap` K x copied_n(); [k][m]: box 64 x block_k
//   B: [n][k], box K x copied_n(), or with `swap` K x copied_m(); [k][n]: box 64 x block_k
//   C: [m][n], with store_tma: box store_columns() x 16, or with `swap` 16 x block_n; swizzle
//      store_span() bytes, no promotion. Else a pointer.
//   Array of an epilogue that lies as C does, with fetches(): box fetched_columns() x
//      fetched_rows(), swizzle of a row's bytes, promotion of 256 bytes. Else a pointer.
// The copied_m(), copied_n(), fetched_rows(), 16 and block_n elements are fewer where the array has
// not so many.
// With batches each has a third dimension, of which a box has 1; of an operand that all batches
// share it has 1 itself. So leading dimensions and strides are multiples of 16 bytes, and m, n and
// k are arbitrary.
//
// One warpgroup (four warps) of a block copies, `consumers` of them multiply. cooperative: they
// share the rows of one tile. pingpong: each has tiles of its own, and stores one while another
// multiplies.
#pragma once

#include "../shared/gemm_types.hpp"
#include "kiln/config.hpp"

namespace kiln::templates {

enum class GemmSchedule { cooperative, pingpong };

struct GemmTma {
  GemmSchedule schedule;
  int block_m, block_n;      // rows and columns of a tile
  int block_k;               // k elements per stage, box_k() or twice that
  int stages;                // buffers for slices of k
  int consumers;             // warpgroups that multiply
  int cluster_m, cluster_n;  // blocks of a cluster along rows and columns, which share operands
  int split_k;               // blocks of a cluster that share the k of one tile
  int parts;                 // blocks apart that do, and leave their sums in the workspace
  bool later;                // a step adds the sums of the parts, else the tile's last block
  int group;                 // tiles (of clusters) that share an operand in the L2 cache
  bool along_n;              // groups are of columns, else of rows
  bool persistent;           // a block computes tiles until there are none left
  bool swap;                 // rows are along n
  bool store_tma;            // tiles leave through shared memory and TMA, else from registers
  bool programmatic;         // the launch may begin before the stream's previous one has ended
  GemmOperands operands = GemmOperands::two_bytes;
  bool few_scales = false;  // room for the scales of half of the stages: at least 4 stages

  static constexpr int kResult = 2;  // bytes of an element of C
  constexpr int element() const {    // and of A and B
    return operands == GemmOperands::two_bytes ? 2 : 1;
  }
  /// k elements of a box: 128 bytes, the swizzle's span.
  constexpr int box_k() const { return 128 / element(); }
  /// k elements of a product on the tensor cores: 32 bytes.
  constexpr int product_k() const { return 32 / element(); }

  constexpr int threads() const { return 128 * (1 + consumers); }
  constexpr int cluster() const { return cluster_m * cluster_n * split_k; }
  /// Tiles of 64 rows that a consumer has at a time, and a thread's sums.
  constexpr int row_tiles() const {
    const bool shared = schedule == GemmSchedule::cooperative && consumers > 1;
    return block_m / 64 / (shared ? consumers : 1);
  }
  constexpr int sums() const { return row_tiles() * block_n / 2; }
  /// With exact sums of 8-bit products: tiles of 64 rows whose products have sums of their own,
  /// until those are added. With two of them one is added while the other is multiplied.
  constexpr int parted_tiles() const {
    if (operands != GemmOperands::fp8_exact && !scaled()) return 0;
    return row_tiles() == 1 && sums() + block_n + column_factors() <= most_sums() ? 2 : 1;
  }
  /// And their columns: all of a tile's, or half of them at a time where those sums of all would
  /// not fit beside the others.
  constexpr bool halved() const {
    return parted_tiles() == 1 && sums() + block_n / 2 + column_factors() > most_sums();
  }
  constexpr int parted_columns() const { return halved() ? block_n / 2 : block_n; }
  /// With scales of blocks: as many elements along n have one in common where tiles begin at
  /// multiples. With pairs (gemm_pairs.hpp) they are C's, and a tile has twice as many.
  constexpr bool scaled() const { return operands == GemmOperands::fp8_scaled; }
  constexpr int scale_group(bool pairs = false) const {
    int common = 128;
    while ((swap ? block_m : block_n) / (pairs ? 2 : 1) % common != 0) common /= 2;
    return common;
  }
  constexpr int scale_piece(bool pairs) const { return scale_group(pairs) * (pairs ? 2 : 1); }
  /// And scales that a thread has if its columns are along m: of two slices, of which one is used
  /// where parts are multiplied one after the other.
  constexpr int column_factors() const { return scaled() && swap ? block_n / 2 : 0; }
  /// All that a thread has in registers.
  constexpr int held_sums() const {
    return sums() + parted_tiles() * parted_columns() / 2 + column_factors();
  }
  /// Rows and columns that a block copies, for itself and for the cluster's blocks beside it.
  constexpr int copied_m() const { return block_m / cluster_n; }
  constexpr int copied_n() const { return block_n / cluster_m; }

  constexpr int stage_bytes() const { return (block_m + block_n) * block_k * element(); }
  /// Columns of a box of the result and their bytes, the swizzle's span. With swap a box has 16
  /// elements along n and 32 bytes.
  constexpr int store_span() const { return store_columns() * kResult; }
  constexpr int store_columns() const {
    return swap || block_n % 32 != 0 ? 16 : block_n % 64 != 0 ? 32 : 64;
  }
  /// A warp's buffers for the result: two, or with swap one.
  constexpr int store_bytes() const {
    return swap ? block_n * 16 * kResult : 16 * store_columns() * kResult;
  }
  constexpr int staging_bytes() const {
    return !store_tma ? 0 : 4 * consumers * (swap ? 1 : 2) * store_bytes();
  }
  /// What an epilogue adds to each element (epilogue::EveryElement) comes to stages of its own behind
  /// a tile's slices, a box of C's rows and columns after the other: fetched_columns() along n,
  /// fetched_rows() along m.
  constexpr int fetched_columns() const { return swap ? 64 : store_columns(); }
  constexpr int fetched_rows() const { return swap ? block_n : block_m; }
  constexpr int fetched_bytes() const { return fetched_rows() * fetched_columns() * kResult; }
  constexpr int fetched_boxes() const { return (swap ? block_m : block_n) / fetched_columns(); }
  constexpr int boxes_per_stage() const { return stage_bytes() / fetched_bytes(); }
  constexpr int fetched_stages() const {
    return (fetched_boxes() + boxes_per_stage() - 1) / boxes_per_stage();
  }
  /// In pingpong a consumer waits for them before it gives up its last slice's stage.
  constexpr bool fetches() const {
    return store_tma && fetched_stages() + (schedule == GemmSchedule::pingpong ? 1 : 0) <= stages;
  }
  /// For a cluster that splits k: the tile's units of 16 x 8 sums, and a block's share of them. A
  /// block receives its share from each, where the stages were.
  constexpr int units() const { return block_m / 16 * (block_n / 8); }
  constexpr int share() const { return (units() + split_k - 1) / split_k; }
  constexpr int partial_bytes() const { return split_k == 1 ? 0 : split_k * share() * 16 * 8 * 4; }
  /// With parts: bytes of a tile's sums in the workspace, in units of 16 x 8, part after part.
  constexpr unsigned long long tile_scratch() const {
    return 4ull * static_cast<unsigned>(parts) * static_cast<unsigned>(block_m * block_n);
  }
  static constexpr int kAddThreads = 256;
  /// Blocks of the step that adds the parts of `tiles` tiles.
  constexpr unsigned add_grid(unsigned long long tiles) const {
    return static_cast<unsigned>((tiles * static_cast<unsigned>(units()) + 7) / 8);
  }
  constexpr int buffer_bytes() const {
    const int staged = stages * stage_bytes();
    return staged > partial_bytes() ? staged : partial_bytes();
  }
  /// Scales of blocks that a slice has beside its operands: one for each element along m, and those
  /// of the tile's blocks along n.
  static constexpr int kMostScaleBlocks = 8;
  constexpr int scales_along_m() const { return swap ? block_n : block_m; }
  constexpr int slice_scales() const { return scaled() ? scales_along_m() + kMostScaleBlocks : 0; }
  /// Slices whose scales are there at once: stage i's at i % scale_slots().
  constexpr int scale_slots() const { return few_scales ? stages / 2 : stages; }
  /// Where scales begin in shared memory, behind stages and what is staged, and where barriers do.
  constexpr int scales_at() const { return buffer_bytes() + staging_bytes(); }
  constexpr int barriers_at() const { return scales_at() + 4 * scale_slots() * slice_scales(); }
  constexpr unsigned shared_bytes() const {
    return static_cast<unsigned>(barriers_at() + 2 * stages * 8);
  }

  /// The same with as many stages as a multiprocessor of sm_90 has shared memory for, 228 KiB with
  /// 1 KiB of the driver's per block, when `blocks` blocks share it and each needs `reserved` bytes
  /// for something else.
  constexpr GemmTma with_most_stages(int blocks = 1, int reserved = 0) const {
    const unsigned most_bytes =
        228u * 1024u / static_cast<unsigned>(blocks) - 1024u - static_cast<unsigned>(reserved);
    GemmTma most = *this;
    for (most.stages = 24; most.stages > 2; --most.stages)
      for (int few = 0; few < 2; ++few) {
        most.few_scales = few == 1 && scaled() && most.stages >= 4 && most.stages % 2 == 0;
        if (most.shared_bytes() <= most_bytes) return most;
      }
    most.few_scales = false;
    return most;
  }

  /// True when the parts fit each other; each line is a unit of the hardware.
  constexpr bool fits() const {
    const bool pingpong = schedule == GemmSchedule::pingpong;
    return consumers >= 1 && consumers <= 3 && stages >= 2 && group >= 1 &&
           block_m % (64 * (pingpong ? 1 : consumers)) == 0 && block_m <= 256 && row_tiles() >= 1 &&
           parted_columns() % 8 == 0 && block_n >= 8 && block_n <= 256 &&
           held_sums() <= most_sums() &&
           (block_k == box_k() || (block_k == 2 * box_k() && parted_tiles() == 0)) &&
           (!pingpong || (consumers == 2 && persistent)) && copied_m() % 8 == 0 &&
           copied_n() % 8 == 0 && cluster() <= 8 &&
           (split_k * parts == 1 ||
            (!persistent && !store_tma && cluster_m == 1 && cluster_n == 1)) &&
           (split_k == 1 || parts == 1) && parts >= 1 && (parts > 1 || !later) &&
           (!store_tma || swap || block_n % 16 == 0) &&
           (!few_scales || (stages >= 4 && stages % 2 == 0)) && shared_bytes() <= 227u * 1024u;
  }
  /// Whether operands can be copied as they lie: those across k go in 64 rows or columns at a time.
  constexpr bool copies(bool rows_across, bool columns_across) const {
    return (!rows_across || copied_m() % 64 == 0) && (!columns_across || copied_n() % 64 == 0);
  }
  static constexpr int kMostSums = 208;
  constexpr int most_sums() const { return consumers == 3 ? 96 : kMostSums; }

  constexpr unsigned tiles(int size, int block) const {
    return static_cast<unsigned>((static_cast<long long>(size) + block - 1) / block);
  }
  /// Tiles of a cluster along the product's rows and columns.
  constexpr unsigned tiles_m(int m, int n) const {
    return tiles(swap ? n : m, block_m * cluster_m);
  }
  constexpr unsigned tiles_n(int m, int n) const {
    return tiles(swap ? m : n, block_n * cluster_n);
  }
  /// Blocks that share a multiprocessor of that much shared memory (bytes), as far as known
  /// without the compiler: with one consumer a thread has about 48 registers beside its sums.
  constexpr int per_multiprocessor(int shared_per_multiprocessor) const {
    if (consumers > 1) return 1;
    const int by_shared = shared_per_multiprocessor / (static_cast<int>(shared_bytes()) + 1024);
    const int by_registers = 65536 / (threads() * (held_sums() + 48));
    const int blocks = by_shared < by_registers ? by_shared : by_registers;
    return blocks < 1 ? 1 : blocks;
  }
  /// Blocks, of which those of `resident_clusters` clusters run at the same time.
  constexpr unsigned grid(int m, int n, int resident_clusters, int batch = 1) const {
    const unsigned long long tiles = 1ull * tiles_m(m, n) * tiles_n(m, n);
    const unsigned long long clusters = tiles > ~0u ? ~0u : tiles * static_cast<unsigned>(batch);
    const unsigned long long used =
        persistent && clusters > 1ull * resident_clusters ? 1ull * resident_clusters : clusters;
    const unsigned long long blocks = used * static_cast<unsigned>(cluster() * parts);
    return blocks > ~0u ? ~0u : static_cast<unsigned>(blocks);
  }
};

/// How a GEMM's config would store what is stored of a tile of pairs (gemm_pairs.hpp): narrower, or
/// with swap from registers.
constexpr GemmTma gated_results_of(GemmTma c) {
  if (c.swap)
    c.store_tma = false;
  else
    c.block_n /= 2;
  return c;
}

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::GemmTma, schedule, block_m, block_n, block_k, stages, consumers,
            cluster_m, cluster_n, split_k, parts, later, group, along_n, persistent, swap,
            store_tma, programmatic, operands, few_scales)
