// C[i][j] = epilogue(sum_l op(A)[i][l] * op(B)[l][j]), 0 <= i < m, 0 <= j < n, 0 <= l < k.
//
// op, and how the arrays lie: gemm_problem.hpp. As a rule A is [m][k] and B [n][k] (a linear
// layer's weights as they are stored). C is [m][n]; all are row-major, of T = float, __half or
// __nv_bfloat16, or with T = Fp8<R> A and B are 8-bit floats and C is of R (gemm_fp8.hpp, which
// says how they are summed). Other products are summed in float. C rounds once, behind the epilogue
// (kiln/epilogue.hpp). C may overlap neither A nor B.
//
// A NaN among the operands makes NaN of all that it is summed to, and so do an infinity times 0 and
// products that are infinite with both signs; otherwise an infinity makes infinities. A row of
// zeros has sums of 0. Sums, or partial sums of any order, beyond the largest float are infinite,
// and so is what is beyond the largest T.
//
// m, n and k need not be multiples of anything. The plain bodies move `vector` elements per access
// of an operand that is aligned to that many bytes, with rows and leading dimensions of multiples
// of that; else element by element, but for shift. On sm_90, where leading dimensions and strides
// are multiples of 8, a config with tensor maps may be chosen, and a launch with a pointer that is
// not aligned to 16 bytes is then a UserError. k is kMostDepth (2^31 - 2^16) at most.
//
// A block computes block_m x block_n of C. It walks k in slices of block_k, each copied into one of
// `stages` buffers in shared memory, and multiplies them with one of these bodies:
//   simt  a thread computes tile_m x tile_n elements as dot products. Any T, any target.
//   mma   a warp computes tile_m x tile_n elements with tensor cores (mma.sync). 2-byte T, sm_80 or
//   later.
//   wgmma four warps compute tile_m x tile_n elements with Hopper's tensor cores (wgmma), which
//   read shared memory themselves while the warps do other work. 2-byte T, sm_90a alone, op nt.
//   shift as mma, but slices are copied as they lie, by accesses of 16 bytes, and shifted into place
//   (gemm_shift.cuh): for a k, leading dimensions or strides that are no multiples of 8. 2-byte T,
//   sm_80 or later, op nt.
//   tma, pingpong  see gemm_tma.hpp: a warp copies by tensor maps, groups of four warps multiply by
//   wgmma and have tile_m x block_n elements each; as many stages as fit. 2-byte T or Fp8, sm_90a,
//   leading dimensions and strides of A and B multiples of 16 bytes, without a split of k also n
//   and those of C. C, A and B, and an array that the epilogue adds to C, must be aligned to 16
//   bytes.
//   stream  see gemm_small_m.hpp, for m <= block_m: B streams through registers, `stages` loads at
//   a time, and the block's warps share k. 2-byte T, sm_80 on, op nt, k, lda, ldb and strides
//   multiples of 8. Element by element, and slowly, where A or B is not aligned to 16 bytes.
//
// With `parts` a config has a workspace (kiln/workspace.hpp) for partial sums, and with `later` a
// step.
//
// C++ programs: `auto gemm = runtime.tuned(kiln::templates::gemm_kernel<kiln::bfloat16>());`, and
// more in gemm_kernel.hpp.
#pragma once

#include "gemm_small_m.hpp"
#include "kiln/config.hpp"
#include "shared/gemm_problem.hpp"
#include "tma/gemm_tma.hpp"

namespace kiln::templates {

enum class GemmBody { simt, mma, wgmma, tma, pingpong, stream, shift };

/// Blocks of tma and pingpong that run together: pairs that share columns (two_m) or rows (two_n)
/// of a tile's operands, or blocks that share the k of one tile.
enum class GemmCluster { none, two_m, two_n, split_2, split_3, split_4 };

struct Gemm {
  GemmBody body;
  int block_m, block_n;  // rows and columns of C per block
  int block_k;           // k elements per slice
  int stages;            // buffers; 1: copying and multiplying take turns
  int tile_m, tile_n;  // rows and columns of C per unit: thread (simt), warp (mma), 4 warps (wgmma)
  int vector;          // k elements per access of an operand
  int group_m;         // block rows that share the blocks' columns while those are in the L2 cache
  GemmCluster cluster = GemmCluster::none;
  int resident = 1;      // blocks that share a multiprocessor, and its memory (tma)
  bool along_n = false;  // groups are of block columns (tma, pingpong)
  bool swap = false;     // blocks are block_m x block_n of the transposed C (tma)
  int parts = 1;         // blocks apart that share the k of one tile, and leave their sums in the
                         // workspace (tma)
  bool later = false;    // a step adds the sums of the parts, else the tile's last block
  // A launch may begin before the one in front of it has ended. Not listed: see gemm_configs.hpp.
  bool programmatic = false;

