// Small spaces in the terms of Triton's autotuners: blocks, warps and stages. Their names, values
// and defaults are those of the Python package triton_ops. Kiln's kernels for the same operations
// can be searched in them alone:
//
//   kernel        its small space                                  configs
//   rope_norm     block_size, num_warps, num_stages                     45
//   gemm_gated_*  block_m, block_n, block_k, num_warps, num_stages     108
//   gemm_fp8      the same and group_size_m                            216
//
//   const auto space = kiln::templates::gated_mlp_space().dynamic();
//   kiln::for_each_config(space, problem, limits, visit);  // blocks far too large are refused
//   const auto kernel = kiln::shipped_kernels().make("gemm_gated_silu", "bf16");
//   auto small = kiln::templates::in_small_space(kernel);
//   runtime.tuned(small).tune({512, 14336, 4096});
//
// A point of a small space stands for a config of the kernel's own space, as as_config() says,
// which the kernel's own constraints may refuse on a device. Several may stand for one.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/definition.hpp"
#include "kiln/error.hpp"
#include "kiln/kernels/gemm_gated.hpp"
#include "kiln/kernels/rope.hpp"
#include "kiln/space_query.hpp"

namespace kiln::templates {

/// `block_size`: elements of a token.
struct RmsnormRopeTile {
  int block_size, num_warps, num_stages;
};
/// `block_n`: columns of out.
struct GatedMlpTile {
  int block_m, block_n, block_k, num_warps, num_stages;
};
struct Fp8GemmTile {
  int block_m, block_n, block_k, group_size_m, num_warps, num_stages;
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::RmsnormRopeTile, block_size, num_warps, num_stages)
KILN_CONFIG(kiln::templates::GatedMlpTile, block_m, block_n, block_k, num_warps, num_stages)
KILN_CONFIG(kiln::templates::Fp8GemmTile, block_m, block_n, block_k, group_size_m, num_warps,
            num_stages)

namespace kiln::templates {

namespace small_detail {
/// For tiles of products.
template <class Tile, class Problem>
constexpr Space<Tile, Problem> bounded(Space<Tile, Problem> space) {
  return space
      .where("a block is at most twice as large as the product, and no deeper",
             [](const Tile& t, const Problem& p, const DeviceLimits&) {
               return t.block_m <= 2ll * p.m && t.block_n <= 2ll * p.n && t.block_k <= p.k;
             })
      .checked();
}
/// Warps or threads along m of `count`, so that a unit's part of block_m x block_n is nearly square
/// and has at least `least` rows and columns.
constexpr int along_m(int block_m, int block_n, int count, int least) {
  int best = 1;
  const auto unevenness = [&](int m) {
    const int rows = block_m / m, columns = block_n / (count / m);
    return rows > columns ? rows / std::max(columns, 1) : columns / std::max(rows, 1);
  };
  for (int m = 1; m <= count; m *= 2)
    if (block_m / m >= least && block_n / (count / m) >= least &&
        (block_n / (count / best) < least || unevenness(m) < unevenness(best)))
      best = m;
  return best;
}

/// A body without tensor maps whose `count` units share the tile.
constexpr Gemm shared_tile(GemmBody body, int block_m, int block_n, int block_k, int stages,
                           int count, int least, int vector, int group) {
  const int m = along_m(block_m, block_n, count, least);
  return {.body = body,
          .block_m = block_m,
          .block_n = block_n,
          .block_k = block_k,
          .stages = stages,
          .tile_m = block_m / m,
          .tile_n = std::max(1, block_n / (count / m)),
          .vector = vector,
          .group_m = group};
}
}  // namespace small_detail

constexpr Space<RmsnormRopeTile, RopeProblem> rmsnorm_rope_space() {
  using Tile = RmsnormRopeTile;
  return Space<Tile, RopeProblem>{{.block_size = 128, .num_warps = 4, .num_stages = 2}}
      .values(&Tile::block_size, {64, 128, 256, 512, 1024})
      .values(&Tile::num_warps, {2, 4, 8})
      .values(&Tile::num_stages, {1, 2, 3})
      .where("a token has a block's elements",
             [](const Tile& t, const RopeProblem& p, const DeviceLimits&) {
               return t.block_size <= 1ll * p.heads() * p.head_dim;
             })
      .checked();
}
constexpr Space<GatedMlpTile, GatedProblem> gated_mlp_space() {
  using Tile = GatedMlpTile;
  return small_detail::bounded(Space<Tile, GatedProblem>{
      {.block_m = 64, .block_n = 64, .block_k = 32, .num_warps = 4, .num_stages = 3}}
                                   .values(&Tile::block_m, {32, 64, 128})
                                   .values(&Tile::block_n, {32, 64, 128})
                                   .values(&Tile::block_k, {32, 64})
                                   .values(&Tile::num_warps, {4, 8})
                                   .values(&Tile::num_stages, {2, 3, 4}));
}
constexpr Space<Fp8GemmTile, GemmProblem> fp8_gemm_space() {
  using Tile = Fp8GemmTile;
  return small_detail::bounded(Space<Tile, GemmProblem>{{.block_m = 128,
                                                         .block_n = 128,
                                                         .block_k = 32,
                                                         .group_size_m = 8,
                                                         .num_warps = 4,
                                                         .num_stages = 4}}
                                   .values(&Tile::block_m, {64, 128, 256})
                                   .values(&Tile::block_n, {64, 128, 256})
                                   .values(&Tile::block_k, {32, 64})
                                   .values(&Tile::group_size_m, {4, 8})
                                   .values(&Tile::num_warps, {4, 8})
                                   .values(&Tile::num_stages, {3, 4, 5}));
}

/// Threads of as many warps with the widest accesses; a warp has at least block_size elements of
/// each half of its heads at a time, and stages 1, 2 and 3 are 1, 2 and 4 heads that a thread reads
/// at once.
constexpr RopeConfig as_config(const RmsnormRopeTile& tile, const DeviceLimits&) {
  constexpr int kVector = 8, kWarp = 32;
  return {.block = kWarp * tile.num_warps,
          .vector = kVector,
          .pairs = std::max(1, tile.block_size / (kWarp * kVector)),
          .heads = 1 << (tile.num_stages - 1),
          .streaming = false};
}
/// A tile of twice the columns, gate and up, on the tensor cores of sm_80; warps are as square as
/// can be. On the host threads have the sums, slices are four times as deep, and there is one
/// stage.
constexpr Gemm as_config(const GatedMlpTile& tile, const DeviceLimits& limits) {
  constexpr int kGroup = 8, kBoth = 2;
  if (limits.on_host())
    return small_detail::shared_tile(GemmBody::simt, tile.block_m, kBoth * tile.block_n,
                                     4 * tile.block_k, 1, 32 * tile.num_warps, 2, 16, kGroup);
  return small_detail::shared_tile(GemmBody::mma, tile.block_m, kBoth * tile.block_n, tile.block_k,
                                   tile.num_stages, tile.num_warps, 16, 8, kGroup);
}
/// On sm_90 a tile that tensor maps feed: block_k counts k in pieces of 32 bytes of which a stage
/// has four, num_warps are those that multiply, and there are as many stages as fit. Elsewhere
/// threads have the sums.
constexpr Gemm as_config(const Fp8GemmTile& tile, const DeviceLimits& limits) {
  if (limits.on_host())
    return small_detail::shared_tile(GemmBody::simt, tile.block_m, tile.block_n, 4 * tile.block_k,
                                     1, 32 * tile.num_warps, 2, 16, tile.group_size_m);
  if (limits.compute_capability != 90)
    return small_detail::shared_tile(GemmBody::simt, tile.block_m, tile.block_n, tile.block_k,
                                     tile.num_stages, 32 * tile.num_warps, 2, 8, tile.group_size_m);
  const int consumers = tile.num_warps / 4;
  return {.body = GemmBody::tma,
          .block_m = tile.block_m,
          .block_n = tile.block_n,
          .block_k = 4 * tile.block_k,
          .stages = Gemm::kMostStages,
          .tile_m = tile.block_m / consumers,
          .tile_n = Gemm::kTileN,
          .vector = 8,
          .group_m = tile.group_size_m};
}

namespace small_detail {
template <class Tile, class Problem>
KernelDefinition within(KernelDefinition kernel, const Space<Tile, Problem>& typed) {
  const DynamicSpace space = typed.dynamic();
  const auto config_of = [](std::span<const std::int64_t> tile, const DeviceLimits& d) {
    const auto values = to_values(as_config(from_values<Tile>(tile), d));
    return Values(values.begin(), values.end());
  };
  const auto own_default = [own = kernel.space, for_problem = kernel.default_for](
                               std::span<const std::int64_t> problem, const DeviceLimits& d) {
    Values config = for_problem ? for_problem(problem, d) : Values{};
    if (config.empty())
      config = own.default_config(d.on_host() ? Target::Kind::host : Target::Kind::cuda);
    return config;
  };
  // Where none of a list's configs is taken, the whole space would be searched.
  kernel.configs = [space, config_of, own_default, own = kernel.space](
                       std::span<const std::int64_t> problem, const DeviceLimits& d) {
    std::vector<Values> listed;
    bool taken = false;
    for_each_config(space, problem, d, [&](auto tile, const Constraint* violated) {
      Values config = config_of(tile, d);
      if (violated != nullptr || std::ranges::find(listed, config) != listed.end()) return true;
      taken = taken || own.violated(config, problem, d) == nullptr;
      listed.push_back(std::move(config));
      return true;
    });
    if (!taken) listed.push_back(own_default(problem, d));
    return listed;
  };
  kernel.default_for = [space, config_of, own_default, own = kernel.space](
                           std::span<const std::int64_t> problem, const DeviceLimits& d) {
    const Values& tile = space.default_config();
    Values config = config_of(tile, d);
    const bool taken =
        space.violated(tile, problem, d) == nullptr && own.violated(config, problem, d) == nullptr;
    return taken ? config : own_default(problem, d);
  };
  kernel.untuned_by_cost = nullptr;
  // A record of the whole space is no answer here, nor the other way round.
  kernel.data_version += kernel.data_version.empty() ? "small space" : ", small space";
  return kernel;
}
}  // namespace small_detail

/// The kernel, with nothing to search but its small space. Its default is that space's, where the
/// kernel takes it on the device, else its own. The spaces are of 2-byte types: of others a GPU
/// takes nearly none of their configs, and what is left is the default. So it is for a problem for
/// which all blocks of the space are too large.
/// @throws UserError for a kernel that is none of those above.
inline KernelDefinition in_small_space(KernelDefinition kernel) {
  if (kernel.name == "rope_norm")
    return small_detail::within(std::move(kernel), rmsnorm_rope_space());
  if (kernel.name.starts_with("gemm_gated") && kernel.name.find("_fp8_blocks") == std::string::npos)
    return small_detail::within(std::move(kernel), gated_mlp_space());
  if (kernel.name == "gemm_fp8") return small_detail::within(std::move(kernel), fp8_gemm_space());
  throw UserError("kernel " + kernel.name +
                  " has no small space (known: rope_norm, gemm_gated_*, gemm_fp8)");
}

}  // namespace kiln::templates
