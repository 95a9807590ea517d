// Host half of gemm_reduce_scatter.hpp: launches, maps, and the data that tunings use.
#include "templates/gemm/peers/gemm_reduce_scatter.hpp"

#include <span>

#include "kiln/paths.hpp"
#include "templates/gemm/peers/gemm_peers_host.hpp"

namespace kiln::templates {

namespace {

/// A and B of a rank as tunings have them.
template <class T>
std::vector<T> a_of_rank(int rank, const PeerGemmProblem& p) {
  return elements_of_rank<T>(rank, static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.k) *
                                       static_cast<std::size_t>(p.ranks));
}
template <class T>
std::vector<T> b_of_rank(int rank, const PeerGemmProblem& p) {
  return elements_of_rank<T>(rank + p.ranks,
                             static_cast<std::size_t>(p.n) * static_cast<std::size_t>(p.k));
}

template <class T>
double scattered_bytes(const PeerGemmProblem& p) {
  return 1.0 * sizeof(T) * p.m * p.n * (p.ranks - 1);
}

/// Rounds after which blocks that only send have sent all: each chunk waits for its tiles.
double sent_after(const PeerGemm& c, const PeerGemmProblem& p, const SenderRounds& r) {
  const double others = r.rest * (p.ranks - 1) / p.ranks;
  return std::max(others + r.sending / c.chunks, others / c.chunks + r.sending);
}

template <class T>
std::vector<PeerGemm> reduce_scatter_configs(const PeerGemmProblem& p, const DeviceLimits& d) {
  return peer_gemm_configs<T>(p, d, [&](PeerGemm c, std::vector<PeerGemm>& configs) {
    for (const int senders : {4, 8}) {
      if (p.ranks == 1) break;
      c.senders = senders;
      const SenderRounds r = sender_rounds<T>(c, p, scattered_bytes<T>(p), d);
      c.late = r.late > 0 && sent_after(c, p, r) + r.late <= r.all + .5;
      configs.push_back(c);
    }
  });
}

template <class T>
double reduce_scatter_cost(const PeerGemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
  const double bytes = scattered_bytes<T>(p), multiplying = peer_multiplying_cost<T>(c, p, d);
  if (c.senders == 0)
    return peer_gemm_cost(c, p, (c.overlap ? kOverlapping : 1) * multiplying,
                          bytes / kLinkBytesPerSecond);
  const SenderRounds r = sender_rounds<T>(c, p, bytes, d);
  // A rank's own tiles come behind what the others send.
  const double own = r.rest / p.ranks / c.chunks, sent = sent_after(c, p, r);
  const double rounds = c.late ? std::max(sent + r.late, r.all) : std::max(sent + own, r.rest);
  return rounds / std::max(1.0, r.all) * multiplying + kMeetingSeconds / 2;
}

template <class T>
std::vector<TypedMapRule<PeerGemm, PeerGemmProblem>> reduce_scatter_maps() {
  using C = const PeerGemm&;
  using P = const PeerGemmProblem&;
  if constexpr (sizeof(T) > 2) {
    return {};
  } else {
    constexpr auto maps = [](C c) { return c.maps(); };
    return {{.argument = 1,
             .map =
                 [](C c, P p) {
                   return c.overlap ? a_map<T, kPeerOp>(c.gemm(), by_rank(p))
                                    : a_map<T, kPeerOp>(c.gemm(), all_rows(p));
                 },
             .only_if = maps},
            {.argument = 2,
             .map =
                 [](C c, P p) {
                   return c.overlap ? b_map<T, kPeerOp>(c.gemm(), by_rank(p))
                                    : b_map<T, kPeerOp>(c.gemm(), all_rows(p));
                 },
             .only_if = maps},
            {.argument = 3,
             .map = [](C c, P p) { return c_map<T>(c.gemm().tma(), all_rows(p)); },
             .only_if = [](C c) { return c.maps() && !c.overlap; }}};
  }
}

template <class T>
auto reduce_scatter_reference() {
  auto kernel = peer_reference<T, ReduceScatterGemmKernel<T>>(
      "gemm/peers/gemm_peers_reference.cuh", "reduce_scatter_reference",
      peer_gemm_reference_space<OfSize<T>>());
  kernel.launch = [](const Gemm&, const PeerGemmProblem& p, const DeviceLimits& d) {
    return reference_launch(1.0 * (p.m + p.n) * p.k, d);
  };
  kernel.workspace = {.size = [](const Gemm&, const PeerGemmProblem& p, const DeviceLimits&) {
    const ReferenceParts parts(p);
    return WorkspaceSize{.bytes =
                             sizeof(T) * static_cast<std::size_t>(parts.a + parts.b + parts.sums)};
  }};
  kernel.steps = {{.entry = "kiln::templates::reduce_scatter_reference_multiply",
                   .launch =
                       [](const Gemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
                         return gemm_launch<OfSize<T>>(c, kPeerOp, by_part(p), d);
                       }},
                  {.entry = "kiln::templates::reduce_scatter_reference_add",
                   .launch = [](const Gemm&, const PeerGemmProblem& p, const DeviceLimits& d) {
                     return reference_launch(1.0 * p.m * p.n, d);
                   }}};
  return kernel;
}

}  // namespace