  /// The body that walks slices in gemm.cuh itself.
  constexpr bool plain() const {
    return body == GemmBody::simt || by_warp() || body == GemmBody::wgmma;
  }
  /// A unit is a warp.
  constexpr bool by_warp() const { return body == GemmBody::mma || body == GemmBody::shift; }
  constexpr bool uses_tma() const { return body == GemmBody::tma || body == GemmBody::pingpong; }
  constexpr int split_k() const {
    return cluster == GemmCluster::split_2   ? 2
           : cluster == GemmCluster::split_3 ? 3
           : cluster == GemmCluster::split_4 ? 4
                                             : 1;
  }
  constexpr bool stores_by_map() const { return uses_tma() && split_k() == 1 && parts == 1; }
  /// Whether an array that an epilogue adds comes by a map: see GemmTma::fetches().
  constexpr bool fetches(GemmOperands operands) const {
    return stores_by_map() && tma(operands).fetches();
  }
  constexpr GemmTma tma(GemmOperands operands = GemmOperands::two_bytes) const {
    const bool turns = body == GemmBody::pingpong, split = split_k() > 1 || parts > 1;
    return GemmTma{.schedule = turns ? GemmSchedule::pingpong : GemmSchedule::cooperative,
                   .block_m = block_m,
                   .block_n = block_n,
                   .block_k = block_k,
                   .stages = 1,
                   .consumers = turns ? 2 : block_m / tile_m,
                   .cluster_m = cluster == GemmCluster::two_m ? 2 : 1,
                   .cluster_n = cluster == GemmCluster::two_n ? 2 : 1,
                   .split_k = split_k(),
                   .parts = parts,
                   .later = later,
                   .group = group_m,
                   .along_n = along_n,
                   .persistent = !split,
                   .swap = swap,
                   .store_tma = !split,
                   .programmatic = programmatic,
                   .operands = operands}
        .with_most_stages(resident);
  }
  constexpr GemmSmallM small_m() const {
    return {.warps = block_k / (GemmSmallM::kSlice * stages),
            .tiles_m = block_m / 8,
            .tiles_n = block_n / 16,
            .unroll = stages,
            .programmatic = programmatic};
  }

  constexpr int units_m() const { return block_m / tile_m; }  // along m
  constexpr int units_n() const { return block_n / tile_n; }
  constexpr int unit_threads() const { return body == GemmBody::simt ? 1 : by_warp() ? 32 : 128; }
  constexpr int threads() const {
    return uses_tma()                 ? tma().threads()
           : body == GemmBody::stream ? small_m().threads()
                                      : units_m() * units_n() * unit_threads();
  }
  static constexpr int kMostStages = 1;  // what `stages` is for tma: as many as fit are used
  static constexpr int kTileN = 64;      // what tile_n is for bodies that do not look at it
  static constexpr int kGroup = 8;       // and group_m

  /// True when threads and accesses share the block's tiles evenly.
  constexpr bool divides(GemmOperands operands = GemmOperands::two_bytes) const {
    if (uses_tma())
      return block_m % tile_m == 0 && tile_n == kTileN && vector == 8 && stages == kMostStages &&
             resident >= 1 && resident <= 3 && (resident == 1 || tma().consumers == 1) &&
             tma(operands).fits() &&
             (body == GemmBody::tma || (tile_m == block_m && !swap && parts == 1 && !later));
    if (cluster != GemmCluster::none || resident != 1 || along_n || swap || parts != 1 || later)
      return false;
    if (body == GemmBody::stream)
      return block_m % 8 == 0 && block_m <= 32 && block_n % 16 == 0 && block_n <= 64 &&
             block_k % (GemmSmallM::kSlice * stages) == 0 && tile_m == block_m &&
             tile_n == kTileN && vector == 8 && group_m == kGroup;
    if (operands == GemmOperands::fp8_scaled && 128 % block_k != 0) return false;
    return !programmatic && block_m % tile_m == 0 && block_n % tile_n == 0 &&
           block_k % vector == 0 &&
           (!by_warp() || (tile_m % 16 == 0 && tile_n % 16 == 0 && block_k % 16 == 0)) &&
           (body != GemmBody::shift || (stages > 1 && vector == 8 && threads() % block_k == 0)) &&
           (body != GemmBody::wgmma || (tile_m % 64 == 0 && block_k == 64 && vector == 8 &&
                                        (tile_n == 64 || tile_n == 128 || tile_n == 256)));
  }

