// GEMMs of experts over ranks that are threads: on the host target as programs launch them, and the
// bodies for Hopper, emulated.
#include <cstring>

#include "experts_test.hpp"
#include "kiln/occupancy.hpp"
#include "peer_gemm_host_test.hpp"
#include "repeated_operation.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace kiln::templates;

namespace {

/// Both operations in turns, in one memory.
template <class T>
void check_rounds(const ExpertsProblem& p, Routing routing, int rounds) {
  CAPTURE(p.ranks, p.m, p.n, p.k, p.groups, p.top);
  const ExpertsData<T> data(p, routing);
  Findings findings;
  CHECK(on_peers(
            hosts(p.ranks), expert_bytes<T>(p),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              const ExpertsGather<T> gather(runtime, memory);
              const ExpertsCombine<T> combine(runtime, memory);
              ExpertsRank<T> rank(runtime, memory, data);
              const auto with = [&](const auto& operation) {
                return [&](auto... arguments) { operation({}, arguments..., p); };
              };
              for (int round = 0; round < rounds; ++round) {
                straggle(memory.rank(), round, 2000);
                findings.check(rank.gather(round, deadline_in(120), with(gather)));
                straggle(memory.rank(), round + 1000, 2000);
                findings.check(rank.combine(round, deadline_in(120), with(combine)));
              }
            },
            kExpertFlags) == "");
  CHECK(findings.wrong() == "");
}

}  // namespace

TEST_CASE("tokens of ranks come to their experts, and what those compute comes back",
          "[host][symmetric]") {
  check_rounds<float>({9, 20, 17, 4, 2, 2}, Routing::balanced, 12);
  check_rounds<bfloat16>({16, 24, 64, 5, 3, 3}, Routing::skewed, 12);
  check_rounds<float16>({7, 10, 9, 3, 1, 1}, Routing::balanced, 3);
  check_rounds<float>({6, 8, 16, 40, 2, 2}, Routing::lopsided, 6);
  check_rounds<float>({3, 8, 0, 2, 2, 2}, Routing::balanced, 3);
}

TEST_CASE("GEMMs of experts are tuned by all ranks in step", "[host][symmetric]") {
  const ExpertsProblem p{.m = 8, .n = 24, .k = 40, .groups = 3, .top = 2, .ranks = 2};
  const ExpertsData<float> data(p);
  Findings findings;
  std::vector<std::vector<Values>> winners(2);
  CHECK(on_peers(
            hosts(2), expert_bytes<float>(p),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto communicator) {
              const ExpertsGather<float> gather(runtime, memory);
              const ExpertsCombine<float> combine(runtime, memory);
              TuneOptions options;
              options.max_evaluations = 3;
              options.candidate_seconds = 120;
              const auto tune = [&](const auto& operation) {
                const TuneResult result = operation.tune(p, communicator, options);
                findings.check(result.count(CandidateStatus::measured) >= 1);
                findings.check(result.count(CandidateStatus::wrong_result) == 0);
                winners[static_cast<std::size_t>(memory.rank())].push_back(result.winner().config);
              };
              tune(gather);
              tune(combine);
              ExpertsRank<float> rank(runtime, memory, data);
              for (int round = 0; round < 5; ++round) {
                findings.check(rank.gather(round, deadline_in(120), [&](auto... arguments) {
                  gather({}, arguments..., p);
                }));
                findings.check(rank.combine(round, deadline_in(120), [&](auto... arguments) {
                  combine({}, arguments..., p);
                }));
              }
            },
            kExpertFlags) == "");
  CHECK(findings.wrong() == "");
  CHECK(winners[0] == winners[1]);
}

