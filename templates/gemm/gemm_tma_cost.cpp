#include "templates/gemm/gemm_tma_cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kiln::templates {

namespace {

constexpr double kBytesPerMicrosecond = 4.05e6;  // of device memory

/// How much longer memory takes when `kilobytes` of the large operand are on their way to each
/// multiprocessor, of `needed`.
double starved(double kilobytes, double needed, double weight) {
  return 1 + weight * std::max(0.0, needed / kilobytes - 1);
}

/// Microseconds in which a tile's sums go to the L2 cache and come back. A multiprocessor moves 64
/// bytes a clock. If a separate launch adds the parts, all multiprocessors do; if the last block
/// does, one.
double adding_parts(const GemmTma& c, double tiles, double multiprocessors) {
  constexpr double kFromL2 = 64 * 1550, kLaunch = 3, kFence = 1.5;  // the first: bytes
  const double write = c.block_m * c.block_n * 4 / kFromL2, read = c.parts * write;
  return write + (c.later ? kLaunch + read * tiles / multiprocessors : kFence + read);
}

/// How much longer products take if their sums are added in float, a warpgroup cannot multiply the
/// next slice meanwhile, and no other warpgroup multiplies during its turn.
double adding_sums(const GemmTma& c) {
  const bool pingpong = c.schedule == GemmSchedule::pingpong;
  // Calculated: a half takes 256 clocks, and 64 sums of a thread some 130 more until the next one.
  if (c.halved() && (pingpong || c.consumers == 1)) return 1.5;
  // With scales each element is multiplied, too, and the narrower the part the longer the rest
  // counts; columns along m have a scale each.
  if (c.scaled()) {
    const double columns = c.swap ? 1 + c.block_n / 128.0 : 1;
    const bool alternates = c.parted_tiles() == 2 || c.row_tiles() > 1 || c.halved();
    const double added = 1 + 14.0 / std::max(c.parted_columns(), 64);
    return columns * (pingpong ? 1.42 : alternates ? added : 1.2);
  }
  switch (c.parted_tiles()) {  // measured before consumers of a tile had turns
    case 1:
      return pingpong ? 1.3 : 1.05;
    case 2:
      return pingpong ? 1.05 : 1;
    default:
      return 1;
  }
}

/// Clocks in which 128 bytes of k of a block's rows and columns come to its shared memory. A
/// multiprocessor takes 78 bytes a clock (64 at its highest clock rate), also of those that another
/// block of its cluster has asked for. A cluster asks once for what its blocks share, but each
/// block gets no more than 46 bytes a clock of what the cluster asks for. Both rates are from all
/// tiles of six products in bf16 and six in e4m3 on an H200.
double copying(const GemmTma& c) {
  constexpr double kTaken = 78, kOfCluster = 46, kBytes = 128;
  const double taken = kBytes * (c.block_m + c.block_n) / kTaken;
  if (c.cluster_m * c.cluster_n == 1) return taken;
  const double asked = 1.0 * c.block_m / c.cluster_n + 1.0 * c.block_n / c.cluster_m;
  return std::max(taken, kBytes * asked / kOfCluster);
}

/// How much longer it takes to store tiles in boxes of few columns. The other constants contain
/// what bf16's tiles show of it.
double narrow_boxes(const GemmTma& c) {
  if (c.element() == 2 || c.swap) return 1;
  return c.store_columns() == 16 ? 1.5 : c.store_columns() == 32 ? 1.2 : 1;
}

}  // namespace

