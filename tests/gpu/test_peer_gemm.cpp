// GEMMs of ranks on GPUs, a thread and a GPU for each rank: every body through many rounds with
// ranks that come late, and ranks that tune in step. One GPU is one rank.
#include <algorithm>

#include "gpu/peer_configs.hpp"
#include "kiln_test.hpp"
#include "peer_gemm_test.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace kiln::templates;

namespace {

using T = bfloat16;

std::size_t bytes_for(int m, int n, int k, int ranks) {
  return std::max(all_gather_bytes<T>(m, k, ranks), reduce_scatter_bytes<T>(m, n, ranks));
}

/// What launches an operation of `memory` with `config`, on the default stream.
auto gather_with(const AllGatherGemm<T>& operation, const PeerGemm& config,
                 const SymmetricMemory& memory, int m, int n, int k) {
  return [chosen = operation.handle().with_config(config), &memory, m, n, k](T* c, const T* a,
                                                                             const T* b) {
    chosen(Stream{}, c, a, b, static_cast<const T*>(memory.data()), a, memory.peers(), m, n, k,
           memory.size());
  };
}
auto scatter_with(const ReduceScatterGemm<T>& operation, const PeerGemm& config,
                  const SymmetricMemory& memory, int m, int n, int k) {
  return [chosen = operation.handle().with_config(config), &memory, m, n, k](T* c, const T* a,
                                                                             const T* b) {
    chosen(Stream{}, c, a, b, static_cast<T*>(memory.data()), memory.peers(), m, n, k,
           memory.size());
  };
}

void check_rounds(int m, int n, int k, int rounds) {
  compile_first(gpus().front(), every_gemm(m, n, k));
  const auto devices = gpus();
  const int ranks = static_cast<int>(devices.size());
  const PeerData<T> rows(m, n, k), all(m * ranks, n, k);
  for (std::size_t i = 0; i < peer_configs::kDense.size(); ++i) {
    const PeerGemm& config = peer_configs::kDense[i];
    CAPTURE(ranks, m, n, k, config.overlap, config.block_m, config.block_n, config.chunks,
            config.senders);
    Findings findings;
    CHECK(on_peers(
              devices, bytes_for(m, n, k, ranks),
              [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                const AllGatherGemm<T> gather(runtime, memory);
                const ReduceScatterGemm<T> scatter(runtime, memory);
                if (all_gather_gemm_kernel<T>(memory).definition().space.violated(
                        to_values(config), to_values(PeerGemmProblem{m, n, k, ranks}),
                        runtime.device().limits))
                  return;
                const auto gathers = gather_with(gather, config, memory, m, n, k);
                const auto scatters = scatter_with(scatter, config, memory, m, n, k);
                PeerRank<T> one(runtime, memory, rows, true);
                PeerRank<T> other(runtime, memory, all, false);
                for (int round = 0; round < rounds; ++round) {
                  straggle(memory.rank(), round, 300);
                  findings.check(one.run(round, deadline_in(60), gathers));
                  straggle(memory.rank(), round + 1000, 300);
                  findings.check(other.run(round, deadline_in(60), scatters));
                }
              },
              kPeerGemmFlags, 0, store_of_program()) == "");
    CHECK(findings.wrong() == "");
  }
}

}  // namespace

TEST_CASE("ranks gather rows and scatter sums by each body", "[gpu][symmetric]") {
  check_rounds(300, 264, 136, 100);
  check_rounds(1024, 256, 192, 100);
  check_rounds(67, 40, 64, 50);
}

TEST_CASE("ranks tune GEMMs in step", "[gpu][symmetric]") {
  const int m = 256, n = 512, k = 512;
  const auto devices = gpus();
  const int ranks = static_cast<int>(devices.size());
  const PeerData<T> rows(m, n, k), all(m * ranks, n, k);
  Findings findings;
  std::vector<std::vector<Values>> winners(devices.size());
  CHECK(on_peers(
            devices, bytes_for(m, n, k, ranks),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto communicator) {
              const auto check = [&](const auto& operation, const PeerData<T>& data, bool gathers) {
                TuneOptions options;
                options.max_evaluations = 12;
                const TuneResult result = operation.tune(m, n, k, communicator, options);
                findings.check(result.count(CandidateStatus::wrong_result) == 0);
                findings.check(result.count(CandidateStatus::measured) > 4);
                winners[static_cast<std::size_t>(memory.rank())].push_back(result.winner().config);
                PeerRank<T> rank(runtime, memory, data, gathers);
                for (int round = 0; round < 50; ++round)
                  findings.check(rank.run(
                      round, deadline_in(30),
                      [&](T* c, const T* a, const T* b) { operation({}, c, a, b, m, n, k); }));
              };
              check(AllGatherGemm<T>(runtime, memory), rows, true);
              check(ReduceScatterGemm<T>(runtime, memory), all, false);
            }) == "");
  CHECK(findings.wrong() == "");
  for (const auto& of_rank : winners) CHECK(of_rank == winners.front());
}
