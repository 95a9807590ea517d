// Host half of gemm_all_gather.hpp: launches, maps, and the rows that tunings use.
#include "templates/gemm/peers/gemm_all_gather.hpp"

#include <algorithm>
#include <span>

#include "kiln/paths.hpp"
#include "templates/gemm/peers/gemm_peers_host.hpp"

namespace kiln::templates {

namespace {

template <class T>
std::vector<T> rows_of_rank(int rank, const PeerGemmProblem& p) {
  return elements_of_rank<T>(rank, static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.k));
}

template <class T>
double gathered_bytes(const PeerGemmProblem& p) {
  return 1.0 * sizeof(T) * p.m * p.k * (p.ranks - 1);
}

template <class T>
std::vector<PeerGemm> all_gather_configs(const PeerGemmProblem& p, const DeviceLimits& d) {
  return peer_gemm_configs<T>(p, d, [&](PeerGemm c, std::vector<PeerGemm>& configs) {
    for (const int senders : {4, 8, 16}) {
      if (p.ranks == 1) break;
      c.senders = senders;
      const SenderRounds r = sender_rounds<T>(c, p, gathered_bytes<T>(p), d);
      // If sending takes longer than that, the others would wait for blocks that are late.
      c.late = r.late > 0 && r.sending + r.late <= r.all + .5;
      configs.push_back(c);
    }
  });
}

template <class T>
double all_gather_cost(const PeerGemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
  const double bytes = gathered_bytes<T>(p);
  double multiplying = peer_multiplying_cost<T>(c, p, d);
  if (c.senders > 0) {
    const SenderRounds r = sender_rounds<T>(c, p, gathered_bytes<T>(p), d);
    const double rounds =
        c.late ? std::max(r.sending + r.late, r.all) : std::max(r.sending, r.rest);
    return rounds / std::max(1.0, r.all) * multiplying + kMeetingSeconds / 2;
  }
  constexpr double kHeldUp = .7;  // of the time that blocks send while they multiply
  if (c.overlap) multiplying += kHeldUp * bytes / kLinkBytesPerSecond;
  return peer_gemm_cost(c, p, multiplying, bytes / kLinkBytesPerSecond);
}

template <class T>
std::vector<TypedMapRule<PeerGemm, PeerGemmProblem>> all_gather_maps() {
  using C = const PeerGemm&;
  using P = const PeerGemmProblem&;
  if constexpr (sizeof(T) > 2) {
    return {};
  } else {
    constexpr auto maps = [](C c) { return c.maps(); };
    return {{.argument = 0,
             .map =
                 [](C c, P p) {
                   const GemmTma t = c.gemm().tma();
                   return c.overlap ? c_map<T>(t, by_rank(p)) : c_map<T>(t, all_rows(p));
                 },
             .only_if = maps},
            {.argument = 1,
             .map =
                 [](C c, P p) {
                   GemmShape<true> own = by_rank(p);
                   own.batch = 1;
                   return a_map<T, kPeerOp>(c.gemm(), own);
                 },
             .only_if = [](C c) { return c.overlap; }},
            {.argument = 2,
             .map =
                 [](C c, P p) {
                   return c.overlap ? b_map<T, kPeerOp>(c.gemm(), by_rank(p))
                                    : b_map<T, kPeerOp>(c.gemm(), all_rows(p));
                 },
             .only_if = maps},
            {.argument = 3,
             .map =
                 [](C c, P p) {
                   return c.overlap ? a_map<T, kPeerOp>(c.gemm(), by_rank(p))
                                    : a_map<T, kPeerOp>(c.gemm(), all_rows(p));
                 },
             .only_if = maps}};
  }
}

template <class T>
auto all_gather_reference() {
  auto kernel = peer_reference<T, AllGatherGemmKernel<T>>("gemm/peers/gemm_peers_reference.cuh",
                                                          "all_gather_reference",
                                                          peer_gemm_reference_space<OfSize<T>>());
  kernel.launch = [](const Gemm&, const PeerGemmProblem& p, const DeviceLimits& d) {
    return reference_launch(1.0 * p.m * p.k, d);
  };
  kernel.workspace = {.size = [](const Gemm&, const PeerGemmProblem& p, const DeviceLimits&) {
    return WorkspaceSize{.bytes = sizeof(T) * static_cast<std::size_t>(ReferenceParts(p).a)};
  }};
  kernel.steps = {{.entry = "kiln::templates::all_gather_reference_multiply",
                   .launch = [](const Gemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
                     return gemm_launch<OfSize<T>>(c, kPeerOp, all_rows(p), d);
                   }}};
  return kernel;
}

}  // namespace