  /// Whether the body, and the tile, can be used with operands that lie so.
  constexpr bool takes(GemmTranspose op) const {
    if (uses_tma())
      return swap ? tma().copies(b_across(op), a_across(op))
                  : tma().copies(a_across(op), b_across(op));
    return op == GemmTranspose::nt || body == GemmBody::simt || body == GemmBody::mma;
  }

  /// Elements from one row of a slice to the next: padded by one access, so that the same column of
  /// neighbouring rows lies in different banks. wgmma wants them swizzled instead.
  constexpr int row_stride() const { return body == GemmBody::wgmma ? block_k : block_k + vector; }
  /// Where an element of a slice lies. Swizzled: accesses change places within each row of 128
  /// bytes, otherwise in each of eight rows.
  constexpr int place(int row, int column) const {
    return row * row_stride() +
           (body == GemmBody::wgmma ? ((column / 8) ^ (row % 8)) * 8 + column % 8 : column);
  }
  /// Slices that are being copied while one is multiplied. wgmma still reads the one before it.
  constexpr int ahead() const { return body == GemmBody::wgmma ? stages - 2 : stages - 1; }
  /// Elements of one operand in a slice. If it lies across, mma keeps block_k rows along m or n,
  /// padded, and simt transposes it.
  constexpr int operand_elements(int rows, bool across) const {
    return across && body == GemmBody::mma ? block_k * (rows + vector) : rows * row_stride();
  }
  constexpr int stage_elements(GemmTranspose op) const {
    return operand_elements(block_m, a_across(op)) + operand_elements(block_n, b_across(op));
  }
  constexpr unsigned shared_bytes(unsigned element_bytes, GemmTranspose op,
                                  GemmOperands operands) const {
    if (uses_tma()) return tma(operands).shared_bytes();
    if (body == GemmBody::stream) return small_m().shared_bytes();
    // Copies of a row to be shifted have one access more than its slice, as padded rows do.
    const int buffers = body == GemmBody::shift ? stages + 1 : stages;
    return static_cast<unsigned>(buffers * stage_elements(op)) * element_bytes;
  }

  constexpr unsigned tiles_m(int m) const {
    return static_cast<unsigned>((static_cast<long long>(m) + block_m - 1) / block_m);
  }
  constexpr unsigned tiles_n(int n) const {
    return static_cast<unsigned>((static_cast<long long>(n) + block_n - 1) / block_n);
  }
  /// Blocks. More than fit an unsigned are as many as do, which is more than any device takes.
  constexpr unsigned grid(const GemmProblem& p, int multiprocessors, int batch = 1) const {
    if (uses_tma()) {
      const GemmTma config = tma();
      const int clusters = multiprocessors * resident / config.cluster();
      return config.grid(p.m, p.n, clusters > 0 ? clusters : 1, batch);
    }
    const unsigned long long tiles = body == GemmBody::stream ? (p.m == 0 ? 0 : small_m().grid(p.n))
                                                              : 1ull * tiles_m(p.m) * tiles_n(p.n);
    const unsigned long long blocks = tiles > ~0u ? ~0u : tiles * static_cast<unsigned>(batch);
    return blocks > ~0u ? ~0u : static_cast<unsigned>(blocks);
  }
};

}  // namespace kiln::templates

KILN_CONFIG(kiln::templates::Gemm, body, block_m, block_n, block_k, stages, tile_m, tile_n, vector,
            group_m, cluster, resident, along_n, swap, parts, later, programmatic)

#if !defined(KILN_DEVICE_PASS)
#include "gemm_kernel.hpp"
#endif
