#include "templates/gemm/gemm_configs.hpp"

#include <initializer_list>

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
                  out.push_back({.body = body,
                                 .block_m = block_m,
                                 .block_n = block_n,
                                 .block_k = block_k,
                                 .stages = stages,
                                 .tile_m = tile_m,
                                 .tile_n = tile_n,
                                 .vector = vector,
                                 .group_m = group_m,
                                 .cluster = GemmCluster::none,
                                 .resident = 1,
                                 .along_n = false,
                                 .swap = false,
                                 .programmatic = false});
              }
            }
          }
        }
      }
}

/// Few rows stream at the speed of memory, and there a dependent launch hides its start.
constexpr int kFewRows = 16, kSmall = 256;

void list_stream(const GemmProblem& p, bool dependent, std::vector<Gemm>& out) {
  if (p.m > kFewRows) return;
  const int block_m = p.m <= 8 ? 8 : 16;
  for (const int warps : {4, 8, 16})
    for (const int unroll : {1, 2, 4, 8})
      for (const int block_n : {16, 32})
        for (const bool programmatic : {false, true})
          if ((dependent || !programmatic) &&
              (block_n == 16 ? unroll > 1 : unroll == 2 || unroll == 4))
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
                           .programmatic = programmatic});
}

void list_tma(GemmBody body, const GemmProblem& p, const DeviceLimits& d, std::vector<Gemm>& out) {
  Gemm c{.body = body,
         .block_m = 0,
         .block_n = 0,
         .block_k = 64,
         .stages = Gemm::kMostStages,
         .tile_m = 0,
         .tile_n = Gemm::kTileN,
         .vector = 8,
         .group_m = Gemm::kGroup,
         .cluster = GemmCluster::none,
         .resident = 1,
         .along_n = false,
         .swap = false,
         .programmatic = false};
  const auto each_order = [&] {
    const GemmTma t = c.tma();
    const double tiles = 1.0 * t.tiles_m(p.m, p.n) * t.tiles_n(p.m, p.n) * t.cluster();
    for (const bool programmatic : {false, true}) {
      if (programmatic && p.m > kSmall) continue;
      c.programmatic = programmatic;
      // The order of tiles matters where there are several waves of them.
      for (const int group : {4, 8, 16})
        for (const bool along_n : {false, true}) {
          if (tiles <= 2 * d.multiprocessors && (group != Gemm::kGroup || along_n)) continue;
          c.group_m = group;
          c.along_n = along_n;
          out.push_back(c);
        }
    }
  };
  for (const bool swap : {false, true}) {
    if (swap && (p.m > kSmall || body == GemmBody::pingpong)) continue;
    c.swap = swap;
    const int rows = swap ? p.n : p.m, columns = swap ? p.m : p.n;
    for (const int block_m : {64, 128, 192, 256})
      for (const int tile_m : {64, 128}) {
        if (body == GemmBody::pingpong ? tile_m != block_m
                                       : block_m % tile_m != 0 || block_m > 3 * tile_m)
          continue;
        if (block_m > 64 && block_m >= 2 * rows) continue;
        for (const int block_n :
             {8, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256}) {
          if (block_n > 8 && block_n >= 2 * columns) continue;
          // Few rows are one tile wide; products of many have tiles that are not narrow.
          if (swap ? block_n < columns && block_n < 64 : block_n < 32 && columns > 64) continue;
          c.block_m = block_m;
          c.tile_m = tile_m;
          c.block_n = block_n;
          const double tiles =
              1.0 * ((rows + block_m - 1) / block_m) * ((columns + block_n - 1) / block_n);
          for (const int block_k : {64, 128}) {
            c.block_k = block_k;
            for (const GemmCluster cluster :
                 {GemmCluster::none, GemmCluster::two_m, GemmCluster::two_n, GemmCluster::split_2,
                  GemmCluster::split_3, GemmCluster::split_4}) {
              c.cluster = cluster;
              const int split = c.split_k();
              if (split > 1 && (tiles * split > 2 * d.multiprocessors || p.k < 256 * split))
                continue;
              for (const int resident : {1, 2, 3}) {
                c.resident = resident;
                if (c.divides()) each_order();
              }
            }
          }
        }
      }
  }
}

}  // namespace

std::vector<Gemm> gemm_configs(const GemmProblem& p, std::size_t element_bytes,
                               const DeviceLimits& d) {
  std::vector<Gemm> configs;
  const bool tensor_cores = element_bytes == 2 && d.compute_capability >= 80;
  const bool hopper = tensor_cores && d.compute_capability == 90;
  // Where TMA can copy, the bodies without it are slower.
  const bool tma = hopper && d.tensor_maps && p.k > 0 && p.k % 8 == 0 && p.n % 8 == 0;
  if (tma) {
    list_tma(GemmBody::tma, p, d, configs);
    list_tma(GemmBody::pingpong, p, d, configs);
  }
  if (tensor_cores && p.k > 0 && p.k % 8 == 0) list_stream(p, d.compute_capability >= 90, configs);
  if (tma) return configs;
  if (!tensor_cores) list_plain(GemmBody::simt, element_bytes, d.on_host(), configs);
  if (element_bytes == 2 && (tensor_cores || d.on_host()))
    list_plain(GemmBody::mma, element_bytes, d.on_host(), configs);
  if (hopper) list_plain(GemmBody::wgmma, element_bytes, false, configs);
  return configs;
}

}  // namespace kiln::templates