template <class T>
std::size_t all_gather_bytes(int m, int k, int ranks) {
  check_peers({m, 0, k, ranks});
  return sizeof(T) * peer_gemm_elements(m, k, ranks);
}

template <class T>
AllGatherGemmKernel<T> all_gather_gemm_kernel(const SymmetricMemory& memory) {
  auto kernel = peer_gemm_base<T, AllGatherGemmKernel<T>>(memory, all_gather_reference<T>());
  kernel.name = "all_gather_gemm";
  kernel.source = {.file = templates_dir() / "gemm/peers/gemm_all_gather.cuh"};
  kernel.entry = "kiln::templates::gemm_all_gather";
  kernel.launch = [](const PeerGemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
    return c.overlap
               ? overlapping_launch<OfSize<T>>(c, p, gathering_shared_bytes(c), d)
               : communicating_launch(p, static_cast<double>(sizeof(T)) * p.m * p.k * p.ranks, d);
  };
  kernel.configs = all_gather_configs<OfSize<T>>;
  kernel.maps = all_gather_maps<T>();
  kernel.steps = {{.entry = "kiln::templates::gemm_all_gather_multiply",
                   .launch =
                       [](const PeerGemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
                         return gemm_launch<OfSize<T>>(c.gemm(), kPeerOp, all_rows(p), d);
                       },
                   .only_if = [](const PeerGemm& c) { return !c.overlap; }}};
  kernel.problem = [](T*, const T* own, const T*, const T*, const T* sent, const Peers*, int m,
                      int n, int k, int ranks) {
    if (own != sent) throw UserError("all_gather_gemm: the rank's rows are given as two arrays");
    return PeerGemmProblem{m, n, k, ranks};
  };
  kernel.relations = {{6, "m"}, {7, "n"}, {8, "k"}, {9, "ranks"}};
  kernel.workload = [&memory](const PeerGemmProblem& p, Workload& w) {
    check_tuning(memory, p, all_gather_bytes<T>(p.m, p.k, p.ranks));
    const auto m = static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.ranks);
    const auto n = static_cast<std::size_t>(p.n), k = static_cast<std::size_t>(p.k);
    const std::vector<T> own = rows_of_rank<T>(memory.rank(), p);
    w.output<T>(m * n).input(std::span<const T>(own)).template input<T>(n * k);
    w.address(memory.data()).input(std::span<const T>(own)).address(memory.peers());
    w.scalar(p.m).scalar(p.n).scalar(p.k).scalar(p.ranks);
  };
  kernel.reference = [](T* c, const T*, const T* b, const T*, const T*, const Peers*, int m, int n,
                        int k, int ranks) {
    const PeerGemmProblem p{m, n, k, ranks};
    GemmShape<true> rows = by_rank(p);
    rows.batch = 1;
    for (int r = 0; r < ranks; ++r)
      gemm_sums<T>(kPeerOp, rows, rows_of_rank<T>(r, p).data(), b,
                   [&](const float* sums, int, int row, int column, int count) {
                     T* const to = c + (GemmStride{r} * m + row) * GemmStride{n} + column;
                     for (int j = 0; j < count; ++j) to[j] = T(sums[j]);
                   });
  };
  kernel.cost = [](const PeerGemm& c, const PeerGemmProblem& p, const DeviceLimits& d) {
    return all_gather_cost<OfSize<T>>(c, p, d);
  };
  kernel.numerics = [](const PeerGemm& c, const PeerGemmProblem&) {
    return order_of_sums(c.gemm());
  };
  return kernel;
}

template AllGatherGemmKernel<float> all_gather_gemm_kernel(const SymmetricMemory&);
template AllGatherGemmKernel<float16> all_gather_gemm_kernel(const SymmetricMemory&);
template AllGatherGemmKernel<bfloat16> all_gather_gemm_kernel(const SymmetricMemory&);

template std::size_t all_gather_bytes<float>(int, int, int);
template std::size_t all_gather_bytes<float16>(int, int, int);
template std::size_t all_gather_bytes<bfloat16>(int, int, int);

}  // namespace kiln::templates
