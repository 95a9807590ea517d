// All-gather + GEMM on GPUs, a thread and a GPU for each rank: every body through many rounds with ranks
// that come late, ranks that tune in step, and one that does not come. One GPU is one rank.
#include <algorithm>

#include "all_gather_test.hpp"
#include "kiln_test.hpp"
#include "runtime/device/cuda/cuda_device.hpp"

using namespace kiln;
using namespace kiln::test;
using namespace kiln::templates;

namespace {

/// Up to two GPUs, a rank each.
std::vector<std::string> gpus() {
  std::vector<std::string> names;
  for (int i = 0; i < std::min(runtime::probe_cuda().devices, 2); ++i)
    names.push_back("cuda:" + std::to_string(i));
  return names;
}

const std::vector<AllGather> kConfigs{
    {GemmBody::mma, 64, 128, 64, 3, 32, 32, 8, 8, GemmCluster::none, false, false, 1},
    {GemmBody::tma, 128, 128, 64, 1, 64, 64, 8, 8, GemmCluster::none, false, false, 1},
    {GemmBody::tma, 128, 128, 64, 1, 64, 64, 8, 8, GemmCluster::none, false, true, 1},
    {GemmBody::tma, 128, 256, 64, 1, 64, 64, 8, 8, GemmCluster::two_m, false, true, 4},
    {GemmBody::tma, 256, 128, 64, 1, 128, 64, 8, 4, GemmCluster::two_n, true, true, 2},
    {GemmBody::pingpong, 64, 160, 64, 1, 64, 64, 8, 8, GemmCluster::none, false, true, 8},
    {GemmBody::pingpong, 128, 128, 64, 1, 128, 64, 8, 8, GemmCluster::two_m, true, true, 4}};

void check_rounds(int m, int n, int k, int rounds) {
  const auto devices = gpus();
  const int ranks = static_cast<int>(devices.size());
  const GatheredData<bfloat16> data(m, n, k);
  for (const AllGather& config : kConfigs) {
    CAPTURE(ranks, m, n, k, config.overlap, config.block_m, config.block_n, config.chunks);
    Findings findings;
    CHECK(on_gathering_ranks(
              devices, all_gather_bytes<bfloat16>(m, k, ranks),
              [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                const AllGatherGemm<bfloat16> operation(runtime, memory);
                if (operation.handle().definition().space.violated(
                        to_values(config), to_values(AllGatherProblem{m, n, k, ranks}),
                        runtime.device().limits))
                  return;
                const auto chosen = operation.handle().with_config(config);
                GatheringRank<bfloat16> rank(runtime, memory, data);
                for (int round = 0; round < rounds; ++round) {
                  straggle(memory.rank(), round, 300);
                  findings.check(rank.run(round, deadline_in(30),
                                          [&](bfloat16* c, const bfloat16* a, const bfloat16* b) {
                                            chosen(Stream{}, c, a, b,
                                                   static_cast<const bfloat16*>(memory.data()), a,
                                                   memory.peers(), m, n, k, ranks);
                                          }));
                }
              }) == "");
    CHECK(findings.wrong() == "");
  }
}

}  // namespace

TEST_CASE("ranks gather rows and multiply them by each body", "[gpu][symmetric]") {
  check_rounds(300, 264, 136, 100);
  check_rounds(1024, 512, 512, 300);
  check_rounds(67, 40, 64, 50);
}

TEST_CASE("ranks tune all-gather + GEMM in step", "[gpu][symmetric]") {
  const int m = 1024, n = 1024, k = 1024;
  const auto devices = gpus();
  const int ranks = static_cast<int>(devices.size());
  const GatheredData<bfloat16> data(m, n, k);
  Findings findings;
  std::vector<Values> winners(devices.size());
  CHECK(on_gathering_ranks(
            devices, all_gather_bytes<bfloat16>(m, k, ranks),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto communicator) {
              const AllGatherGemm<bfloat16> operation(runtime, memory);
              GatheringRank<bfloat16> rank(runtime, memory, data);
              TuneOptions options;
              options.max_evaluations = 12;
              memory.within(deadline_in(100), [&] {
                const TuneResult result = operation.tune(m, n, k, communicator, options);
                findings.check(result.count(CandidateStatus::wrong_result) == 0);
                winners[static_cast<std::size_t>(memory.rank())] = result.winner().config;
              });
              for (int round = 0; round < 200; ++round)
                findings.check(rank.run(round, deadline_in(30),
                                        [&](bfloat16* c, const bfloat16* a, const bfloat16* b) {
                                          operation({}, c, a, b, m, n, k);
                                        }));
            }) == "");
  CHECK(findings.wrong() == "");
  if (!winners.empty()) CHECK(std::equal(winners.begin() + 1, winners.end(), winners.begin()));
}

TEST_CASE("a GPU whose peer does not come gives up", "[gpu][symmetric]") {
  const auto devices = gpus();
  if (devices.size() < 2) KILN_SKIP("needs two GPUs");
  const int m = 512, n = 512, k = 512;
  const GatheredData<bfloat16> data(m, n, k);
  for (const AllGather& config : {kConfigs[0], kConfigs[3]}) {
    Findings findings;
    CHECK(on_gathering_ranks(
              devices, all_gather_bytes<bfloat16>(m, k, 2),
              [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                const AllGatherGemm<bfloat16> operation(runtime, memory);
                const auto chosen = operation.handle().with_config(config);
                GatheringRank<bfloat16> rank(runtime, memory, data);
                const auto launch = [&](bfloat16* c, const bfloat16* a, const bfloat16* b) {
                  chosen(Stream{}, c, a, b, static_cast<const bfloat16*>(memory.data()), a,
                         memory.peers(), m, n, k, 2);
                };
                findings.check(rank.run(0, deadline_in(60), launch));
                if (memory.rank() == 0)
                  findings.check_throws<EnvironmentError>(
                      [&] { rank.run(1, deadline_in(0.5), launch); }, "rank 0 gave up");
                memory.reset();
                for (int round = 2; round < 20; ++round)
                  findings.check(rank.run(round, deadline_in(60), launch));
              }) == "");
    CHECK(findings.wrong() == "");
  }
}
