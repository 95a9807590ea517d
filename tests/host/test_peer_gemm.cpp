// GEMMs of ranks that are threads: on the host target as programs launch them, and the bodies for
// Hopper, emulated.
#include <set>
#include <utility>

#include "kiln/occupancy.hpp"
#include "peer_gemm_host_test.hpp"
#include "repeated_operation.hpp"
#include "temporary_directory.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace kiln::templates;

namespace {

template <class T>
std::size_t bytes_for(int m, int n, int k, int ranks) {
  return std::max(all_gather_bytes<T>(m, k, ranks), reduce_scatter_bytes<T>(m, n, ranks));
}

/// Both operations in turns, in one memory.
template <class T>
void check_rounds(int ranks, int m, int n, int k, int rounds) {
  CAPTURE(ranks, m, n, k);
  const PeerData<T> rows(m, n, k), all(m * ranks, n, k);
  Findings findings;
  CHECK(on_peers(hosts(ranks), bytes_for<T>(m, n, k, ranks),
                 [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                   const AllGatherGemm<T> gather(runtime, memory);
                   const ReduceScatterGemm<T> scatter(runtime, memory);
                   PeerRank<T> gathers(runtime, memory, rows, true);
                   PeerRank<T> scatters(runtime, memory, all, false);
                   for (int round = 0; round < rounds; ++round) {
                     const auto with = [&](const auto& operation) {
                       return [&, m, n, k](T* c, const T* a, const T* b) {
                         operation({}, c, a, b, m, n, k);
                       };
                     };
                     straggle(memory.rank(), round, 2000);
                     findings.check(gathers.run(round, deadline_in(120), with(gather)));
                     straggle(memory.rank(), round + 1000, 2000);
                     findings.check(scatters.run(round, deadline_in(120), with(scatter)));
                   }
                 }) == "");
  CHECK(findings.wrong() == "");
}

}  // namespace

TEST_CASE("ranks gather rows and multiply them, and scatter what they have multiplied",
          "[host][symmetric]") {
  check_rounds<float>(2, 33, 20, 17, 20);
  check_rounds<bfloat16>(3, 16, 24, 64, 20);
  check_rounds<float16>(1, 5, 7, 9, 3);
  check_rounds<float>(2, 4, 8, 0, 3);
  check_rounds<float>(4, 9, 20, 17, 10);
  check_rounds<bfloat16>(8, 5, 12, 17, 5);
}

