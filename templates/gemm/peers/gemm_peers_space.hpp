// The space of the GEMMs of ranks (gemm_peers.hpp).
#pragma once

#include <initializer_list>

#include "templates/gemm/gemm_host.hpp"
#include "templates/gemm/gemm_space.hpp"
#include "templates/gemm/peers/gemm_peers.hpp"
#include "templates/kernels.hpp"

namespace kiln::templates {

inline constexpr auto kPeerOp = GemmTranspose::nt;

inline GemmShape<false> all_rows(const PeerGemmProblem& p) {
  return gemm_shape<kPeerOp>(all_ranks(p));
}

/// Whether the GEMM of a config can compute all rows.
template <class T>
bool is_a_gemm(const Gemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
  static const DynamicSpace gemms = gemm_space<T, kPeerOp, GemmProblem>().dynamic();
  return !gemms.violated(to_values(c), to_values(all_ranks(p)), d);
}

/// The fields' values, with what holds for each operation.
template <class T, class Problem>
constexpr Space<PeerGemm, Problem> peer_gemm_values(std::initializer_list<int> chunks) {
  using S = Space<PeerGemm, Problem>;
  using P = const Problem&;
  using D = const DeviceLimits&;
  constexpr bool kTwoBytes = sizeof(T) == 2;
  constexpr Gemm kDefault = kTwoBytes ? plain_config(GemmBody::mma, 64, 128, 64, 3, 32, 32, 8)
                                      : plain_config(GemmBody::simt, 64, 64, 32, 2, 4, 4, 4);
  S space =
      S{PeerGemm::of(kDefault, false, 1)}
          .default_on(Target::Kind::host, PeerGemm::of(kHostDefault, false, 1))
          .values(&PeerGemm::block_m, {8, 16, 24, 32, 64, 128, 192, 256})
          .values(&PeerGemm::block_n,
                  {16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256})
          .values(&PeerGemm::block_k, {32, 64, 128, 256, 512, 1024})
          .values(&PeerGemm::stages, {1, 2, 3, 4, 5})
          .values(&PeerGemm::group_m, {1, 4, 8, 16})
          .values(&PeerGemm::vector, {4, 8, 16})
          .values(&PeerGemm::tile_m, {1, 2, 4, 8, 16, 32, 64, 128})
          .values(&PeerGemm::tile_n, {1, 2, 4, 8, 16, 32, 64, 128, 256})
          .values(&PeerGemm::cluster, {GemmCluster::none, GemmCluster::two_m, GemmCluster::two_n})
          .values(&PeerGemm::along_n, {false, true})
          .values(&PeerGemm::overlap, {false, true})
          .values(&PeerGemm::chunks, chunks)
          .values(&PeerGemm::senders, {0, 4, 8, 16, 32})  // whole clusters
          .values(&PeerGemm::late, {false, true});
  if constexpr (kTwoBytes)
    space = space.values(&PeerGemm::body, {GemmBody::simt, GemmBody::mma, GemmBody::wgmma,
                                           GemmBody::tma, GemmBody::pingpong});
  else
    space = space.values(&PeerGemm::body, {GemmBody::simt});
  return space
      .where("some blocks communicate while others multiply",
             [](const PeerGemm& c, P, D d) {
               return c.senders == 0 || (c.overlap && 2 * c.senders <= d.usable_multiprocessors());
             })
      .where("only blocks that have sent are late",
             [](const PeerGemm& c, P, D) { return c.senders > 0 || !c.late; })
      .where("rows are sent in pieces only while others are multiplied",
             [](const PeerGemm& c, P, D) { return c.overlap || c.chunks == 1; })
      .where("only bodies fed by tensor maps, with at most 192 sums of a thread, wait for ranks",
             [](const PeerGemm& c, P, D) {
               return !c.overlap || (c.gemm().uses_tma() && c.gemm().tma().held_sums() <= 192);
             });
}

template <class T>
constexpr Space<PeerGemm, PeerGemmProblem> peer_gemm_space() {
  using P = const PeerGemmProblem&;
  using D = const DeviceLimits&;
  return peer_gemm_values<T, PeerGemmProblem>({1, 2, 4, 8})
      .where("the GEMM can compute the rows of all ranks",
             [](const PeerGemm& c, P p, D d) { return is_a_gemm<T>(c.gemm(), p, d); })
      .where("each rank has rows, and they lie at multiples of 16 bytes",
             [](const PeerGemm& c, P p, D) {
               return !c.overlap || (p.m > 0 && p.n % 8 == 0 && by_rank(p).storable(sizeof(T)));
             })
      .where("each chunk has rows",
             [](const PeerGemm& c, P p, D) {
               return !c.overlap ||
                      (c.chunks - 1) * static_cast<long long>(c.chunk_rows(p.m)) < p.m;
             })
      .checked();
}

}  // namespace kiln::templates
