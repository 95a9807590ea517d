#include "templates/gemm/gemm_cost.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kiln/occupancy.hpp"
#include "templates/gemm/gemm_tma_cost.hpp"

namespace kiln::templates {

namespace {

/// Of a thread, for each element that it copies and shifts: 50 for 8 of them.
constexpr double kShiftInstructions = 6;

/// What a block does, tails of the problem padded to whole tiles.
struct BlockWork {
  double slices;    // of k
  double products;  // multiply-adds
  double copied;    // elements moved to shared memory
};

BlockWork work(const Gemm& c, const GemmProblem& p) {
  const double slices = std::ceil(1.0 * p.k / c.block_k), depth = slices * c.block_k;
  return {slices, depth * c.block_m * c.block_n, depth * (c.block_m + c.block_n)};
}

/// Blocks follow each other on a core. Nanoseconds: products at the speed of the vectors and of the
/// loads that feed them (elements of 1 and 2 bytes are widened, too), copies (element by element
/// where an access does not divide k), and the threads' turns between barriers.
double on_host(const Gemm& c, const GemmProblem& p, double element_bytes, const DeviceLimits& d) {
  const BlockWork w = work(c, p);
  const double lanes = std::min(c.vector, 8);  // wider ones are no faster where they are cut in two
  const double loads = 1.0 * (c.tile_m + c.tile_n) / (c.tile_m * c.tile_n);
  const double widening = element_bytes < 4 ? 2.0 / c.vector : 0;
  const double product = ((0.5 + loads) / lanes + loads * widening) / 6;
  const double copy = p.k % c.vector == 0 ? 2.4 / lanes : 2;
  const double block = w.products * product + w.copied * copy + w.slices * c.threads() * 10;
  return std::ceil(1.0 * c.grid(p, d.usable_multiprocessors()) / d.usable_multiprocessors()) *
         block * 1e-9;
}

/// Clocks of a multiprocessor: a block keeps its tensor cores (or FMA units), its shared memory and
/// its port to the L2 cache busy; blocks that share it overlap, up to the busiest of the three, and
/// alone a block waits for memory at every slice that its stages do not cover. With
/// `unaligned_rows` all bodies but shift wait at every element that a thread copies.
double on_gpu(const Gemm& c, const GemmProblem& p, double element_bytes, int registers,
              const DeviceLimits& d, bool unaligned_rows) {
  const bool mma = c.by_warp(), wgmma = c.body == GemmBody::wgmma;
  const BlockWork w = work(c, p);
  const double warps = std::ceil(c.threads() / 32.0);
  // Multiply-adds per clock: half of the large chips' in those of 8.6 to 8.9 and 12.x.
  const bool large =
      d.compute_capability == 80 || (d.compute_capability >= 90 && d.compute_capability < 110);
  const double rate = wgmma ? 4096
                      : mma ? (large ? 1024 : 512)
                            : (d.compute_capability == 80 ? 64 : 128);
  const double arithmetic = w.products / rate * std::max(1.0, 4 / warps);

  // Rows and columns of a slice that a warp (wgmma: four, 64 rows at a time) reads, once each, for
  // its products.
  const double lanes_n = mma || wgmma ? 1 : std::min(32, c.units_n());
  const double lanes_m = mma || wgmma ? 1 : 32 / lanes_n;
  const double rows = wgmma ? 64 : lanes_m * c.tile_m, columns = lanes_n * c.tile_n;
  double shared = w.products * (rows + columns) / (rows * columns) * element_bytes / 128;
  const double l2 = w.copied * element_bytes / 48;

  constexpr double kLatency = 800, kStart = 2000;
  double waiting = w.slices * (60 + kLatency / c.stages), issued = 0, turns = 0;
  if (c.body == GemmBody::shift) {  // reads each element twice, and writes it once more
    shared += w.copied * element_bytes * 3 / 128;
    issued = w.copied * kShiftInstructions / 128;
    turns = w.slices * 300;  // of all threads: copying, shifting, multiplying
  } else if (unaligned_rows) {
    waiting = w.slices * 60 + w.copied / c.threads() * kLatency;
  }
  const double busy = std::max({arithmetic, shared, l2, issued}) + turns;
  const double alone = kStart + std::max(busy, arithmetic + issued + turns + waiting);

  const Occupancy o =
      occupancy(d, {.threads = c.threads(),
                    .registers = std::min(registers, 255),
                    .shared_bytes = c.shared_bytes(static_cast<unsigned>(element_bytes),
                                                   GemmTranspose::nt, GemmOperands::two_bytes)});
  if (o.blocks == 0) return std::numeric_limits<double>::infinity();
  const double per_multiprocessor =
      1.0 * c.grid(p, d.usable_multiprocessors()) / d.usable_multiprocessors();
  const double waves = std::floor(per_multiprocessor / o.blocks);
  const double rest = std::ceil(per_multiprocessor - waves * o.blocks);
  const auto wave = [&](double together) { return std::max(together * busy, alone); };
  return (waves * wave(o.blocks) + (rest > 0 ? wave(rest) : 0)) / 1.5e9;
}

}  // namespace

double gemm_cost(const Gemm& c, const GemmProblem& p, double traffic, std::size_t element_bytes,
                 GemmOperands operands, int registers, const DeviceLimits& d, double stored,
                 bool unaligned_rows) {
  if (c.uses_tma()) return gemm_tma_cost(c.tma(operands), p, traffic, d, stored);
  if (c.body == GemmBody::stream) return gemm_small_m_cost(c.small_m(), p, traffic, d);
  const auto bytes = static_cast<double>(element_bytes);
  return d.on_host() ? on_host(c, p, bytes, d) : on_gpu(c, p, bytes, registers, d, unaligned_rows);
}

}  // namespace kiln::templates
