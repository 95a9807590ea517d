#include "templates/gemm/gemm_configs.hpp"

#include <algorithm>
#include <initializer_list>

#include "templates/gemm/gemm_values.hpp"

namespace kiln::templates {

namespace {

/// Bodies that walk slices themselves: divisors of blocks, as many as threads share evenly.
void list_plain(GemmBody body, std::size_t element_bytes, bool on_host, std::vector<Gemm>& out) {
  const bool two_bytes = element_bytes == 2, tensor_cores = body != GemmBody::simt;
  for (const int block_m : {16, 32, 64, 128, 256})
    for (const int block_n : {16, 32, 64, 128, 256})
      for (const int tile_m : {1, 2, 4, 8, 16, 32, 64, 128}) {
        if (block_m % tile_m != 0 || (tensor_cores ? tile_m < 16 : tile_m > 8)) continue;
        if (two_bytes && tile_m < 4) continue;
        for (const int tile_n : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
          if (block_n % tile_n != 0 || (tensor_cores ? tile_n < 16 : tile_n > 8)) continue;
          if (two_bytes && tile_n < 2) continue;
          for (const int block_k : {32, 64, 128, 256, 512, 1024}) {
            if (on_host ? block_k < 128 : block_k > 128) continue;
            for (const int vector : {4, 8, 16}) {
              if (two_bytes ? vector < 8 : tensor_cores) continue;
              for (const int stages : {1, 2, 3, 4, 5}) {
                if (on_host && stages > 1) continue;
                for (const int group_m : {1, 4, 8, 16})
                  out.push_back(plain_config(body, block_m, block_n, block_k, stages, tile_m,
                                             tile_n, vector, group_m));
              }
            }
          }
        }
      }
}

/// Few rows stream at the speed of memory; for a few more it may pay to swap the operands.
constexpr int kFewRows = 16, kSmall = 256;

void list_stream(const GemmProblem& p, std::vector<Gemm>& out) {
  if (p.m > kFewRows) return;
  const int block_m = p.m <= 8 ? 8 : 16;
  for (const int warps : {4, 8, 16})
    for (const int unroll : {1, 2, 4, 8})
      for (const int block_n : {16, 32})
        if (block_n == 16 ? unroll > 1 : unroll == 2 || unroll == 4)
          out.push_back({.body = GemmBody::stream,
                         .block_m = block_m,
                         .block_n = block_n,
                         .block_k = warps * unroll * GemmSmallM::kSlice,
                         .stages = unroll,
                         .tile_m = block_m,
                         .tile_n = Gemm::kTileN,
                         .vector = 8,
                         .group_m = Gemm::kGroup,
                         .cluster = GemmCluster::none,
                         .resident = 1,
                         .along_n = false,
                         .swap = false,
                         .parts = 1,
                         .later = false,
                         .programmatic = false});
}

/// A tile, and the rows of it that four warps multiply.
struct Tile {
  int block_m, tile_m, block_n;
};

// Tiles that have won for some shape on an H200, and their neighbours. Wider lists cost compiles,
// and the cost model is worse for tiles that were never near the best.
constexpr Tile kTurns[] = {{128, 128, 80},  {128, 128, 96},  {128, 128, 112}, {128, 128, 128},
                           {128, 128, 144}, {128, 128, 160}, {128, 128, 176}, {128, 128, 192},
                           {64, 64, 96},    {64, 64, 128},   {64, 64, 160}};
constexpr Tile kTogether[] = {{64, 64, 32},    {64, 64, 64},    {64, 64, 96},   {64, 64, 128},
                              {128, 64, 96},   {128, 64, 112},  {128, 64, 128}, {128, 64, 144},
                              {128, 64, 160},  {128, 64, 192},  {128, 64, 208}, {128, 64, 224},
                              {128, 64, 240},  {128, 64, 256},  {192, 64, 112}, {192, 64, 128},
                              {192, 64, 144},  {192, 64, 176},  {256, 128, 96}, {256, 128, 112},
                              {256, 128, 128}, {256, 128, 160}, {256, 128, 176}};
// For exact sums: sums in float and those of the tensor cores share the registers.
constexpr Tile kExactTurns[] = {{64, 64, 192}, {64, 64, 208}};
constexpr Tile kWide = {64, 64, 256};
constexpr Tile kSwapped[] = {{64, 64, 0}, {128, 64, 0}, {128, 128, 0}, {256, 128, 0}};

/// The columns of a tile that holds all of them; 0 where none does.
int all_columns(int columns) {
  for (const int block_n : {8, 16, 32, 48, 64, 96, 128, 160, 192, 256})
    if (block_n >= columns) return block_n;
  return 0;
}

class TmaConfigs {
 public:
  TmaConfigs(GemmTranspose op, const GemmShape<true>& p, GemmOperands operands,
             const DeviceLimits& d, GemmTiles tiles, std::vector<Gemm>& out)
      : op_(op),
        p_(p),
        operands_(operands),
        box_k_(operands == GemmOperands::two_bytes ? 64 : 128),
        d_(d),
        wide_(tiles == GemmTiles::with_wide),
        out_(out) {}

