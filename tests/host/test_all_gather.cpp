// All-gather + GEMM by ranks that are threads: on the host target as programs launch it, and the body for
// Hopper, emulated.
#include "all_gather_test.hpp"
#include "gemm_tma_test.hpp"

using namespace kiln;
using namespace kiln::test;
using kiln::templates::all_gather_bytes, kiln::templates::AllGatherGemm;

namespace {

std::vector<std::string> hosts(int ranks) {
  return std::vector<std::string>(static_cast<std::size_t>(ranks), "host");
}

template <class T>
void check_rounds(int ranks, int m, int n, int k, int rounds) {
  const GatheredData<T> data(m, n, k);
  Findings findings;
  CHECK(on_gathering_ranks(hosts(ranks), all_gather_bytes<T>(m, k, ranks),
                           [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                             const AllGatherGemm<T> operation(runtime, memory);
                             GatheringRank<T> rank(runtime, memory, data);
                             for (int round = 0; round < rounds; ++round) {
                               straggle(memory.rank(), round, 2000);
                               findings.check(rank.run(round, deadline_in(120),
                                                       [&](T* c, const T* a, const T* b) {
                                                         operation({}, c, a, b, m, n, k);
                                                       }));
                             }
                           }) == "");
  CHECK(findings.wrong() == "");
}

}  // namespace

TEST_CASE("ranks gather rows and multiply all of them", "[host][symmetric]") {
  check_rounds<float>(2, 33, 20, 17, 20);
  check_rounds<bfloat16>(3, 16, 24, 64, 20);
  check_rounds<float16>(1, 5, 7, 9, 3);
  check_rounds<float>(2, 4, 8, 0, 3);
}

TEST_CASE("all-gather + GEMM is tuned by all ranks in step", "[host][symmetric]") {
  const int m = 24, n = 40, k = 64, ranks = 2;
  const GatheredData<float> data(m, n, k);
  Findings findings;
  std::vector<Values> winners(static_cast<std::size_t>(ranks));
  CHECK(on_gathering_ranks(
            hosts(ranks), all_gather_bytes<float>(m, k, ranks),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto communicator) {
              const AllGatherGemm<float> operation(runtime, memory);
              GatheringRank<float> rank(runtime, memory, data);
              TuneOptions options;
              options.max_evaluations = 3;
              memory.within(deadline_in(240), [&] {
                const TuneResult result = operation.tune(m, n, k, communicator, options);
                findings.check(result.count(CandidateStatus::measured) >= 1);
                findings.check(result.count(CandidateStatus::wrong_result) == 0);
                winners[static_cast<std::size_t>(memory.rank())] = result.winner().config;
              });
              for (int round = 0; round < 5; ++round)
                findings.check(rank.run(round, deadline_in(120),
                                        [&](float* c, const float* a, const float* b) {
                                          operation({}, c, a, b, m, n, k);
                                        }));
            }) == "");
  CHECK(findings.wrong() == "");
  CHECK(winners[0] == winners[1]);
}

TEST_CASE("a rank that does not come ends the operation of the others", "[host][symmetric]") {
  const int m = 8, n = 16, k = 32;
  const GatheredData<float> data(m, n, k);
  Findings findings;
  CHECK(on_gathering_ranks(hosts(2), all_gather_bytes<float>(m, k, 2),
                           [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
                             const AllGatherGemm<float> operation(runtime, memory);
                             GatheringRank<float> rank(runtime, memory, data);
                             const auto launch = [&](float* c, const float* a, const float* b) {
                               operation({}, c, a, b, m, n, k);
                             };
                             findings.check(rank.run(0, deadline_in(120), launch));
                             if (memory.rank() == 0)
                               findings.check_throws<EnvironmentError>(
                                   [&] { rank.run(1, deadline_in(0.2), launch); },
                                   "rank 0 gave up");
                             memory.reset();
                             for (int round = 2; round < 6; ++round)
                               findings.check(rank.run(round, deadline_in(120), launch));
                           }) == "");
  CHECK(findings.wrong() == "");
}

TEST_CASE("all-gather + GEMM refuses what it cannot do", "[host][symmetric]") {
  CHECK(on_gathering_ranks(
            hosts(1), all_gather_bytes<float>(16, 32, 1),
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              const AllGatherGemm<float> operation(runtime, memory);
              auto a = runtime.array<float>(64 * 64), c = runtime.array<float>(64 * 64);
              Findings findings;
              const auto launch = [&](int m, int n, int k) {
                operation({}, c.data(), a.data(), a.data(), m, n, k);
              };
              findings.check_throws<UserError>([&] { launch(17, 8, 32); }, "too small");
              findings.check_throws<UserError>([&] { launch(-1, 8, 32); }, "negative");
              findings.check_throws<UserError>([&] { launch(8, -8, 32); }, "negative");
              launch(0, 8, 32);
              launch(8, 0, 32);
              runtime.synchronize();
              if (!findings.wrong().empty()) throw UserError(findings.wrong());
            }) == "");
}

