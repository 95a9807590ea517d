// Host half of gemm_experts_gather.hpp: launches, maps, and the tokens that tunings use.
#include "templates/gemm/experts/gemm_experts_gather.hpp"

#include <algorithm>
#include <span>

#include "templates/gemm/experts/gemm_experts_host.hpp"

namespace kiln::templates {

namespace {

template <class T>
std::vector<T> tokens_of_rank(int rank, const ExpertsProblem& p) {
  return elements_of_rank<T>(rank, static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.k));
}

/// Bytes that a rank sends to others.
template <class T>
double sent_bytes(const ExpertsProblem& p) {
  return 1.0 * sizeof(T) * p.m * p.top * p.k * (p.ranks - 1);
}

template <class T>
std::vector<PeerGemm> gather_configs(const ExpertsProblem& p, const DeviceLimits& d) {
  return experts_configs<T>(p, d, [&](PeerGemm c, std::vector<PeerGemm>& configs) {
    const auto cluster = static_cast<unsigned>(c.gemm().tma().cluster());
    const auto all = static_cast<unsigned>(d.usable_multiprocessors()) / cluster;
    for (const int senders : {8, 16}) {
      const unsigned sending = static_cast<unsigned>(senders) / cluster;
      c.senders = senders;
      c.chunks = 8;
      c.late = sending < all && late_tiles(expected_tiles(c, p), all - sending, sending) > 0;
      configs.push_back(c);
    }
  });
}

template <class T>
double gather_cost(const PeerGemm& c, const ExpertsProblem& p, const DeviceLimits& d) {
  const double multiplying = grouped_cost<T>(c.gemm(), expert_rows(p), d);
  if (!c.overlap) return multiplying + sent_bytes<T>(p) / kLinkBytesPerSecond + kMeetingSeconds;
  const double sending = sent_bytes<T>(p) / senders_bytes_per_second(c);
  const double share = 1 - 1.0 * c.senders / std::max(1, d.usable_multiprocessors());
  return std::max(multiplying / (c.late ? 1 : std::max(.1, share)), sending) + kMeetingSeconds / 2;
}

template <class T>
auto gather_reference() {
  auto kernel = peer_reference<T, ExpertsGatherKernel<T>>(
      "gemm/experts/gemm_experts_reference.cuh", "experts_gather_reference",
      reference_values<OfSize<T>, ExpertsProblem>().where(
          "the GEMM can compute the rows of all experts",
          [](const Gemm& c, const ExpertsProblem& p, const DeviceLimits& d) {
            return is_a_grouped_gemm<OfSize<T>>(c, expert_rows(p), d);
          }));
  kernel.launch = [](const Gemm&, const ExpertsProblem& p, const DeviceLimits& d) {
    return reference_launch(1.0 * p.rows() * p.k, d);
  };
  kernel.workspace = {.size = [](const Gemm&, const ExpertsProblem& p, const DeviceLimits&) {
    return WorkspaceSize{.bytes = sizeof(T) * static_cast<std::size_t>(p.rows()) *
                                  static_cast<std::size_t>(p.k)};
  }};
  kernel.steps = {{.entry = "kiln::templates::experts_gather_reference_multiply",
                   .launch = [](const Gemm& c, const ExpertsProblem& p, const DeviceLimits& d) {
                     return grouped_launch<OfSize<T>>(c, expert_rows(p), d);
                   }}};
  return kernel;
}

}  // namespace

template <class T>
std::size_t expert_gather_bytes(int m, int k, int top, int ranks) {
  check_experts({m, 0, k, 0, top, ranks});
  return std::max<std::size_t>(
      1, sizeof(T) * static_cast<std::size_t>(row_bucket(m)) * static_cast<std::size_t>(top) *
             static_cast<std::size_t>(ranks) * static_cast<std::size_t>(k));
}