TEST_CASE("a rank that does not come ends the GEMMs of experts of the others",
          "[host][symmetric]") {
  const ExpertsProblem p{.m = 4, .n = 16, .k = 32, .groups = 3, .top = 2, .ranks = 2};
  const ExpertsData<float> data(p);
  Findings findings;
  CHECK(on_peers(
            hosts(2), expert_bytes<float>(p),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              ExpertsRank<float> rank(runtime, memory, data);
              const ExpertsGather<float> gather(runtime, memory);
              const ExpertsCombine<float> combine(runtime, memory);
              const auto check = [&](const auto& run) {
                findings.check(run(0, deadline_in(120)));
                if (memory.rank() == 0)
                  findings.check_throws<EnvironmentError>([&] { run(1, deadline_in(0.2)); },
                                                          "rank 0 gave up");
                memory.reset();
                for (int round = 2; round < 6; ++round)
                  findings.check(run(round, deadline_in(120)));
              };
              check([&](int round, Deadline deadline) {
                return rank.gather(round, deadline,
                                   [&](auto... arguments) { gather({}, arguments..., p); });
              });
              check([&](int round, Deadline deadline) {
                return rank.combine(round, deadline,
                                    [&](auto... arguments) { combine({}, arguments..., p); });
              });
            },
            kExpertFlags) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("each rank computes what is right for GEMMs of experts alone", "[host][symmetric]") {
  const ExpertsProblem p{.m = 44, .n = 80, .k = 144, .groups = 4, .top = 2, .ranks = 2};
  Findings findings;
  CHECK(on_peers(
            hosts(2), expert_bytes<float>(p),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto ranks) {
              check_reference(runtime, memory, ranks, experts_gather_kernel<bfloat16>(memory), p,
                              findings);
              check_reference(runtime, memory, ranks, experts_combine_kernel<float>(memory), p,
                              findings);
            },
            kExpertFlags) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("tunings of GEMMs of experts draw rows that are nobody's", "[host][symmetric]") {
  const ExpertsProblem p{.m = 44, .n = 8, .k = 8, .groups = 4, .top = 2, .ranks = 1};
  Findings findings;
  CHECK(on_peers(
            hosts(1), expert_bytes<float>(p),
            [&](const Runtime&, SymmetricMemory& memory, auto) {
              const auto drawn = [&](const auto& kernel, std::size_t draw, std::size_t argument) {
                Workload w(1, draw);
                kernel.workload(p, w);
                const auto& bytes = w.arguments()[argument].bytes;
                std::vector<int> values(bytes.size() / sizeof(int));
                std::memcpy(values.data(), bytes.data(), bytes.size());
                return values;
              };
              const auto gather = experts_gather_kernel<float>(memory);
              const auto combine = experts_combine_kernel<float>(memory);
              for (std::size_t draw = 0; draw < 3; ++draw) {
                const auto c = drawn(gather, draw, 0), tokens = drawn(gather, draw, 4),
                           ends = drawn(gather, draw, 5), places = drawn(combine, draw, 4);
                const int used = ends.back(), dropped = p.rows() - used;
                findings.check(dropped == (draw == 2 ? 2 * (44 / 8) : 0));
                findings.check(drawn(combine, draw, 3) == ends);
                findings.check(std::ranges::count(tokens, -1) == dropped);
                findings.check(std::ranges::count(places, -1) == dropped);
                findings.check(c.size() == std::size_t(used * p.n));
                for (std::size_t i = 0; i < places.size(); ++i)
                  findings.check(places[i] < 0 || tokens[std::size_t(places[i])] == int(i) / p.top);
              }
            },
            kExpertFlags) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("in the reference of GEMMs of experts rows that are nobody's are zeros",
          "[host][symmetric]") {
  const ExpertsProblem p{.m = 3, .n = 2, .k = 64, .groups = 1, .top = 1, .ranks = 1};
  Findings findings;
  CHECK(on_peers(
            hosts(1), expert_bytes<float>(p),
            [&](const Runtime&, SymmetricMemory& memory, auto) {
              const auto kernel = experts_gather_kernel<float>(memory);
              const std::vector<int> tokens{-1, 2, -3}, ends{3};
              std::vector<float> c(6, 7), b(128, 1);
              kernel.reference(c.data(), nullptr, b.data(), nullptr, tokens.data(), ends.data(),
                               nullptr, p.m, p.n, p.k, p.groups, p.top, p.ranks);
              findings.check(c[0] == 0 && c[1] == 0 && c[4] == 0 && c[5] == 0);
              findings.check(c[2] != 0 && c[2] == c[3]);
            },
            kExpertFlags) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("GEMMs of experts refuse memory with too few flags", "[host][symmetric]") {
  Findings findings;
  CHECK(on_peers(
            hosts(1), 64,
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              findings.check_throws<UserError>(
                  [&] { ExpertsGather<float>(runtime, memory); },
                  "the symmetric memory has 10 flags, of 34 that are needed");
              findings.check_throws<UserError>([&] { ExpertsCombine<float>(runtime, memory); },
                                               "flags");
            },
            kPeerGemmFlags) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("GEMMs of experts refuse what they cannot do", "[host][symmetric]") {
  CHECK(on_peers(
            hosts(1), expert_bytes<float>({16, 32, 32, 2, 2, 1}),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              const ExpertsGather<float> gather(runtime, memory);
              const ExpertsCombine<float> combine(runtime, memory);
              Findings findings;
              const auto x = runtime.array<float>(1 << 14);
              const auto i = runtime.array<int>(64);
              const auto refuse = [&](const ExpertsProblem& p, const char* why) {
                findings.check_throws<UserError>(
                    [&] { gather({}, x.data(), x.data(), x.data(), i.data(), i.data(), p); }, why);
              };
              refuse({70, 32, 32, 2, 2, 1}, "too small");
              refuse({-1, 32, 32, 2, 2, 1}, "negative");
              refuse({16, 32, 32, 2, -2, 1}, "negative");
              refuse({1 << 29, 32, 32, 2, 8, 1}, "2^31");
              refuse({16, 32, 32, 2, 2, 2}, "`ranks`");
              findings.check_throws<UserError>(
                  [&] {
                    combine({}, x.data(), x.data(), x.data(), i.data(), i.data(), x.data(),
                            {16, 1024, 32, 2, 2, 1});
                  },
                  "too small");
              findings.check_throws<UserError>(
                  [&] {
                    combine({}, x.data(), x.data(), x.data(), i.data(), i.data(), x.data(),
                            {1, 8, 32, 2, 2, 2});
                  },
                  "`ranks`");
              gather({}, x.data(), x.data(), x.data(), i.data(), i.data(), {0, 8, 32, 2, 2, 1});
              combine({}, x.data(), x.data(), x.data(), i.data(), i.data(), x.data(),
                      {4, 0, 32, 2, 2, 1});
              runtime.synchronize();
              if (!findings.wrong().empty()) throw UserError(findings.wrong());
            },
            kExpertFlags) == "");
}

TEST_CASE("GEMMs of experts begin as several launches, and try one of many tiles",
          "[host][symmetric]") {
  const DeviceLimits hopper = limits_of(90, 132, 50 << 20);
  Findings findings;
  CHECK(on_peers(
            hosts(2), 1 << 16,
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              const auto check = [&](const KernelDefinition& d, const Values& problem) {
                const auto first = from_values<PeerGemm>(d.default_for(problem, hopper));
                findings.check(!first.overlap && first.gemm().uses_tma());
                findings.check(d.default_for(problem, runtime.device().limits).empty());
                int overlapping = 0;
                for (const Values& config : d.configs(problem, hopper))
                  if (!d.space.violated(config, problem, hopper))
                    overlapping += from_values<PeerGemm>(config).overlap ? 1 : 0;
                findings.check(overlapping > 5);
                check_kinds(d, problem, hopper, findings);
              };
              check(experts_gather_kernel<bfloat16>(memory).definition(),
                    {4096, 1536, 2048, 32, 2, 2});
              check(experts_combine_kernel<bfloat16>(memory).definition(),
                    {4096, 2048, 768, 32, 2, 2});
            },
            kExpertFlags) == "");
  CHECK(findings.wrong() == "");
}

namespace {

/// The bodies for Hopper as kernels of their own. A rank has one cluster of blocks that multiply:
/// others would wait for their turn on the host.
const char* const kEmulated = R"(
#include <gemm/experts/gemm_experts_combine_tma.cuh>
#include <gemm/experts/gemm_experts_gather_tma.cuh>
namespace kiln::templates {
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.gemm().threads(), 1)
    emulated_gather(T* out, const T* a, const __grid_constant__ hopper::TensorMap b,
                    const __grid_constant__ hopper::TensorMap all, const int* tokens,
                    const int* ends, const Peers* peers, int m, int n, int k, int groups, int top,
                    int ranks) {
  experts_gather_tma_body<c>(out, a, b, all, tokens, ends, *peers, {m, n, k, groups, top, ranks});
}
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.gemm().threads(), 1)
    emulated_combine(T* out, const __grid_constant__ hopper::TensorMap a,
                     const __grid_constant__ hopper::TensorMap b, const int* ends,
                     const int* places, const float* weights, const Peers* peers, T* scratch,
                     unsigned* semaphores, int m, int n, int k, int groups, int top, int ranks) {
  experts_combine_tma_body<c>(out, a, b, ends, places, weights, *peers,
                              {m, n, k, groups, top, ranks}, Workspace{scratch, semaphores});
}
}
)";

/// `done`: as if that many operations had been done before. `misses`: first the last rank does not
/// come.
/// `unaligned`: the tokens do not lie at a multiple of 16 bytes. `alone`: the blocks that
/// multiply are missing, and nothing else is tried.
struct Emulated {
  unsigned done = 0;
  bool misses = false;
  bool unaligned = false;
  bool alone = false;
};
void check_emulated(const PeerGemm& c, const ExpertsProblem& p, Routing routing, bool gathers,
                    Emulated how = {}) {
  const GemmTma tma = c.gemm().tma();
  CAPTURE(text_of(c), p.ranks, p.m, p.n, p.k, gathers, how.done, how.misses);
  const host_test::Kernel kernel(kEmulated, std::string("kiln::templates::emulated_") +
                                                (gathers ? "gather" : "combine") + "<" +
                                                text_of(c) + ", __nv_bfloat16>");
  const ExpertsData<bfloat16> data(p, routing);
  const unsigned cluster = unsigned(tma.cluster());
  const auto launch_blocks = [&](unsigned blocks, unsigned shared_bytes, const auto&... arguments) {
    kernel.in_clusters({cluster}, {blocks}, {unsigned(tma.threads())}, shared_bytes, arguments...,
                       p.m, p.n, p.k, p.groups, p.top, p.ranks);
  };
  const auto launch = [&](unsigned shared_bytes, const auto&... arguments) {
    launch_blocks(unsigned(c.senders) + cluster, shared_bytes, arguments...);
  };
  Findings findings;
  CHECK(on_peers(
            hosts(p.ranks), expert_bytes<bfloat16>(p),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              const auto b = data.b();
              const auto map_b =
                  map_of(b.data(), {p.k, p.n, p.groups}, tma.box_k(), tma.copied_n());
              const auto map_a = [&](const void* rows) {
                return map_of(rows, {p.k, p.rows(), 1}, tma.box_k(), tma.copied_m());
              };
              std::vector<bfloat16> out(std::size_t(p.rows()) * std::size_t(p.n)), scratch = out;
              std::vector<unsigned> semaphores(kExpertChunks);
              const auto run = [&](int round, Deadline deadline) {
                std::vector<bfloat16> own = data.tokens_of(memory.rank(), round);
                const std::size_t first = how.unaligned ? 1 : 0;
                own.insert(own.begin(), first, bfloat16(0));
                const auto rows = data.rows_of(memory.rank(), round);
                memory.within(deadline, [&] {
                  if (gathers)
                    launch(expert_gathering_bytes(c), out.data(), own.data() + first, map_b,
                           map_a(memory.data()), data.tokens().data(), data.ends().data(),
                           memory.peers());
                  else
                    launch(tma.shared_bytes(), out.data(), map_a(rows.data()), map_b,
                           data.ends().data(), data.places().data(), data.weights().data(),
                           memory.peers(), scratch.data(), semaphores.data());
                });
              };
              if (how.misses) {
                if (memory.rank() != p.ranks - 1)
                  findings.check_throws<EnvironmentError>([&] { run(0, deadline_in(0.5)); },
                                                          "gave up");
                findings.check(semaphores == std::vector<unsigned>(kExpertChunks));
                memory.reset();
              }
              if (how.alone) {
                const auto rows = data.rows_of(memory.rank(), 0);
                findings.check_throws<EnvironmentError>(
                    [&] {
                      memory.within(deadline_in(0.5), [&] {
                        launch_blocks(unsigned(c.senders), tma.shared_bytes(), out.data(),
                                      map_a(rows.data()), map_b, data.ends().data(),
                                      data.places().data(), data.weights().data(), memory.peers(),
                                      scratch.data(), semaphores.data());
                      });
                    },
                    "gave up");
                return;
              }
              if (how.done != 0) begin_behind(runtime, memory, how.done);
              for (int round = 0; round < 3; ++round) {
                straggle(memory.rank(), round, 3000);
                run(round, deadline_in(240));
                findings.check(gathers ? data.gathered(out, round)
                                       : data.combined(out, memory.rank(), round));
                findings.check(semaphores == std::vector<unsigned>(kExpertChunks));
              }
              findings.check(operations_done(runtime, memory) == how.done + 3);
            },
            kExpertFlags) == "");
  CHECK(findings.wrong() == "");
}

}  // namespace

TEST_CASE("ranks send tokens while experts multiply others", "[host][symmetric][hopper]") {
  using B = GemmBody;
  using C = GemmCluster;
  check_emulated({B::tma, 128, 128, 64, 1, 64, 64, 8, 4, C::none, false, true, 8, 1, true},
                 {90, 136, 200, 5, 2, 2}, Routing::balanced, true,
                 {.done = 0U - 1, .misses = true});
  check_emulated({B::pingpong, 64, 64, 64, 1, 64, 64, 8, 8, C::two_m, false, true, 32, 2, false},
                 {60, 72, 2056, 3, 3, 3}, Routing::skewed, true, {.unaligned = true});
  check_emulated({B::pingpong, 128, 64, 64, 1, 128, 64, 8, 8, C::two_n, true, true, 1, 2, true},
                 {50, 136, 72, 40, 2, 2}, Routing::lopsided, true, {.done = 0U - 2});
}

TEST_CASE("ranks add and send what experts have computed while those compute more",
          "[host][symmetric][hopper]") {
  using B = GemmBody;
  using C = GemmCluster;
  check_emulated({B::tma, 64, 64, 64, 1, 64, 64, 8, 4, C::none, false, true, 1, 0, false},
                 {90, 136, 200, 5, 2, 2}, Routing::balanced, false,
                 {.done = 0U - 2, .misses = true});
  check_emulated({B::tma, 64, 64, 64, 1, 64, 64, 8, 4, C::none, false, true, 2, 1, false},
                 {90, 128, 200, 5, 2, 2}, Routing::balanced, false, {.alone = true});
  // Blocks that add wait for others of their launch, and these for other ranks. Here a rank has but
  // one block, which has multiplied all before it adds.
  check_emulated({B::pingpong, 64, 64, 64, 1, 64, 64, 8, 8, C::none, false, true, 2, 0, false},
                 {60, 128, 136, 3, 3, 3}, Routing::skewed, false);
  check_emulated({B::tma, 128, 32, 64, 1, 64, 64, 8, 1, C::none, true, true, 4, 0, false},
                 {50, 256, 72, 40, 2, 2}, Routing::lopsided, false);
}