template <class T>
std::size_t reduce_scatter_bytes(int m, int n, int ranks) {
  check_peers({m, n, 0, ranks});
  // Of others no launch does all.
  const int parts = sizeof(T) == 2 ? scatter_parts(ranks) : ranks;
  return sizeof(T) * peer_gemm_elements(m, n, parts, kPeerBoxRows, kPeerBoxColumns);
}

template <class T>
ReduceScatterGemmKernel<T> reduce_scatter_gemm_kernel(const SymmetricMemory& memory) {
  auto kernel =
      peer_gemm_base<T, ReduceScatterGemmKernel<T>>(memory, reduce_scatter_reference<T>());
  kernel.space = peer_gemm_space<OfSize<T>>()
                     .where("two stages and whole tiles that are sent fit into shared memory",
                            [](const PeerGemm& c, const PeerGemmProblem&, const DeviceLimits&) {
                              return !c.overlap || scatter_shared_bytes(c) <= 227u * 1024u;
                            })
                     .checked();
  kernel.name = "reduce_scatter_gemm";
  kernel.source = {.file = templates_dir() / "gemm/peers/gemm_reduce_scatter.cuh"};
  kernel.entry = "kiln::templates::gemm_reduce_scatter";
  kernel.launch = [](const PeerGemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
    return c.overlap ? overlapping_launch<OfSize<T>>(c, p, scatter_shared_bytes(c), d)
                     : gemm_launch<OfSize<T>>(c.gemm(), kPeerOp, all_rows(p), d);
  };
  kernel.maps = reduce_scatter_maps<T>();
  kernel.steps = {{.entry = "kiln::templates::gemm_reduce_scatter_add",
                   .launch =
                       [](const PeerGemm&, const PeerGemmProblem& p, const DeviceLimits& d) {
                         return communicating_launch(
                             p, static_cast<double>(sizeof(T)) * p.m * p.n * p.ranks, d);
                       },
                   .only_if = [](const PeerGemm& c) { return !c.overlap; }}};
  kernel.problem = [](T*, const T*, const T*, T*, const Peers*, int m, int n, int k, int ranks) {
    return PeerGemmProblem{m, n, k, ranks};
  };
  kernel.relations = {{5, "m"}, {6, "n"}, {7, "k"}, {8, "ranks"}};
  kernel.workload = [&memory](const PeerGemmProblem& p, Workload& w) {
    check_tuning(memory, p, reduce_scatter_bytes<T>(p.m, p.n, p.ranks));
    const std::vector<T> a = a_of_rank<T>(memory.rank(), p), b = b_of_rank<T>(memory.rank(), p);
    w.output<T>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    w.input(std::span<const T>(a)).input(std::span<const T>(b));
    w.address(memory.data()).address(memory.peers());
    w.scalar(p.m).scalar(p.n).scalar(p.k).scalar(p.ranks);
  };
  kernel.reference = [&memory](T* c, const T*, const T*, T*, const Peers*, int m, int n, int k,
                               int ranks) {
    const PeerGemmProblem p{m, n, k, ranks};
    GemmShape<true> rows = by_rank(p);
    rows.batch = 1;
    const auto first = static_cast<std::ptrdiff_t>(memory.rank()) * m * k;
    std::vector<float> total(static_cast<std::size_t>(m) * static_cast<std::size_t>(n));
    for (int r = 0; r < ranks; ++r)
      gemm_sums<T>(kPeerOp, rows, a_of_rank<T>(r, p).data() + first, b_of_rank<T>(r, p).data(),
                   [&](const float* sums, int, int row, int column, int count) {
                     float* const to = total.data() + GemmStride{row} * n + column;
                     for (int j = 0; j < count; ++j) to[j] += static_cast<float>(T(sums[j]));
                   });
    for (std::size_t i = 0; i < total.size(); ++i) c[i] = T(total[i]);
  };
  // Sums of ranks are rounded before they are added, and may cancel.
  kernel.tolerance.absolute *= 4;
  kernel.configs = reduce_scatter_configs<OfSize<T>>;
  kernel.cost = [](const PeerGemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
    return reduce_scatter_cost<OfSize<T>>(c, p, d);
  };
  kernel.numerics = [](const PeerGemm& c, const PeerGemmProblem&) {
    return order_of_sums(c.gemm());
  };
  return kernel;
}

template ReduceScatterGemmKernel<float> reduce_scatter_gemm_kernel(const SymmetricMemory&);
template ReduceScatterGemmKernel<float16> reduce_scatter_gemm_kernel(const SymmetricMemory&);
template ReduceScatterGemmKernel<bfloat16> reduce_scatter_gemm_kernel(const SymmetricMemory&);

template std::size_t reduce_scatter_bytes<float>(int, int, int);
template std::size_t reduce_scatter_bytes<float16>(int, int, int);
template std::size_t reduce_scatter_bytes<bfloat16>(int, int, int);

}  // namespace kiln::templates
