// Host half of gemm_experts_combine.hpp: launches, maps, and the data that tunings use.
#include "templates/gemm/experts/gemm_experts_combine.hpp"

#include <algorithm>
#include <span>

#include "templates/gemm/experts/gemm_experts_host.hpp"

namespace kiln::templates {

namespace {

/// A and B of a rank as tunings have them.
template <class T>
std::vector<T> a_of_rank(int rank, const ExpertsProblem& p) {
  return elements_of_rank<T>(rank,
                             static_cast<std::size_t>(p.rows()) * static_cast<std::size_t>(p.k));
}
template <class T>
std::vector<T> b_of_rank(int rank, const ExpertsProblem& p) {
  return elements_of_rank<T>(rank + p.ranks, static_cast<std::size_t>(p.groups) *
                                                 static_cast<std::size_t>(p.n) *
                                                 static_cast<std::size_t>(p.k));
}
/// 1/16 to 1, in steps that are exact.
std::vector<float> drawn_weights(const ExpertsProblem& p) {
  std::vector<float> weights(static_cast<std::size_t>(p.rows()));
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = static_cast<float>(i * 7 % 16 + 1) / 16;
  return weights;
}

template <class T>
std::vector<PeerGemm> combine_configs(const ExpertsProblem& p, const DeviceLimits& d) {
  return experts_configs<T>(p, d, [&](PeerGemm c, std::vector<PeerGemm>& configs) {
    configs.push_back(c);
    c.chunks = 4;
    c.senders = 32;
    configs.push_back(c);
  });
}

/// Bytes that adding moves: what experts have computed, and the sums of all tokens.
template <class T>
double added_bytes(const ExpertsProblem& p) {
  return 1.0 * sizeof(T) * p.n * (p.rows() + 2.0 * p.m * p.ranks);
}
template <class T>
double combine_cost(const PeerGemm& c, const ExpertsProblem& p, const DeviceLimits& d) {
  constexpr double kMemory = 2.5e12, kOfAdder = 50e9;  // bytes a second, of all and of a block
  const double multiplying = grouped_cost<T>(c.gemm(), expert_rows(p), d);
  const double sending = 1.0 * sizeof(T) * p.m * p.n * (p.ranks - 1) / kLinkBytesPerSecond;
  const double adding = added_bytes<T>(p) / kMemory;
  if (!c.overlap) return multiplying + adding + sending + 2 * kMeetingSeconds;
  if (c.senders == 0) return multiplying + std::max(adding, sending) + kMeetingSeconds;
  const double share = 1 - 1.0 * c.senders / std::max(1, d.usable_multiprocessors());
  const double beside = std::max(sending, added_bytes<T>(p) / (kOfAdder * c.senders));
  return std::max(multiplying / std::max(.1, share), beside) +
         std::max(adding, sending) / c.chunks + kMeetingSeconds;
}

template <class T>
auto combine_reference() {
  auto kernel = peer_reference<T, ExpertsCombineKernel<T>>(
      "gemm/experts/gemm_experts_reference.cuh", "experts_combine_reference",
      reference_values<OfSize<T>, ExpertsProblem>().where(
          "the GEMM can compute the rows of all experts and ranks",
          [](const Gemm& c, const ExpertsProblem& p, const DeviceLimits& d) {
            return 1.0 * p.rows() * p.ranks < 2147483648.0 &&
                   is_a_grouped_gemm<OfSize<T>>(c, all_products(p), d);
          }));
  kernel.launch = [](const Gemm&, const ExpertsProblem& p, const DeviceLimits& d) {
    return reference_launch((p.rows() + 1.0 * p.groups * p.n) * p.k, d);
  };
  kernel.workspace = {.size = [](const Gemm&, const ExpertsProblem& p, const DeviceLimits&) {
    const ExpertsReferenceParts parts(p);
    return WorkspaceSize{.bytes = sizeof(T) *
                                      static_cast<std::size_t>(parts.a + parts.b + parts.products) +
                                  sizeof(int) * static_cast<std::size_t>(p.groups * p.ranks)};
  }};
  kernel.steps = {{.entry = "kiln::templates::experts_combine_reference_multiply",
                   .launch =
                       [](const Gemm& c, const ExpertsProblem& p, const DeviceLimits& d) {
                         return grouped_launch<OfSize<T>>(c, all_products(p), d);
                       }},
                  {.entry = "kiln::templates::experts_combine_reference_add",
                   .launch = [](const Gemm&, const ExpertsProblem& p, const DeviceLimits& d) {
                     return reference_launch(1.0 * p.m * p.n, d);
                   }}};
  return kernel;
}

}  // namespace

template <class T>
std::size_t expert_combine_bytes(int m, int n, int ranks) {
  check_peers({m, n, 0, ranks});
  return sizeof(T) * peer_gemm_elements(m, n, ranks);
}

template <class T>
ExpertsCombineKernel<T> experts_combine_kernel(const SymmetricMemory& memory) {
  auto kernel = experts_base<T, ExpertsCombineKernel<T>>(memory, combine_reference<T>());
  kernel.space = experts_space<OfSize<T>>()
                     .where("whole clusters add, of several chunks all but the last",
                            [](const PeerGemm& c, const ExpertsProblem&, const DeviceLimits&) {
                              return !c.overlap || ((c.senders > 0) == (c.chunks > 1) &&
                                                    c.senders % c.gemm().tma().cluster() == 0);
                            })
                     .where("chunks have as many tiles of columns each",
                            [](const PeerGemm& c, const ExpertsProblem& p, const DeviceLimits&) {
                              if (!c.overlap) return true;
                              const int wide = expert_chunk_columns(c, p);
                              return wide > 0 && (p.n + wide - 1) / wide == c.chunks &&
                                     (c.chunks == 1 || p.n % wide == 0);
                            })
                     .where("blocks that only add multiply nothing later",
                            [](const PeerGemm& c, const ExpertsProblem&, const DeviceLimits&) {
                              return !c.late;
                            })
                     .checked();
  kernel.name = "experts_combine";
  kernel.source = {.file = templates_dir() / "gemm/experts/gemm_experts_combine.cuh"};
  kernel.entry = "kiln::templates::gemm_experts_combine";
  kernel.configs = combine_configs<OfSize<T>>;
  kernel.launch = [](const PeerGemm& c, const ExpertsProblem& p, const DeviceLimits& d) {
    return c.overlap ? overlapping_experts<OfSize<T>>(c, p, c.gemm().tma().shared_bytes(), d)
                     : grouped_launch<OfSize<T>>(c.gemm(), expert_rows(p), d);
  };
  kernel.maps = experts_maps<T>(1, 2);
  kernel.workspace = {.size = [](const PeerGemm&, const ExpertsProblem& p, const DeviceLimits&) {
    return WorkspaceSize{
        .bytes = sizeof(T) * static_cast<std::size_t>(p.rows()) * static_cast<std::size_t>(p.n),
        .semaphores = kExpertChunks};
  }};
  constexpr auto adds = [](const PeerGemm& c) { return !c.overlap; };
  constexpr auto launch = [](const PeerGemm&, const ExpertsProblem& p, const DeviceLimits& d) {
    return communicating_launch({p.m, p.n, p.k, p.ranks}, added_bytes<OfSize<T>>(p), d);
  };
  kernel.steps = {
      {.entry = "kiln::templates::gemm_experts_combine_send", .launch = launch, .only_if = adds},
      {.entry = "kiln::templates::gemm_experts_combine_add", .launch = launch, .only_if = adds}};
  kernel.problem = [](T*, const T*, const T*, const int*, const int*, const float*, const Peers*,
                      int m, int n, int k, int groups, int top,
                      int ranks) { return ExpertsProblem{m, n, k, groups, top, ranks}; };
  kernel.relations = {{7, "m"}, {8, "n"}, {9, "k"}, {10, "groups"}, {11, "top"}, {12, "ranks"}};
  kernel.workload = [&memory](const ExpertsProblem& p, Workload& w) {
    check_tuning(memory, p, expert_combine_bytes<T>(p.m, p.n, p.ranks));
    const std::vector<T> a = a_of_rank<T>(memory.rank(), p), b = b_of_rank<T>(memory.rank(), p);
    const DrawnExperts drawn = drawn_experts(p, w.draw());
    const std::vector<float> weights = drawn_weights(p);
    w.output<T>(static_cast<std::size_t>(p.m) * static_cast<std::size_t>(p.n));
    w.input(std::span<const T>(a)).input(std::span<const T>(b));
    w.input(std::span<const int>(drawn.ends)).input(std::span<const int>(drawn.places));
    w.input(std::span<const float>(weights)).address(memory.peers());
    w.scalar(p.m).scalar(p.n).scalar(p.k).scalar(p.groups).scalar(p.top).scalar(p.ranks);
  };
  kernel.reference = [&memory](T* c, const T*, const T*, const int* ends, const int* places,
                               const float* weights, const Peers*, int m, int n, int k, int groups,
                               int top, int ranks) {
    const ExpertsProblem p{m, n, k, groups, top, ranks};
    const auto wide = static_cast<std::size_t>(n);
    std::vector<T> products(static_cast<std::size_t>(p.rows()) * wide);
    std::vector<float> total(static_cast<std::size_t>(m) * wide);
    for (int r = 0; r < ranks; ++r) {
      grouped_sums<T>(expert_rows(p), a_of_rank<T>(r, p).data(), b_of_rank<T>(r, p).data(), ends,
                      [&](float sum, GemmStride element) {
                        products[static_cast<std::size_t>(element)] = T(sum);
                      });
      for (std::size_t i = 0; i < total.size(); ++i) {
        const std::size_t token =
            static_cast<std::size_t>(memory.rank()) * static_cast<std::size_t>(m) + i / wide;
        float sum = 0;
        for (int e = 0; e < top; ++e) {
          const std::size_t choice = token * static_cast<std::size_t>(top) + std::size_t(e);
          if (places[choice] >= 0 && places[choice] < p.rows())
            sum += weights[choice] *
                   static_cast<float>(products[std::size_t(places[choice]) * wide + i % wide]);
        }
        total[i] += static_cast<float>(T(sum));
      }
    }
    for (std::size_t i = 0; i < total.size(); ++i) c[i] = T(total[i]);
  };
  // Sums are rounded before they are added, twice, and may cancel.
  kernel.tolerance.absolute *= 8;
  kernel.cost = combine_cost<OfSize<T>>;
  return kernel;
}

#define KILN_EXPERTS(T)                                                            \
  template ExpertsCombineKernel<T> experts_combine_kernel(const SymmetricMemory&); \
  template std::size_t expert_combine_bytes<T>(int, int, int);
KILN_EXPERTS(float)
KILN_EXPERTS(float16)
KILN_EXPERTS(bfloat16)
#undef KILN_EXPERTS

}  // namespace kiln::templates