  void list() {
    for (const Tile& tile : kTurns) with_tile(GemmBody::pingpong, false, tile);
    for (const Tile& tile : kTogether) with_tile(GemmBody::tma, false, tile);
    if (operands_ == GemmOperands::fp8_exact || operands_ == GemmOperands::fp8_scaled)
      for (const Tile& tile : kExactTurns) with_tile(GemmBody::pingpong, false, tile);
    if (wide_)
      for (const GemmBody body : {GemmBody::tma, GemmBody::pingpong}) with_tile(body, false, kWide);
    if (p_.m > kSmall) return;
    for (Tile tile : kSwapped) {
      tile.block_n = all_columns(a_across(op_) ? (p_.m + 63) / 64 * 64 : p_.m);
      with_tile(GemmBody::tma, true, tile);
    }
  }

 private:
  void with_tile(GemmBody body, bool swap, const Tile& tile) {
    const int rows = swap ? p_.n : p_.m, columns = swap ? p_.m : p_.n;
    // Columns of an operand that lies across k are copied 64 at a time.
    const int copied = (swap ? a_across(op_) : b_across(op_)) ? 64 : 0;
    if ((tile.block_m > 64 && tile.block_m >= 2 * rows) ||
        tile.block_n >= 2 * std::max(columns, copied) + 32)
      return;
    const double tiles = 1.0 * p_.batch * ((rows + tile.block_m - 1) / tile.block_m) *
                         ((columns + tile.block_n - 1) / tile.block_n);
    Gemm c{.body = body,
           .block_m = tile.block_m,
           .block_n = tile.block_n,
           .block_k = 64,
           .stages = Gemm::kMostStages,
           .tile_m = tile.tile_m,
           .tile_n = Gemm::kTileN,
           .vector = 8,
           .group_m = Gemm::kGroup,
           .cluster = GemmCluster::none,
           .resident = 1,
           .along_n = false,
           .swap = swap,
           .parts = 1,
           .later = false,
           .programmatic = false};
    for (const int block_k : {box_k_, 2 * box_k_}) {
      c.block_k = block_k;
      if (block_k != box_k_ && tile.block_m * tile.block_n > 128 * 128) continue;
      for (const GemmCluster cluster :
           {GemmCluster::none, GemmCluster::two_m, GemmCluster::two_n, GemmCluster::split_2,
            GemmCluster::split_3, GemmCluster::split_4}) {
        c.cluster = cluster;
        const int split = c.split_k();
        if (split > 1 &&
            (tiles * split > 2 * d_.usable_multiprocessors() || p_.k < 8 * box_k_ * split))
          continue;
        if (split == 1 && cluster != GemmCluster::none && swap) continue;
        at_each_residence(c, tiles);
        if (cluster == GemmCluster::none && body == GemmBody::tma) in_parts(c, tiles);
      }
    }
  }