namespace {

using namespace host_test;

/// The body for Hopper as a kernel of its own. A rank has one cluster of blocks: those of others would
/// wait for their turn on the host.
const char* const kEmulated = R"(
#include <gemm/gemm_all_gather_tma.cuh>
namespace kiln::templates {
template <AllGather c, class T>
__global__ void __launch_bounds__(c.gemm().threads(), 1)
    gemm_all_gather_emulated(const __grid_constant__ hopper::TensorMap out,
                             const __grid_constant__ hopper::TensorMap own,
                             const __grid_constant__ hopper::TensorMap b,
                             const __grid_constant__ hopper::TensorMap all, const T* a,
                             const Peers* peers, int m, int n, int k, int ranks) {
  all_gather_tma_body<c>(out, own, b, all, a, *peers, {m, n, k, ranks});
}
}
)";

std::string text_of(const templates::Gemm& c) {
  using templates::GemmBody;
  std::string text = "kiln::templates::GemmBody(" + std::to_string(int(c.body)) + ")";
  for (int value :
       {c.block_m, c.block_n, c.block_k, c.stages, c.tile_m, c.tile_n, c.vector, c.group_m})
    text += ", " + std::to_string(value);
  return text + ", kiln::templates::GemmCluster(" + std::to_string(int(c.cluster)) + "), " +
         (c.along_n ? "true" : "false") + ", true";
}

void check_emulated(const templates::Gemm& gemm, int chunks, int ranks, int m, int n, int k) {
  const GemmTma tma = gemm.tma();
  CAPTURE(host_test::text_of(tma), chunks, ranks, m, n, k);
  const host_test::Kernel kernel(kEmulated,
                                 "kiln::templates::gemm_all_gather_emulated<kiln::templates::"
                                 "AllGather{" +
                                     text_of(gemm) + ", " + std::to_string(chunks) +
                                     "}, __nv_bfloat16>");
  const GatheredData<bfloat16> data(m, n, k);
  Findings findings;
  CHECK(on_gathering_ranks(
            hosts(ranks), all_gather_bytes<bfloat16>(m, k, ranks),
            [&](const Runtime&, SymmetricMemory& memory, auto) {
              const auto size = [](int v) { return static_cast<std::uint64_t>(v); };
              const auto map = [&](const void* array, std::vector<std::uint64_t> sizes, int columns,
                                   int rows, unsigned span) {
                const unsigned high = unsigned(std::min<std::uint64_t>(unsigned(rows), sizes[1]));
                return tensor_map(array, HostElement::bf16, sizes, {unsigned(columns), high, 1},
                                  span);
              };
              const auto b = data.b();
              std::vector<bfloat16> c(data.elements(ranks));
              const HostTensorMap map_b =
                  map(b.data(), {size(k), size(n), 1}, tma.box_k(), tma.copied_n(), 128);
              const HostTensorMap map_all = map(memory.data(), {size(k), size(m), size(ranks)},
                                                tma.box_k(), tma.copied_m(), 128);
              const HostTensorMap map_c = map(c.data(), {size(n), size(m), size(ranks)},
                                              tma.store_columns(), 16, unsigned(tma.store_span()));
              for (int round = 0; round < 3; ++round) {
                const auto a = data.a(GatheredData<bfloat16>::factor(memory.rank(), round));
                const HostTensorMap map_own =
                    map(a.data(), {size(k), size(m), 1}, tma.box_k(), tma.copied_m(), 128);
                const unsigned cluster = unsigned(tma.cluster());
                straggle(memory.rank(), round, 3000);
                memory.within(deadline_in(240), [&] {
                  kernel.in_clusters({cluster}, {cluster}, {unsigned(tma.threads())},
                                     tma.shared_bytes(), map_c, map_own, map_b, map_all, a.data(),
                                     memory.peers(), m, n, k, ranks);
                });
                findings.check(data.right(c, ranks, round));
              }
            }) == "");
  CHECK(findings.wrong() == "");
}

}  // namespace

TEST_CASE("ranks send rows while they multiply others", "[host][symmetric][hopper]") {
  using templates::GemmBody, templates::GemmCluster;
  check_emulated({GemmBody::tma, 64, 64, 64, 1, 64, 64, 8, 4}, 4, 2, 300, 72, 136);
  check_emulated({GemmBody::tma, 128, 32, 64, 1, 64, 64, 8, 1, GemmCluster::two_m}, 2, 3, 200, 40,
                 64);
  check_emulated({GemmBody::pingpong, 64, 64, 64, 1, 64, 64, 8, 8, GemmCluster::two_n, 1, true}, 8,
                 2, 520, 136, 72);
}
