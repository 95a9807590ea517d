// GEMMs of the experts of a mixture, whose weights are divided among ranks along the experts' inner
// dimension: gemm_experts_gather.hpp brings every token to its experts and multiplies;
// gemm_experts_combine.hpp multiplies, adds what a token's experts have computed, and brings it
// back. Between the two lies what the layer does with each row by itself, as an activation.
//
// Each rank has m tokens, each of which goes to `top` experts. Tokens count over all ranks: rank
// r's are r * m to r * m + m - 1. The rows that experts compute, ranks * m * top of them, follow
// each other expert by expert, as gemm_grouped.hpp has groups. Which expert gets which token is in
// device memory, the same on all ranks:
//
//   ends    [groups]           the row behind each expert's last
//   tokens  [ranks * m * top]  of each row
//   places  [ranks * m][top]   the row of each of a token's experts
//
// sort_by_expert.hpp writes them of what a router has chosen for all ranks' tokens.
//
// A place that is no row stands for an expert that does not count (dropped); a token that is none,
// for a row that is nobody's. Rows from the last end on belong to no expert, and no place may name
// one of them.
//
// Symmetric memory has kExpertFlags flags or more, and is used as gemm_peers.hpp says. Its GEMMs
// may use the same memory, in turns.
#pragma once

#include "../grouped/gemm_grouped.hpp"
#include "../peers/gemm_peers.hpp"

namespace kiln::templates {

/// As kPeerGemmChunks.
inline constexpr int kExpertChunks = 32;
inline constexpr unsigned kExpertFlags = 2 + kExpertChunks;

/// `m`: tokens of each rank. Gathering, k is the model's dimension and n the rank's part of the
/// experts'; combining, the other way round.
struct ExpertsProblem {
  int m, n, k, groups, top, ranks;
  constexpr int rows() const { return m * top * ranks; }
};

/// The rows of all experts, as groups.
constexpr GroupedProblem expert_rows(const ExpertsProblem& p) {
  return {p.rows(), p.n, p.k, p.groups};
}
constexpr GemmShape<true> experts_shape(const ExpertsProblem& p) {
  return grouped_shape(p.rows(), p.n, p.k, p.groups, false);
}

/// The products of all ranks, each with its own A and B, as groups of one: what the references
/// (gemm_experts_reference.cuh) compute.
constexpr GroupedProblem all_products(const ExpertsProblem& p) {
  return {p.rows() * p.ranks, p.n, p.k, p.groups * p.ranks};
}
/// Their workspace: A, B and the products of all ranks, and the ends of their groups.
struct ExpertsReferenceParts {
  long long a, b, products;  // elements, in multiples of 256 bytes
  constexpr explicit ExpertsReferenceParts(const ExpertsProblem& p)
      : a(ReferenceParts::whole(p.rows(), p.k, p.ranks)),
        b(ReferenceParts::whole(1LL * p.groups * p.n, p.k, p.ranks)),
        products(ReferenceParts::whole(p.rows(), p.n, p.ranks)) {}
};

/// The shared memory of each warp that sends rows, and the number of such warps in a block.
struct ExpertRing {
  static constexpr int kPieces = 8, kPieceBytes = 4096, kWarps = 4;
  static constexpr int kDataBytes = kWarps * kPieces * kPieceBytes;
  /// A barrier for each piece, and one for each chunk, which all of the block's warps send.
  static constexpr int kBarrierBytes = (kWarps * kPieces + kExpertChunks) * 8;
};
/// The GEMM of a launch that gathers meanwhile. Blocks that send have the memory of its stages.
constexpr GemmTma expert_gathering_gemm(const PeerGemm& c) {
  return c.gemm().tma().with_most_stages(1, ExpertRing::kBarrierBytes);
}
constexpr unsigned expert_gathering_bytes(const PeerGemm& c) {
  return expert_gathering_gemm(c).shared_bytes() + ExpertRing::kBarrierBytes;
}

/// Gathering: rows of a chunk.
constexpr int expert_chunk_rows(const PeerGemm& c, const ExpertsProblem& p) {
  const int rows = (p.rows() + c.chunks - 1) / c.chunks;
  return rows > 1 ? rows : 1;
}
/// Combining: columns of a chunk, whole tiles of clusters.
constexpr int expert_chunk_columns(const PeerGemm& c, const ExpertsProblem& p) {
  const int wide = c.gemm().tma().block_n * c.gemm().tma().cluster_n;
  return ((p.n + wide - 1) / wide + c.chunks - 1) / c.chunks * wide;
}

}  // namespace kiln::templates

KILN_PROBLEM(kiln::templates::ExpertsProblem, m, n, k, groups, top, ranks)