  /// Blocks that share k, where there are fewer tiles than multiprocessors. Four that are a cluster
  /// exchange their sums faster than through memory.
  void in_parts(Gemm c, double tiles) {
    for (const int parts : {2, 4, 6, 8, 12, 16})
      for (const bool later : {false, true}) {
        if (tiles * parts > 2 * d_.usable_multiprocessors() || p_.k < 8 * box_k_ * parts) continue;
        c.parts = parts;
        c.later = later;
        at_each_residence(c, tiles);
      }
  }

  void at_each_residence(Gemm c, double tiles) {
    for (const int resident : {1, 2, 3}) {
      c.resident = resident;
      if (c.divides(operands_) && c.takes(op_) && (wide_ || !c.tma(operands_).halved()))
        in_each_order(c, tiles);
    }
  }

  void in_each_order(Gemm c, double tiles) {
    // The order of tiles matters where there are several waves of them. Groups of one, and groups
    // of columns (along_n), gained 1.5 % at most and .6 % on average over five such shapes on an
    // H200, each with all tiles of 128 x 160 and more: too little for 2.7 times the configs.
    for (const int group : {4, 8, 16}) {
      if (tiles <= 2 * d_.usable_multiprocessors() && group != Gemm::kGroup) continue;
      c.group_m = group;
      out_.push_back(c);
    }
  }

  GemmTranspose op_;
  const GemmShape<true>& p_;
  GemmOperands operands_;
  int box_k_;
  const DeviceLimits& d_;
  bool wide_;
  std::vector<Gemm>& out_;
};

}  // namespace

std::vector<Gemm> gemm_configs(GemmTranspose op, const GemmShape<true>& p,
                               std::size_t element_bytes, GemmOperands operands,
                               const DeviceLimits& d, GemmTiles tiles) {
  std::vector<Gemm> configs;
  const bool nt = op == GemmTranspose::nt;
  const bool tensor_cores = element_bytes == 2 && d.compute_capability >= 80;
  const bool hopper = element_bytes <= 2 && d.compute_capability == 90;
  const int operand_bytes = static_cast<int>(element_bytes);
  // Where TMA can copy and store, the bodies without it are slower.
  const bool tma = hopper && d.tensor_maps && p.k > 0 && p.operands_mappable(operand_bytes);
  if (tma) TmaConfigs(op, p, operands, d, tiles, configs).list();
  if (nt && tensor_cores && p.k > 0 && p.k % 8 == 0 && p.operands_mappable())
    list_stream(p.sizes(), configs);
  if (tma && p.storable(operand_bytes) && !configs.empty()) return configs;
  if (!tensor_cores) list_plain(GemmBody::simt, element_bytes, d.on_host(), configs);
  if (element_bytes == 2 && (tensor_cores || d.on_host()))
    list_plain(GemmBody::mma, element_bytes, d.on_host(), configs);
  if (nt && hopper && tensor_cores) list_plain(GemmBody::wgmma, element_bytes, false, configs);
  return configs;
}

std::vector<Gemm> gemm_shift_configs(const GemmShape<true>& p, const DeviceLimits& d) {
  std::vector<Gemm> configs;
  if (!p.has_unaligned_rows() || d.on_host() || d.compute_capability < 80) return configs;
  struct Block {
    int m, n, tile_m, tile_n;
  };
  for (const Block& b : {Block{16, 32, 16, 16},
                         {16, 64, 16, 16},
                         {16, 128, 16, 32},
                         {32, 32, 16, 16},
                         {32, 64, 16, 32},
                         {64, 32, 32, 16},
                         {64, 64, 32, 32},
                         {64, 128, 32, 32},
                         {64, 128, 64, 32},
                         {128, 64, 32, 32},
                         {128, 64, 64, 32},
                         {128, 128, 32, 64},
                         {128, 128, 64, 32},
                         {128, 256, 64, 64},
                         {256, 128, 64, 64}})
    for (const int block_k : {64, 128})
      for (const int stages : {2, 3, 4, 5})
        for (const int group_m : {4, 8, 16})
          configs.push_back(plain_config(GemmBody::shift, b.m, b.n, block_k, stages, b.tile_m,
                                         b.tile_n, 8, group_m));
  return configs;
}

}  // namespace kiln::templates