template <class T>
ExpertsGatherKernel<T> experts_gather_kernel(const SymmetricMemory& memory) {
  auto kernel = experts_base<T, ExpertsGatherKernel<T>>(memory, gather_reference<T>());
  kernel.space =
      experts_space<OfSize<T>>()
          .where("whole clusters send, with the memory of their stages",
                 [](const PeerGemm& c, const ExpertsProblem&, const DeviceLimits&) {
                   return !c.overlap ||
                          (c.senders > 0 && c.senders % c.gemm().tma().cluster() == 0 &&
                           expert_gathering_gemm(c).buffer_bytes() >= ExpertRing::kDataBytes);
                 })
          .checked();
  kernel.name = "experts_gather";
  kernel.source = {.file = templates_dir() / "gemm/experts/gemm_experts_gather.cuh"};
  kernel.entry = "kiln::templates::gemm_experts_gather";
  kernel.configs = gather_configs<OfSize<T>>;
  kernel.launch = [](const PeerGemm& c, const ExpertsProblem& p, const DeviceLimits& d) {
    if (c.overlap) return overlapping_experts<OfSize<T>>(c, p, expert_gathering_bytes(c), d);
    // The launch has enough threads to copy the rows of all ranks.
    return communicating_launch({p.rows(), p.n, p.k, p.ranks}, 1.0 * sizeof(T) * p.rows() * p.k, d);
  };
  kernel.maps = experts_maps<T>(3, 2);
  kernel.steps = {{.entry = "kiln::templates::gemm_experts_gather_multiply",
                   .launch =
                       [](const PeerGemm& c, const ExpertsProblem& p, const DeviceLimits& d) {
                         return grouped_launch<OfSize<T>>(c.gemm(), expert_rows(p), d);
                       },
                   .only_if = [](const PeerGemm& c) { return !c.overlap; }}};
  kernel.problem = [](T*, const T*, const T*, const T*, const int*, const int*, const Peers*, int m,
                      int n, int k, int groups, int top,
                      int ranks) { return ExpertsProblem{m, n, k, groups, top, ranks}; };
  kernel.relations = {{7, "m"}, {8, "n"}, {9, "k"}, {10, "groups"}, {11, "top"}, {12, "ranks"}};
  kernel.workload = [&memory](const ExpertsProblem& p, Workload& w) {
    check_tuning(memory, p, expert_gather_bytes<T>(p.m, p.k, p.top, p.ranks));
    const auto n = static_cast<std::size_t>(p.n), k = static_cast<std::size_t>(p.k);
    const std::vector<T> own = tokens_of_rank<T>(memory.rank(), p);
    const DrawnExperts drawn = drawn_experts(p, w.draw());
    w.output<T>(drawn.used * n);  // what lies behind is not written
    w.input(std::span<const T>(own));
    w.template input<T>(static_cast<std::size_t>(p.groups) * n * k).address(memory.data());
    w.input(std::span<const int>(drawn.tokens)).input(std::span<const int>(drawn.ends));
    w.address(memory.peers()).scalar(p.m).scalar(p.n).scalar(p.k);
    w.scalar(p.groups).scalar(p.top).scalar(p.ranks);
  };
  kernel.reference = [](T* c, const T*, const T* b, const T*, const int* tokens, const int* ends,
                        const Peers*, int m, int n, int k, int groups, int top, int ranks) {
    const ExpertsProblem p{m, n, k, groups, top, ranks};
    const auto wide = static_cast<std::size_t>(k);
    std::vector<T> rows(static_cast<std::size_t>(p.rows()) * wide);
    for (int r = 0; r < ranks; ++r) {
      const std::vector<T> its = tokens_of_rank<T>(r, p);
      for (int i = 0; i < p.rows(); ++i)
        if (tokens[i] >= 0 && tokens[i] / m == r)
          std::copy_n(its.begin() + std::ptrdiff_t{tokens[i] - r * m} * k, k,
                      rows.begin() + std::ptrdiff_t{i} * k);
    }
    grouped_sums<T>(expert_rows(p), rows.data(), b, ends,
                    [&](float sum, GemmStride element) { c[element] = T(sum); });
  };
  kernel.cost = gather_cost<OfSize<T>>;
  return kernel;
}

#define KILN_EXPERTS(T)                                                          \
  template ExpertsGatherKernel<T> experts_gather_kernel(const SymmetricMemory&); \
  template std::size_t expert_gather_bytes<T>(int, int, int, int);
KILN_EXPERTS(float)
KILN_EXPERTS(float16)
KILN_EXPERTS(bfloat16)
#undef KILN_EXPERTS

}  // namespace kiln::templates
