// A layer of experts (bf16) on two GPUs, a thread a rank: tokens come to their experts and are
// multiplied by gate and up; activation; rows are multiplied by down, added and brought back.
// Microseconds of one operation among many in a row, of the slowest rank: the two GEMMs as both
// ranks tune them in step, and the fastest candidates of several launches and of one; then all
// three as a layer, with the configs that were tuned. The same by PyTorch is scripts/experts.py.
//
//   perf_experts [SECONDS [EVALUATIONS [all]]]
//   perf_experts draws
//
// SECONDS and EVALUATIONS: of tuning each problem. all: the times of all candidates, too. draws:
// only checksums of which expert gets which token.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "kiln/kernels/gated_activation.hpp"
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

/// Numbers as good as random, which scripts/experts.py draws, too.
unsigned draw(unsigned index, int count) {
  unsigned bits = index * 2654435761u;
  bits = (bits ^ bits >> 15) * 2246822519u;
  return (bits ^ bits >> 13) % unsigned(count);
}

/// Which expert gets which token, as gemm_experts.hpp has it.
struct Routes {
  explicit Routes(const Layer& layer) {
    std::vector<std::vector<int>> choices(std::size_t(layer.experts));
    for (int choice = 0; choice < layer.tokens * layer.top; ++choice) {
      const unsigned first = draw(2 * unsigned(choice), layer.experts);
      const unsigned second = draw(2 * unsigned(choice) + 1, layer.experts);
      // Skewed: the first experts get several times as many as the last ones.
      const unsigned expert = layer.skewed ? std::min(first, second) : first;
      choices[expert].push_back(choice);
      checksum = checksum * 31 + expert;
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
  unsigned checksum = 0;
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

  void measure(const Layer& l, PeerRow& gather, PeerRow& combine, PeerRow& layer) {
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
    auto rows = runtime_.array(noise(area(up.rows(), inner)));
    auto products = runtime_.array<bfloat16>(area(up.rows(), up.n));
    auto out = runtime_.array<bfloat16>(area(m, l.hidden));
    const ExpertsGather<bfloat16> gathers(runtime_, memory_);
    const ExpertsCombine<bfloat16> combines(runtime_, memory_);
    const auto multiply_up = [&](const auto& handle) {
      handle(kiln::Stream{}, products.data(), own.data(), up_weights.data(),
             static_cast<const bfloat16*>(memory_.data()), tokens.data(), ends.data(),
             memory_.peers(), up.m, up.n, up.k, up.groups, up.top, up.ranks);
    };
    const auto multiply_down = [&](const auto& handle) {
      handle(kiln::Stream{}, out.data(), static_cast<const bfloat16*>(rows.data()),
             down_weights.data(), ends.data(), places.data(), weights.data(), memory_.peers(),
             down.m, down.n, down.k, down.groups, down.top, down.ranks);
    };
    compare(gather, gathers, up, kTimes, multiply_up);
    compare(combine, combines, down, kTimes, multiply_down);
    const auto activate = runtime_.tuned(gated_activation_kernel<bfloat16, kiln::epilogue::Silu>());
    kiln::TuneOptions alike = tuning_;
    alike.ranks = ranks_;
    layer.tuning = gather.tuning + combine.tuning +
                   perf::seconds([&] { activate.tune(Activations{up.rows(), inner}, alike); });
    memory_.within(kiln::deadline_in(60), [&] {
      layer.tuned = seconds_each(
          [&] {
            multiply_up(gathers.handle());
            activate(kiln::Stream{}, rows.data(), products.data(), up.rows(), inner);
            multiply_down(combines.handle());
          },
          kTimes);
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

/// scripts/experts.py reads these lines.
void print(const Layer& l, const Rows& layer) {
  if (layer[0].tuned == 0) return;
  std::printf("layer    %5d %-8s %9.1f us, tuned in %.1f s, draws %u\n", l.tokens,
              l.skewed ? "skewed" : "balanced", 1e6 * perf::slowest(layer, &PeerRow::tuned),
              perf::slowest(layer, &PeerRow::tuning), Routes(l).checksum);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "draws") {
    for (const Layer& l : kLayers)
      std::printf("%d %s %u\n", l.tokens, l.skewed ? "skewed" : "balanced", Routes(l).checksum);
    return 0;
  }
  if (!perf::has_ranks()) return 77;
  kiln::TuneOptions tuning;
  tuning.max_seconds = argc > 1 ? std::atof(argv[1]) : 10;
  tuning.max_evaluations = argc > 2 ? std::size_t(std::atoi(argv[2])) : 40;
  const bool all = argc > 3;
  std::array<Rows, kLayers.size()> gather;
  gather.fill(Rows(static_cast<std::size_t>(kRanks)));
  auto combine = gather, layer = gather;
  const bool well = perf::on_ranks([&](std::size_t r, auto ranks, const auto& store) {
    Rank rank(static_cast<int>(r), std::move(ranks), tuning, store, largest());
    for (std::size_t i = 0; i < kLayers.size(); ++i)
      rank.measure(kLayers[i], gather[i][r], combine[i][r], layer[i][r]);
    rank.close();
  });
  std::printf("%-8s %5s %-8s %9s %9s %9s %10s %8s\n", "", "tokens", "routing", "tuned us",
              "apart us", "one us", "tuned in", "measured");
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    print("gather", kLayers[i], gather[i]);
    print("combine", kLayers[i], combine[i]);
    print(kLayers[i], layer[i]);
    if (all) std::printf("%s%s", gather[i][0].all.c_str(), combine[i][0].all.c_str());
  }
  return well ? 0 : 1;
}