TEST_CASE("ranks that are late within an operation are waited for", "[host][symmetric]") {
  const int ranks = 3, m = 9, n = 12, k = 17;
  const TemporaryDirectory store;
  const PeerData<float> rows(m, n, k), all(m * ranks, n, k);
  Findings findings;
  CHECK(on_peers(
            hosts(ranks), bytes_for<float>(m, n, k, ranks),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              const PeerGemmHandle<AllGatherGemmKernel<float>> gather(
                  runtime, memory,
                  with_delays(all_gather_gemm_kernel<float>(memory), kRandomDelays));
              const PeerGemmHandle<ReduceScatterGemmKernel<float>> scatter(
                  runtime, memory,
                  with_delays(reduce_scatter_gemm_kernel<float>(memory), kRandomDelays));
              PeerRank<float> gathers(runtime, memory, rows, true);
              PeerRank<float> scatters(runtime, memory, all, false);
              auto* const shared = static_cast<float*>(memory.data());
              for (int round = 0; round < 40; ++round) {
                findings.check(gathers.run(
                    round, deadline_in(120), [&](float* c, const float* a, const float* b) {
                      gather.handle()({}, c, a, b, shared, a, memory.peers(), m, n, k, ranks);
                    }));
                findings.check(scatters.run(
                    round, deadline_in(120), [&](float* c, const float* a, const float* b) {
                      scatter.handle()({}, c, a, b, shared, memory.peers(), m, n, k, ranks);
                    }));
              }
            },
            kPeerGemmFlags, 0, store.path() / "store") == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("GEMMs of ranks are tuned by all ranks in step", "[host][symmetric]") {
  const int m = 24, n = 40, k = 64, ranks = 2;
  const PeerData<float> rows(m, n, k), all(m * ranks, n, k);
  Findings findings;
  std::vector<std::vector<Values>> winners(static_cast<std::size_t>(ranks));
  CHECK(on_peers(hosts(ranks), bytes_for<float>(m, n, k, ranks),
                 [&](const Runtime& runtime, SymmetricMemory& memory, auto communicator) {
                   const auto check = [&](const auto& operation, const PeerData<float>& data,
                                          bool gathers) {
                     TuneOptions options;
                     options.max_evaluations = 3;
                     options.candidate_seconds = 120;
                     const TuneResult result = operation.tune(m, n, k, communicator, options);
                     findings.check(result.count(CandidateStatus::measured) >= 1);
                     findings.check(result.count(CandidateStatus::wrong_result) == 0);
                     winners[static_cast<std::size_t>(memory.rank())].push_back(
                         result.winner().config);
                     PeerRank<float> rank(runtime, memory, data, gathers);
                     for (int round = 0; round < 5; ++round)
                       findings.check(rank.run(round, deadline_in(120),
                                               [&](float* c, const float* a, const float* b) {
                                                 operation({}, c, a, b, m, n, k);
                                               }));
                   };
                   check(AllGatherGemm<float>(runtime, memory), rows, true);
                   check(ReduceScatterGemm<float>(runtime, memory), all, false);
                 }) == "");
  CHECK(findings.wrong() == "");
  CHECK(winners[0] == winners[1]);
}

TEST_CASE("a rank that does not come ends the operation of the others", "[host][symmetric]") {
  const int m = 8, n = 16, k = 32;
  const PeerData<float> rows(m, n, k), all(2 * m, n, k);
  Findings findings;
  CHECK(on_peers(hosts(2), bytes_for<float>(m, n, k, 2),
                 [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                   const auto check = [&](const auto& operation, const PeerData<float>& data,
                                          bool gathers) {
                     PeerRank<float> rank(runtime, memory, data, gathers);
                     const auto launch = [&](float* c, const float* a, const float* b) {
                       operation({}, c, a, b, m, n, k);
                     };
                     findings.check(rank.run(0, deadline_in(120), launch));
                     if (memory.rank() == 0)
                       findings.check_throws<EnvironmentError>(
                           [&] { rank.run(1, deadline_in(0.2), launch); }, "rank 0 gave up");
                     memory.reset();
                     for (int round = 2; round < 6; ++round)
                       findings.check(rank.run(round, deadline_in(120), launch));
                   };
                   check(AllGatherGemm<float>(runtime, memory), rows, true);
                   check(ReduceScatterGemm<float>(runtime, memory), all, false);
                 }) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("a guard of symmetric memory goes where the memory is moved", "[host][symmetric]") {
  int launched = 0;
  CHECK(on_peers(hosts(1), 64, [&](const Runtime&, SymmetricMemory& memory, auto) {
          const auto guard = memory.guard(60);
          SymmetricMemory moved = std::move(memory);
          guard([&] { ++launched; });
          memory = std::move(moved);
          guard([&] { ++launched; });
        }) == "");
  CHECK(launched == 2);
}

TEST_CASE("each rank computes what is right for GEMMs of ranks alone", "[host][symmetric]") {
  const int m = 100, n = 208, k = 144;
  Findings findings;
  CHECK(on_peers(hosts(3), bytes_for<float>(m, n, k, 3),
                 [&](const Runtime& runtime, SymmetricMemory& memory, auto ranks) {
                   const PeerGemmProblem problem{m, n, k, 3};
                   check_reference(runtime, memory, ranks, all_gather_gemm_kernel<float>(memory),
                                   problem, findings);
                   check_reference(runtime, memory, ranks,
                                   reduce_scatter_gemm_kernel<bfloat16>(memory), problem, findings);
                 }) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("GEMMs of ranks refuse memory with too few flags", "[host][symmetric]") {
  Findings findings;
  CHECK(on_peers(
            hosts(1), 64,
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              findings.check_throws<UserError>(
                  [&] { AllGatherGemm<float>(runtime, memory); },
                  "the symmetric memory has 9 flags, of 10 that are needed");
              findings.check_throws<UserError>([&] { ReduceScatterGemm<float>(runtime, memory); },
                                               "flags");
            },
            kPeerGemmFlags - 1) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("GEMMs of ranks refuse what they cannot do", "[host][symmetric]") {
  CHECK(
      on_peers(hosts(1), bytes_for<float>(16, 32, 32, 1),
               [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                 const AllGatherGemm<float> gather(runtime, memory);
                 const ReduceScatterGemm<float> scatter(runtime, memory);
                 auto a = runtime.array<float>(64 * 64), c = runtime.array<float>(64 * 64);
                 Findings findings;
                 const auto launch = [&](const auto& operation, int m, int n, int k) {
                   operation({}, c.data(), a.data(), a.data(), m, n, k);
                 };
                 findings.check_throws<UserError>([&] { launch(gather, 70, 8, 32); }, "too small");
                 findings.check_throws<UserError>([&] { launch(scatter, 17, 32, 8); }, "too small");
                 findings.check_throws<UserError>([&] { launch(gather, -1, 8, 32); }, "negative");
                 findings.check_throws<UserError>([&] { launch(scatter, 8, -8, 32); }, "negative");
                 launch(gather, 0, 8, 32);
                 launch(scatter, 8, 0, 32);
                 runtime.synchronize();
                 if (!findings.wrong().empty()) throw UserError(findings.wrong());
               }) == "");
}

TEST_CASE("GEMMs of ranks begin as two launches, and try one of many tiles", "[host][symmetric]") {
  const DeviceLimits hopper = limits_of(90, 132, 50 << 20);
  Findings findings;
  CHECK(on_peers(hosts(2), 1 << 16, [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
          const auto check = [&](const KernelDefinition& d, int m) {
            const Values problem{m, 4096, 8192, 2};
            const auto first = from_values<PeerGemm>(d.default_for(problem, hopper));
            findings.check(!first.overlap && first.gemm().uses_tma());
            findings.check(d.default_for(problem, runtime.device().limits).empty());
            std::set<std::pair<int, int>> tiles;
            for (const Values& config : d.configs(problem, hopper))
              if (!d.space.violated(config, problem, hopper))
                if (const auto c = from_values<PeerGemm>(config); c.overlap)
                  tiles.emplace(c.block_m, c.block_n);
            findings.check(tiles.size() > 5);
            check_kinds(d, problem, hopper, findings);
          };
          for (const int m : {64, 4096}) {
            check(all_gather_gemm_kernel<bfloat16>(memory).definition(), m);
            check(reduce_scatter_gemm_kernel<bfloat16>(memory).definition(), m);
          }
          const KernelDefinition of_floats = all_gather_gemm_kernel<float>(memory).definition();
          findings.check(of_floats.default_for(Values{64, 64, 64, 2}, hopper).empty());
        }) == "");
  CHECK(findings.wrong() == "");
}

namespace {

/// The bodies for Hopper as kernels of their own. A rank has one cluster of blocks: those of others
/// would wait for their turn on the host.
const char* const kEmulated = R"(
#include <gemm/peers/gemm_all_gather_tma.cuh>
#include <gemm/peers/gemm_reduce_scatter_tma.cuh>
namespace kiln::templates {
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.gemm().threads(), 1)
    emulated_gather(const __grid_constant__ hopper::TensorMap out,
                    const __grid_constant__ hopper::TensorMap own,
                    const __grid_constant__ hopper::TensorMap b,
                    const __grid_constant__ hopper::TensorMap all, const T* a, const Peers* peers,
                    int m, int n, int k, int ranks) {
  all_gather_tma_body<c>(out, own, b, all, a, *peers, {m, n, k, ranks});
}
template <PeerGemm c, class T>
__global__ void __launch_bounds__(c.gemm().threads(), 1)
    emulated_scatter(T* out, const __grid_constant__ hopper::TensorMap a,
                     const __grid_constant__ hopper::TensorMap b, const Peers* peers, int m, int n,
                     int k, int ranks) {
  reduce_scatter_tma_body<c>(out, a, b, *peers, {m, n, k, ranks});
}
}
)";

/// `done`: as if that many operations had been done before. `misses`: first the last rank does not
/// come.
struct Emulated {
  unsigned done = 0;
  bool misses = false;
};
void check_emulated(const PeerGemm& c, int ranks, int m, int n, int k, Emulated how = {}) {
  const GemmTma tma = c.gemm().tma();
  CAPTURE(text_of(c), ranks, m, n, k, how.done, how.misses);
  PeerGemm sums = c;  // here no late block runs beside a block that sends sums
  sums.late = false;
  if (tma.cluster() > 1 || tma.consumers > 1) sums.senders = 0;
  const auto kernel = [&](const char* name, const PeerGemm& config) {
    return host_test::Kernel(kEmulated, "kiln::templates::" + std::string(name) + "<" +
                                            text_of(config) + ", __nv_bfloat16>");
  };
  const host_test::Kernel gather = kernel("emulated_gather", c),
                          scatter = kernel("emulated_scatter", sums);
  const unsigned ring = sums.senders > 0 ? 2048 : 0;
  const PeerData<bfloat16> rows(m, n, k), all(m * ranks, n, k);
  const unsigned cluster = unsigned(tma.cluster());
  const auto launch = [&](const host_test::Kernel& body, int senders, unsigned shared_bytes,
                          const auto&... arguments) {
    body.in_clusters({cluster}, {unsigned(senders) + cluster}, {unsigned(tma.threads())},
                     shared_bytes, arguments..., m, n, k, ranks);
  };
  Findings findings;
  CHECK(on_peers(hosts(ranks), bytes_for<bfloat16>(m, n, k, ranks),
                 [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                   const auto b = rows.b(), b_of_all = all.b();
                   std::vector<bfloat16> gathered(rows.gathered_elements(ranks)),
                       scattered(all.scattered_elements(ranks));
                   const auto map_b = [&](const std::vector<bfloat16>& columns) {
                     return map_of(columns.data(), {k, n, 1}, tma.box_k(), tma.copied_n());
                   };
                   const auto map_a = [&](const void* array, int batches) {
                     return map_of(array, {k, m, batches}, tma.box_k(), tma.copied_m());
                   };
                   const auto gather_rows = [&](const std::vector<bfloat16>& own) {
                     launch(gather, c.senders, gathering_shared_bytes(c),
                            map_of(gathered.data(), {n, m, ranks}, tma.store_columns(), 16,
                                   tma.store_span()),
                            map_a(own.data(), 1), map_b(b), map_a(memory.data(), ranks), own.data(),
                            memory.peers());
                   };
                   const auto scatter_sums = [&](const std::vector<bfloat16>& mine) {
                     launch(scatter, sums.senders, scatter_shared_bytes(sums) + ring,
                            scattered.data(), map_a(mine.data(), ranks), map_b(b_of_all),
                            memory.peers());
                   };
                   const auto miss = [&](const auto& operation, const auto& data) {
                     if (memory.rank() != ranks - 1)
                       findings.check_throws<EnvironmentError>(
                           [&] {
                             memory.within(deadline_in(0.5), [&] {
                               operation(data.a(1));
                               operation(data.a(1));  // had been queued behind
                             });
                           },
                           "gave up");
                     memory.reset();
                   };
                   if (how.misses) miss(gather_rows, rows), miss(scatter_sums, all);
                   if (how.done != 0) begin_behind(runtime, memory, how.done);
                   for (int round = 0; round < 3; ++round) {
                     const int factor = PeerData<bfloat16>::factor(memory.rank(), round);
                     const auto own = rows.a(factor), mine = all.a(factor);
                     straggle(memory.rank(), round, 3000);
                     memory.within(deadline_in(240), [&] {
                       gather_rows(own);
                       scatter_sums(mine);
                     });
                     findings.check(rows.gathered(gathered, ranks, round));
                     findings.check(all.scattered(scattered, memory.rank(), ranks, round));
                   }
                   findings.check(operations_done(runtime, memory) == how.done + 6);
                   // All flags change with each operation, also of chunks that have no rows.
                   memory.barrier();
                   const Peers& view = *memory.peers();
                   for (int r = 0; r < ranks; ++r)
                     for (int chunk = 0; r != memory.rank() && chunk < kPeerGemmChunks; ++chunk)
                       findings.check(view.peer[memory.rank()]
                                          .flags[unsigned(r) * view.flags + 1 + unsigned(chunk)] ==
                                      how.done + 6);
                 }) == "");
  CHECK(findings.wrong() == "");
}

}  // namespace

TEST_CASE("blocks that have sent compute what would cost the others a round", "[host][hopper]") {
  CHECK(late_tiles(512, 124, 8) == 512 - 4 * 124);
  CHECK(late_tiles(1024, 124, 8) == 1024 - 8 * 124);
  CHECK(late_tiles(124, 124, 8) == 0);
  CHECK(late_tiles(7, 124, 8) == 0);
  for (const unsigned senders : {4U, 8U, 16U})
    for (unsigned tiles = 1; tiles < 3000; tiles += 37) {
      const unsigned late = late_tiles(tiles, 132 - senders, senders);
      const unsigned rounds = (tiles + 131) / 132;
      // No block has more tiles than if no block had to send.
      CHECK(tiles - late <= rounds * (132 - senders));
      CHECK(late <= rounds * senders);
    }
}

TEST_CASE("ranks send rows and sums while they multiply others", "[host][symmetric][hopper]") {
  using B = GemmBody;
  using C = GemmCluster;
  check_emulated({B::tma, 64, 64, 64, 1, 64, 64, 8, 4, C::none, false, true, 4, 0, false}, 2, 300,
                 72, 136, {.misses = true});
  check_emulated({B::tma, 128, 32, 64, 1, 64, 64, 8, 1, C::two_m, false, true, 2, 0, false}, 3, 200,
                 40, 64, {.done = 0U - 3});
  check_emulated({B::pingpong, 64, 64, 64, 1, 64, 64, 8, 8, C::two_n, true, true, 8, 0, false}, 2,
                 520, 136, 72);
  check_emulated({B::tma, 256, 96, 64, 1, 128, 64, 8, 4, C::none, false, true, 2, 0, false}, 2, 300,
                 136, 72);
  check_emulated({B::tma, 64, 64, 64, 1, 64, 64, 8, 4, C::none, false, true, 2, 1, false}, 3, 200,
                 136, 72);
  // One cluster sends: here a block that waits for a rank may keep its launch's others from
  // running.
  check_emulated({B::tma, 64, 64, 64, 1, 64, 64, 8, 4, C::none, false, true, 4, 1, true}, 2, 300,
                 72, 136, {.done = 0U - 2, .misses = true});
  check_emulated({B::pingpong, 64, 64, 64, 1, 64, 64, 8, 8, C::two_m, false, true, 2, 2, true}, 3,
                 330, 136, 72);
}
