// GEMMs of experts on GPUs, a thread and a GPU for each rank: every body through many rounds with
// ranks that come late, and ranks that tune in step. One GPU is one rank.
#include "experts_test.hpp"
#include "gpu/peer_configs.hpp"
#include "kiln_test.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace kiln::templates;

namespace {

using T = bfloat16;

void check_rounds(const ExpertsProblem& p, Routing routing, int rounds) {
  compile_first(gpus().front(), every_experts(p, routing));
  const ExpertsData<T> data(p, routing);
  const auto each = [&](const auto& configs, const auto& check) {
    for (const PeerGemm& config : configs) {
      CAPTURE(p.ranks, p.m, p.n, p.k, config.overlap, config.block_m, config.block_n, config.chunks,
              config.senders);
      Findings findings;
      CHECK(on_peers(
                gpus(), expert_bytes<T>(p),
                [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                  check(config, runtime, memory, findings);
                },
                kExpertFlags, 0, store_of_program()) == "");
      CHECK(findings.wrong() == "");
    }
  };
  const auto allowed = [&](const auto& kernel, const PeerGemm& config, const Runtime& runtime) {
    return !kernel.definition().space.violated(to_values(config), to_values(p),
                                               runtime.device().limits);
  };
  each(peer_configs::kExpertGathers, [&](const PeerGemm& config, const Runtime& runtime,
                                         SymmetricMemory& memory, Findings& findings) {
    if (!allowed(experts_gather_kernel<T>(memory), config, runtime)) return;
    const ExpertsGather<T> operation(runtime, memory);
    const auto chosen = operation.handle().with_config(config);
    ExpertsRank<T> rank(runtime, memory, data);
    for (int round = 0; round < rounds; ++round) {
      straggle(memory.rank(), round, 300);
      findings.check(
          rank.gather(round, deadline_in(60),
                      [&](T* c, const T* a, const T* b, const int* tokens, const int* ends) {
                        chosen(Stream{}, c, a, b, static_cast<const T*>(memory.data()), tokens,
                               ends, memory.peers(), p.m, p.n, p.k, p.groups, p.top, p.ranks);
                      }));
    }
  });
  each(peer_configs::kExpertCombines, [&](const PeerGemm& config, const Runtime& runtime,
                                          SymmetricMemory& memory, Findings& findings) {
    if (!allowed(experts_combine_kernel<T>(memory), config, runtime)) return;
    const ExpertsCombine<T> operation(runtime, memory);
    const auto chosen = operation.handle().with_config(config);
    ExpertsRank<T> rank(runtime, memory, data);
    for (int round = 0; round < rounds; ++round) {
      straggle(memory.rank(), round, 300);
      findings.check(rank.combine(round, deadline_in(60),
                                  [&](T* c, const T* a, const T* b, const int* ends,
                                      const int* places, const float* weights) {
                                    chosen(Stream{}, c, a, b, ends, places, weights, memory.peers(),
                                           p.m, p.n, p.k, p.groups, p.top, p.ranks);
                                  }));
    }
  });
}

}  // namespace

TEST_CASE("experts gather tokens and combine rows by each body", "[gpu][symmetric]") {
  check_rounds({300, 512, 136, 8, 2, static_cast<int>(gpus().size())}, Routing::balanced, 30);
}
TEST_CASE("of many experts one gets most tokens", "[gpu][symmetric]") {
  check_rounds({100, 512, 264, 40, 4, static_cast<int>(gpus().size())}, Routing::skewed, 30);
}
TEST_CASE("the last expert gets all tokens", "[gpu][symmetric]") {
  check_rounds({67, 256, 2056, 5, 1, static_cast<int>(gpus().size())}, Routing::lopsided, 30);
}

TEST_CASE("ranks tune GEMMs of experts in step", "[gpu][symmetric]") {
  const int ranks = static_cast<int>(gpus().size());
  const ExpertsProblem p{256, 512, 512, 8, 2, ranks};
  const ExpertsData<T> data(p);
  Findings findings;
  std::vector<std::vector<Values>> winners(gpus().size());
  CHECK(on_peers(
            gpus(), expert_bytes<T>(p),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto communicator) {
              const ExpertsGather<T> gather(runtime, memory);
              const ExpertsCombine<T> combine(runtime, memory);
              TuneOptions options;
              options.max_evaluations = 12;
              const auto tune = [&](const auto& operation) {
                const TuneResult result = operation.tune(p, communicator, options);
                findings.check(result.count(CandidateStatus::wrong_result) == 0);
                findings.check(result.count(CandidateStatus::measured) > 4);
                winners[static_cast<std::size_t>(memory.rank())].push_back(result.winner().config);
              };
              tune(gather);
              tune(combine);
              ExpertsRank<T> rank(runtime, memory, data);
              for (int round = 0; round < 30; ++round) {
                findings.check(rank.gather(round, deadline_in(30), [&](auto... arguments) {
                  gather({}, arguments..., p);
                }));
                findings.check(rank.combine(round, deadline_in(30), [&](auto... arguments) {
                  combine({}, arguments..., p);
                }));
              }
            },
            kExpertFlags) == "");
  CHECK(findings.wrong() == "");
  for (const auto& of_rank : winners) CHECK(of_rank == winners.front());
}
