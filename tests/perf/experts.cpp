// The two GEMMs of a layer of experts (bf16) on two GPUs, a thread a rank: tokens come to their
// experts and are multiplied by gate and up, rows are multiplied by down, added and brought back.
// Microseconds of one operation among many in a row, of the slowest rank: as both ranks tune them
// in step, and the fastest candidates of several launches and of one.
//
//   perf_experts [SECONDS [EVALUATIONS [all]]]
//
// SECONDS and EVALUATIONS: of tuning each problem. all: the times of all candidates, too.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "kiln/kernels/gemm_experts_combine.hpp"
#include "kiln/kernels/gemm_experts_gather.hpp"
#include "peer_rank.hpp"

namespace {

using kiln::bfloat16;
using namespace kiln::templates;

using perf::area, perf::noise, perf::kRanks, perf::PeerRow;
constexpr int kTimes = 100;  // operations in a row

/// A layer: tokens of all ranks, the model's and the experts' dimension (of all ranks), experts.
struct Layer {
  int tokens, hidden, inner, experts, top;
  bool skewed;
};
constexpr std::array<Layer, 3> kLayers{{{8192, 2048, 1536, 32, 2, false},
                                        {8192, 2048, 1536, 32, 2, true},
                                        {2048, 2048, 1536, 32, 2, false}}};

/// Which expert gets which token, as gemm_experts.hpp has it.
struct Routes {
  explicit Routes(const Layer& layer) {
    std::mt19937 random(5);
    std::vector<std::vector<int>> choices(std::size_t(layer.experts));
    for (int t = 0; t < layer.tokens; ++t)
      for (int e = 0; e < layer.top; ++e) {
        // Skewed: the first experts get several times as many as the last ones.
        const unsigned count = unsigned(layer.experts);
        const unsigned drawn = random() % count;
        choices[layer.skewed ? std::min(drawn, unsigned(random() % count)) : drawn].push_back(
            t * layer.top + e);
      }
    places.resize(area(layer.tokens, layer.top));
    for (const auto& its : choices) {
      for (const int choice : its) {
        places[std::size_t(choice)] = int(tokens.size());
        tokens.push_back(choice / layer.top);
      }
      ends.push_back(int(tokens.size()));
    }
  }
  std::vector<int> ends, tokens, places;
};

kiln::SymmetricOptions largest() {
  std::size_t bytes = 0;
  for (const Layer& l : kLayers)
    bytes =
        std::max({bytes, expert_gather_bytes<bfloat16>(l.tokens / kRanks, l.hidden, l.top, kRanks),
                  expert_combine_bytes<bfloat16>(l.tokens / kRanks, l.hidden, kRanks)});
  return {.bytes = bytes, .flags = kExpertFlags};
}

class Rank : public perf::PeerRank {
 public:
  using PeerRank::PeerRank;

  void measure(const Layer& l, PeerRow& gather, PeerRow& combine) {
    const Routes routes(l);
    const int m = l.tokens / kRanks, inner = l.inner / kRanks;
    const ExpertsProblem up{m, 2 * inner, l.hidden, l.experts, l.top, kRanks};
    const ExpertsProblem down{m, l.hidden, inner, l.experts, l.top, kRanks};
    const auto ends = runtime_.array(routes.ends), tokens = runtime_.array(routes.tokens),
               places = runtime_.array(routes.places);
    const auto weights = runtime_.array(std::vector<float>(area(l.tokens, l.top), .5f));
    const auto own = runtime_.array(noise(area(m, l.hidden)));
    const auto up_weights = runtime_.array(noise(area(l.experts * up.n, up.k)));
    const auto down_weights = runtime_.array(noise(area(l.experts * down.n, down.k)));
    const auto rows = runtime_.array(noise(area(up.rows(), inner)));
    auto products = runtime_.array<bfloat16>(area(up.rows(), up.n));
    auto out = runtime_.array<bfloat16>(area(m, l.hidden));
    const ExpertsGather<bfloat16> gathers(runtime_, memory_);
    const ExpertsCombine<bfloat16> combines(runtime_, memory_);
    compare(gather, gathers, up, kTimes, [&](const auto& handle) {
      handle(kiln::Stream{}, products.data(), own.data(), up_weights.data(),
             static_cast<const bfloat16*>(memory_.data()), tokens.data(), ends.data(),
             memory_.peers(), up.m, up.n, up.k, up.groups, up.top, up.ranks);
    });
    compare(combine, combines, down, kTimes, [&](const auto& handle) {
      handle(kiln::Stream{}, out.data(), rows.data(), down_weights.data(), ends.data(),
             places.data(), weights.data(), memory_.peers(), down.m, down.n, down.k, down.groups,
             down.top, down.ranks);
    });
  }
};

using Rows = std::vector<PeerRow>;  // of all ranks

void print(const char* what, const Layer& l, const Rows& rows) {
  const auto slowest = [&](double PeerRow::* field) { return 1e6 * perf::slowest(rows, field); };
  if (rows[0].tuned == 0) return;
  std::printf("%-8s %5d %-8s %9.1f %9.1f %9.1f %8.1f s %8zu  %s\n", what, l.tokens,
              l.skewed ? "skewed" : "balanced", slowest(&PeerRow::tuned), slowest(&PeerRow::apart),
              slowest(&PeerRow::joined), 1e-6 * slowest(&PeerRow::tuning), rows[0].measured,
              rows[0].config.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (!perf::has_ranks()) return 77;
  kiln::TuneOptions tuning;
  tuning.max_seconds = argc > 1 ? std::atof(argv[1]) : 10;
  tuning.max_evaluations = argc > 2 ? std::size_t(std::atoi(argv[2])) : 40;
  const bool all = argc > 3;
  std::array<Rows, kLayers.size()> gather;
  gather.fill(Rows(static_cast<std::size_t>(kRanks)));
  auto combine = gather;
  const bool well = perf::on_ranks([&](std::size_t r, auto ranks, const auto& store) {
    Rank rank(static_cast<int>(r), std::move(ranks), tuning, store, largest());
    for (std::size_t i = 0; i < kLayers.size(); ++i)
      rank.measure(kLayers[i], gather[i][r], combine[i][r]);
    rank.close();
  });
  std::printf("%-8s %5s %-8s %9s %9s %9s %10s %8s\n", "", "tokens", "routing", "tuned us",
              "apart us", "one us", "tuned in", "measured");
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    print("gather", kLayers[i], gather[i]);
    print("combine", kLayers[i], combine[i]);
    if (all) std::printf("%s%s", gather[i][0].all.c_str(), combine[i][0].all.c_str());
  }
  return well ? 0 : 1;
}
