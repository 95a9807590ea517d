// What the GEMMs of several ranks share: gemm_all_gather.hpp and gemm_reduce_scatter.hpp.
//
// Ranks have symmetric memory (kiln/symmetric.hpp) with kPeerGemmFlags flags or more. One operation
// at a time uses it, of any sizes that fit; two on two streams have two of them. Operations can be
// captured, because ranks count them themselves, in device memory.
//
// The ranks' kernels wait for each other: all ranks launch the same operations in the same order. A
// rank that gives up (SymmetricMemory::within) ends the others' waits; what C holds then has no
// meaning, and reset() makes the memory usable again. Negative sizes, a k above kMostDepth, memory
// that is too small, and more than 2^31 - 1 rows of all ranks are a UserError. For that, m is first
// rounded up to its bucket (by up to 25 % above 32).
#pragma once

#include "../gemm.hpp"
#include "kiln/peers.cuh"

namespace kiln::templates {

/// A rank's rows go to another rank in at most this many pieces. Each piece has a flag, and a
/// counter of the warps that have sent their part of it, or left it to be sent. Two more are for
/// operations and for blocks.
inline constexpr int kPeerGemmChunks = 8;
inline constexpr unsigned kPeerGemmFlags = 2 + kPeerGemmChunks;

/// The largest box that a warp sends of its sums.
inline constexpr int kPeerBoxRows = 16, kPeerBoxColumns = 64;

/// `m`: rows of each rank.
struct PeerGemmProblem {
  int m, n, k, ranks;
};

/// The GEMM's fields (gemm.hpp) that matter, and how it and the communication go together.
struct PeerGemm {
  GemmBody body;
  int block_m, block_n, block_k, stages, tile_m, tile_n, vector, group_m;
  GemmCluster cluster;
  bool along_n;
  bool overlap;  // one launch communicates while it multiplies, else there are two
  int chunks;    // in which rows or columns are sent, a divisor of kPeerGemmChunks
  int senders;   // blocks that communicate while others multiply, whole clusters: each operation
                 // says what they do, and which warps do it where there are none
  bool late;     // when they have sent they multiply the last tiles, else none

  constexpr Gemm gemm() const {
    return {.body = body,
            .block_m = block_m,
            .block_n = block_n,
            .block_k = block_k,
            .stages = stages,
            .tile_m = tile_m,
            .tile_n = tile_n,
            .vector = vector,
            .group_m = group_m,
            .cluster = cluster,
            .along_n = along_n};
  }
  static constexpr PeerGemm of(const Gemm& c, bool overlap, int chunks, int senders = 0,
                               bool late = false) {
    return {c.body,    c.block_m, c.block_n, c.block_k, c.stages, c.tile_m, c.tile_n, c.vector,
            c.group_m, c.cluster, c.along_n, overlap,   chunks,   senders,  late};
  }

  static constexpr int kCopyThreads = 256;  // of a block that only communicates
  /// Whether the GEMM's operands come through tensor maps.
  constexpr bool maps() const { return overlap || gemm().uses_tma(); }
  /// Rows of a cluster's tile.
  constexpr int tile_rows() const { return gemm().tma().block_m * gemm().tma().cluster_m; }
  /// Tiles of a chunk, one below the other.
  constexpr int chunk_tiles(int m) const {
    const int tiles = (m + tile_rows() - 1) / tile_rows();
    return (tiles + chunks - 1) / chunks;
  }
  constexpr int chunk_rows(int m) const { return overlap ? chunk_tiles(m) * tile_rows() : m; }
};

/// The number of last tiles that `senders` clusters compute when they have sent (late). For these
/// the other `clusters` would need one round more than if none had to send.
constexpr unsigned late_tiles(unsigned tiles, unsigned clusters, unsigned senders) {
  const unsigned rounds = (tiles + clusters + senders - 1) / (clusters + senders);
  return tiles > rounds * clusters ? tiles - rounds * clusters : 0;
}

/// The shared memory through which a block sends: pieces, and a barrier for each.
struct SendRing {
  int pieces, piece_bytes;
  constexpr int data_bytes() const { return pieces * piece_bytes; }
  constexpr int barrier_bytes() const { return pieces * 8; }
  constexpr int bytes() const { return data_bytes() + barrier_bytes(); }
};
/// That of a block that does nothing else meanwhile.
inline constexpr SendRing kSendersRing{8, 8192};

/// Element i of a rank's arrays as tunings have them, on the host and on devices: no rank's are
/// another one's. Exact in all types.
constexpr float element_of_rank(int rank, unsigned i) {
  const unsigned mixed = (i + 1) * 2654435761u ^ (static_cast<unsigned>(rank) + 1) * 2246822519u;
  return static_cast<float>(mixed >> 23) / 256 - 1;
}

/// The rows of all ranks, as one matrix.
constexpr GemmProblem all_ranks(const PeerGemmProblem& p) { return {p.m * p.ranks, p.n, p.k}; }
/// The same as a batch per rank.
constexpr GemmShape<true> by_rank(const PeerGemmProblem& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .ldc = p.n,
          .lda = p.k,
          .ldb = p.k,
          .batch = p.ranks,
          .stride_c = GemmStride{p.m} * p.n,
          .stride_a = GemmStride{p.m} * p.k,
          .stride_b = 0};
}

/// A rank's rows of the product, as a batch for each rank's part of k.
constexpr GemmShape<true> by_part(const PeerGemmProblem& p) {
  GemmShape<true> parts = by_rank(p);
  parts.stride_b = GemmStride{p.n} * p.k;
  return parts;
}
/// The references' workspace (gemm_peers_reference.cuh) begins with [ranks][m][k] of A. Where a
/// reduce-scatter has what is behind it: [ranks][n][k] of B, and [ranks][m][n] of sums.
struct ReferenceParts {
  long long a, b, sums;  // elements, in multiples of 256 bytes
  constexpr explicit ReferenceParts(const PeerGemmProblem& p)
      : a(whole(p.m, p.k, p.ranks)), b(whole(p.n, p.k, p.ranks)), sums(whole(p.m, p.n, p.ranks)) {}
  static constexpr long long whole(long long rows, long long columns, long long parts) {
    return (rows * columns * parts + 127) / 128 * 128;
  }
};

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::PeerGemmProblem, m, n, k, ranks)
KILN_CONFIG(kiln::templates::PeerGemm, body, block_m, block_n, block_k, stages, tile_m, tile_n,
            vector, group_m, cluster, along_n, overlap, chunks, senders, late)
