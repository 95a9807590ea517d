// GEMMs of ranks (bf16) on two GPUs ($PEER_RANKS), a thread a rank: as all ranks tune them in step,
// as several launches (the fastest such candidate), as one (likewise), and the bare GEMM of all
// rows, as tuned. Microseconds of one operation among many in a row, of the slowest rank.
//
//   perf_peer_gemm [SECONDS [SIZES [EVALUATIONS [all]]]]
//
// SECONDS and EVALUATIONS: of tuning each problem. SIZES: how many of them. all: the times of all
// candidates, too.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "kiln/kernels/gemm.hpp"
#include "kiln/kernels/gemm_all_gather.hpp"
#include "kiln/kernels/gemm_reduce_scatter.hpp"
#include "peer_rank.hpp"

namespace {

using kiln::bfloat16;
using namespace kiln::templates;

using perf::area, perf::noise, perf::kRanks;

/// `m`: rows of all ranks. All-gather: `n` columns of each. Reduce-scatter: `k` of each.
struct Size {
  int m, n, k;
};
constexpr std::array<Size, 10> kSizes{{{8192, 4096, 8192},
                                       {512, 4096, 8192},
                                       {4096, 2048, 8192},
                                       {8192, 14336, 4096},
                                       {8192, 2048, 8192},
                                       {4096, 4096, 4096},
                                       {128, 4096, 8192},
                                       {2048, 4096, 4096},
                                       {1024, 14336, 4096},
                                       {16384, 2048, 4096}}};

using Rows = std::vector<perf::PeerRow>;  // of all ranks

kiln::SymmetricOptions largest() {
  std::size_t bytes = 0;
  for (const auto& [m, n, k] : kSizes)
    bytes = std::max({bytes, all_gather_bytes<bfloat16>(m / kRanks, k, kRanks),
                      reduce_scatter_bytes<bfloat16>(m / kRanks, n, kRanks)});
  return {.bytes = bytes, .flags = kPeerGemmFlags};
}

class Rank : public perf::PeerRank {
 public:
  using PeerRank::PeerRank;

  void measure(const Size& size, perf::PeerRow& gather, perf::PeerRow& scatter) {
    const auto [m, n, k] = size;
    const PeerGemmProblem problem{m / kRanks, n, k, kRanks};
    const auto a = runtime_.array(noise(area(m, k))), b = runtime_.array(noise(area(n, k)));
    auto c = runtime_.array<bfloat16>(area(m, n));
    const int times = std::clamp(static_cast<int>(0.03 * 0.7e15 / (2.0 * m * n * k)), 10, 300);
    const AllGatherGemm<bfloat16> gathers(runtime_, memory_);
    const ReduceScatterGemm<bfloat16> scatters(runtime_, memory_);
    const auto gemm = runtime_.tuned(gemm_kernel<bfloat16>());
    gemm.tune({m, n, k}, tuning_);
    const auto bare = [&, m = m, n = n, k = k] { gemm({}, c.data(), a.data(), b.data(), m, n, k); };
    const auto gather_with = [&](const auto& handle) {
      handle(kiln::Stream{}, c.data(), a.data(), b.data(),
             static_cast<const bfloat16*>(memory_.data()), a.data(), memory_.peers(),
             size.m / kRanks, size.n, size.k, kRanks);
    };
    const auto scatter_with = [&](const auto& handle) {
      handle(kiln::Stream{}, c.data(), a.data(), b.data(), static_cast<bfloat16*>(memory_.data()),
             memory_.peers(), size.m / kRanks, size.n, size.k, kRanks);
    };
    compare(gather, gathers, problem, times, gather_with, bare);
    compare(scatter, scatters, problem, times, scatter_with, bare);
  }
};

void print(const char* what, const Size& size, const Rows& rows) {
  const auto slowest = [&](double perf::PeerRow::* field) { return perf::slowest(rows, field); };
  const double tuned = slowest(&perf::PeerRow::tuned), apart = slowest(&perf::PeerRow::apart),
               joined = slowest(&perf::PeerRow::joined), bare = slowest(&perf::PeerRow::bare);
  if (tuned == 0) return;
  std::printf("%s %5d %5d %5d %9.1f %9.1f %9.1f %9.1f %8.3f %8.3f %6.1f s %8zu  %s\n", what, size.m,
              size.n, size.k, 1e6 * tuned, 1e6 * apart, 1e6 * joined, 1e6 * bare,
              slowest(&perf::PeerRow::of_bare), apart / tuned, slowest(&perf::PeerRow::tuning),
              rows[0].measured, rows[0].config.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (!perf::has_ranks()) return 77;
  kiln::TuneOptions tuning;
  tuning.max_seconds = argc > 1 ? std::atof(argv[1]) : 6;
  tuning.max_evaluations = argc > 3 ? std::size_t(std::atoi(argv[3])) : 32;
  const std::size_t sizes =
      std::min(kSizes.size(), argc > 2 ? std::size_t(std::atoi(argv[2])) : kSizes.size());
  const bool all = argc > 4;
  const Rows none(static_cast<std::size_t>(kRanks));
  std::vector<Rows> gather(sizes, none), scatter = gather;
  const bool well = perf::on_ranks([&](std::size_t r, auto ranks, const auto& store) {
    Rank rank(static_cast<int>(r), std::move(ranks), tuning, store, largest());
    for (std::size_t i = 0; i < sizes; ++i) rank.measure(kSizes[i], gather[i][r], scatter[i][r]);
    rank.close();
  });
  std::printf("%-20s %9s %9s %9s %9s %8s %8s %8s %8s\n", "   m     n     k", "tuned us", "apart us",
              "one us", "bare us", "of bare", "speedup", "tuned in", "measured");
  for (std::size_t i = 0; i < sizes; ++i) print("AG", kSizes[i], gather[i]);
  for (std::size_t i = 0; i < sizes; ++i) print("RS", kSizes[i], scatter[i]);
  double tuning_seconds = 0;
  bool alike = true;
  for (const std::vector<Rows>* operation : {&gather, &scatter})
    for (const Rows& ranks : *operation) {
      tuning_seconds += perf::slowest(ranks, &perf::PeerRow::tuning);
      for (const perf::PeerRow& rank : ranks)
        alike = alike && !rank.digest.empty() && rank.digest == ranks[0].digest;
    }
  std::printf("%zu tunings: %.1f s; plan digests are %s on all ranks\n", 2 * sizes, tuning_seconds,
              alike ? "the same" : "NOT THE SAME");
  for (std::size_t i = 0; all && i < sizes; ++i)
    for (const perf::PeerRow* row : {&gather[i][0], &scatter[i][0]})
      std::printf("%s %d x %d x %d, compiled here: %zu\n%s", row == &gather[i][0] ? "AG" : "RS",
                  kSizes[i].m, kSizes[i].n, kSizes[i].k, row->compiled, row->all.c_str());
  return well && alike ? 0 : 1;
}