// Microseconds. Blocks come in rounds of as many as are resident; those that share a multiprocessor
// share its tensor cores. The larger of that and of memory counts, and a little of the other. The
// cost of parts is calculated, and all else was fitted to measurements: so a config with parts
// counts as a quarter slower than it was calculated to be.
double gemm_tma_cost(const GemmTma& c, const GemmProblem& p, double traffic, const DeviceLimits& d,
                     double stored) {
  if (!c.fits() || c.shared_bytes() > static_cast<unsigned>(d.shared_per_block_optin))
    return std::numeric_limits<double>::infinity();
  const bool pingpong = c.schedule == GemmSchedule::pingpong;
  const double multiprocessors = d.usable_multiprocessors();
  const int resident = c.per_multiprocessor(d.shared_per_multiprocessor);
  const double tiles = 1.0 * c.tiles_m(p.m, p.n) * c.tiles_n(p.m, p.n) * c.cluster_m * c.cluster_n;
  const double blocks = tiles * c.split_k * c.parts;
  // Clusters of three and four find fewer places.
  const double places = c.split_k > 2 ? 0.9 * multiprocessors : multiprocessors;
  const double slots = places * (c.cluster_m * c.cluster_n > 1 ? 1 : resident);
  const double rounds = std::ceil(blocks / slots);
  const double in_last = std::ceil((blocks - (rounds - 1) * slots) / multiprocessors);

  // Clocks for 128 bytes of k: products, of which few columns are bound by reading rows, or copies.
  const double passes = c.halved() ? 2 : 1, columns = c.block_n / passes;
  const double products = c.block_m / 16.0 * passes * std::max(columns / 2, 23 + columns / 4) *
                          adding_sums(c) / (pingpong ? 0.89 : 0.95);
  const double copies = copying(c);
  const double slice = std::max(products, copies) / 1550;
  const double depth = 1.0 * c.block_k / c.box_k();
  const double slices = std::ceil(1.0 * c.tiles(p.k, c.block_k) / (c.split_k * c.parts)) * depth;
  const double latency = 1.04 / (c.stages * depth);
  const auto round = [&](double together) { return slices * std::max(slice * together, latency); };

  const double store = stored * c.block_m * c.block_n * 2 / 64e3 * narrow_boxes(c),
               alone = 3.05 * store;
  const double overlapped = pingpong ? 0.64 * store : alone;
  const double start = c.persistent ? 0.38 : 4.1;  // of another tile
  const double last = pingpong && rounds > 1 ? overlapped : alone;
  const double computing =
      (rounds - 1) * (round(resident) + overlapped + start) + round(in_last) + last;

  const double in_flight = std::min(blocks, slots) / multiprocessors * c.stages * depth *
                           (c.swap ? c.block_m : c.block_n) * 0.128;
  const double memory = (traffic / kBytesPerMicrosecond + 1.8) * starved(in_flight, 49, 0.29);

  double time = 1.07 + std::max(computing, memory) + 0.084 * std::min(computing, memory);
  if (c.split_k > 1) time += 1.83 + c.block_m * c.block_n / 9000.0;
  if (c.parts > 1) time = 1.25 * (time + adding_parts(c, tiles, multiprocessors));
  if (c.cluster_m * c.cluster_n > 1) time += 0.54;
  time += 0.01 * (c.consumers - 1);
  return time * 1e-6;
}

// The same, with rounds of blocks that wait for memory at every step.
double gemm_small_m_cost(const GemmSmallM& c, const GemmProblem& p, double traffic,
                         const DeviceLimits& d) {
  if (p.m > c.rows()) return std::numeric_limits<double>::infinity();
  const double multiprocessors = d.usable_multiprocessors();
  const double blocks = c.grid(p.n);
  const int step = c.unroll * c.tiles_n;
  const int registers = 44 + 8 * step + 4 * c.tiles_m * (c.unroll + c.tiles_n);
  const int resident = std::max(
      1,
      std::min({d.registers_per_multiprocessor / (registers * c.threads()),
                d.max_threads_per_multiprocessor / c.threads(), d.max_blocks_per_multiprocessor}));
  const double rounds = blocks / (multiprocessors * resident), full = std::ceil(rounds);
  const double steps = std::ceil(1.0 * p.k / (GemmSmallM::kSlice * c.unroll * c.warps));
  const double alone = steps * 0.62 * (0.63 + 0.37 * step / 4) + 0.32;

  const double in_flight = std::min(blocks / multiprocessors, 1.0 * resident) * c.warps * step;
  const double memory = traffic / kBytesPerMicrosecond * starved(in_flight, 22, 0.32);
  const double wide = 1 + 0.06 * (c.tiles_n + c.tiles_m - 2);  // few blocks, many registers
  const double time = 2.95 + std::max(memory * wide, full * alone) +
                      0.47 * (full - rounds) / full * alone + 0.09 * full;
  return time * 1e-6;
}

}  // namespace kiln::templates
