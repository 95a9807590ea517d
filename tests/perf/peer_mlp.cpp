// A gated MLP divided among two GPUs ($PEER_RANKS): all-gather + GEMM, activation, GEMM +
// reduce-scatter. Tuned in its place, as a region, against the same kernels tuned one by one, and
// untuned. The same by PyTorch is scripts/peer_mlp.py.
//
//   perf_peer_mlp [SECONDS [EVALUATIONS]]    of each tuning
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kiln/kernels/gated_activation.hpp"
#include "kiln/kernels/gemm_all_gather.hpp"
#include "kiln/kernels/gemm_reduce_scatter.hpp"
#include "kiln/region.hpp"
#include "peer_rank.hpp"

namespace {

using kiln::bfloat16;
using namespace kiln::templates;
using perf::area, perf::kRanks, perf::noise;

/// `tokens` of all ranks, `inner` of all ranks.
struct Layer {
  int tokens, hidden, inner;
};
constexpr std::array<Layer, 4> kLayers{
    {{8192, 4096, 14336}, {2048, 4096, 14336}, {512, 4096, 14336}, {8192, 8192, 28672}}};

/// Seconds of one layer among many in a row.
struct Row {
  double untuned = 0, parts = 0, region = 0;
  double parts_tuned_in = 0, region_tuned_in = 0;
  std::size_t runs = 0;
  std::string chosen;
};

kiln::SymmetricOptions largest() {
  std::size_t bytes = 0;
  for (const Layer& l : kLayers)
    bytes = std::max({bytes, all_gather_bytes<bfloat16>(l.tokens / kRanks, l.hidden, kRanks),
                      reduce_scatter_bytes<bfloat16>(l.tokens / kRanks, l.hidden, kRanks)});
  return {.bytes = bytes, .flags = kPeerGemmFlags};
}

class Rank : public perf::PeerRank {
 public:
  using PeerRank::PeerRank;

  void measure(const Layer& l, Row& row) {
    const int m = l.tokens / kRanks, inner = l.inner / kRanks;
    const auto x = runtime_.array(noise(area(m, l.hidden)));
    const auto gate_up = runtime_.array(noise(area(2 * inner, l.hidden)));
    const auto down = runtime_.array(noise(area(l.hidden, inner)));
    auto projected = runtime_.array<bfloat16>(area(l.tokens, 2 * inner));
    auto activated = runtime_.array<bfloat16>(area(l.tokens, inner));
    auto y = runtime_.array<bfloat16>(area(m, l.hidden));
    const AllGatherGemm<bfloat16> gather(runtime_, memory_);
    const ReduceScatterGemm<bfloat16> scatter(runtime_, memory_);
    const auto activate = runtime_.tuned(gated_activation_kernel<bfloat16, kiln::epilogue::Silu>());
    const auto mlp = [&](kiln::Region& region) {
      const kiln::Stream stream{};
      gather(region, stream, projected.data(), x.data(), gate_up.data(), m, 2 * inner, l.hidden);
      region(activate, stream, activated.data(), projected.data(), l.tokens, inner);
      scatter(region, stream, y.data(), activated.data(), down.data(), m, l.hidden, inner);
    };
    const PeerGemmProblem up{m, 2 * inner, l.hidden, kRanks}, out{m, l.hidden, inner, kRanks};
    const Activations middle{l.tokens, inner};
    // What launches get now, whatever is tuned later.
    const auto as_now = [&] {
      const auto g = gather.handle().with_config(gather.handle().config(up));
      const auto a = activate.with_config(activate.config(middle));
      const auto s = scatter.handle().with_config(scatter.handle().config(out));
      return std::function<void()>([&, g, a, s] {
        const kiln::Stream stream{};
        g(stream, projected.data(), x.data(), gate_up.data(),
          static_cast<const bfloat16*>(memory_.data()), x.data(), memory_.peers(), m, 2 * inner,
          l.hidden, kRanks);
        a(stream, activated.data(), projected.data(), l.tokens, inner);
        s(stream, y.data(), activated.data(), down.data(), static_cast<bfloat16*>(memory_.data()),
          memory_.peers(), m, l.hidden, inner, kRanks);
      });
    };
    std::array<std::function<void()>, 3> ways;  // untuned, by parts, as a region
    ways[0] = as_now();
    row.parts_tuned_in = perf::seconds([&] {
      gather.tune(m, 2 * inner, l.hidden, ranks_, tuning_);
      kiln::TuneOptions alike = tuning_;
      alike.ranks = ranks_;
      activate.tune(middle, alike);
      scatter.tune(m, l.hidden, inner, ranks_, tuning_);
    });
    ways[1] = as_now();
    kiln::RegionOptions options;
    options.ranks = ranks_;
    options.together.guard = memory_.guard(10);
    options.before = [&] { memory_.barrier(); };  // else a run begins with waiting for the other
    options.repeats = 9;
    options.calls = 4;  // in a row, as they are measured below
    options.max_evaluations = tuning_.max_evaluations.value_or(0);
    options.max_seconds = 3 * tuning_.max_seconds.value_or(0);
    options.retune = true;
    kiln::RegionResult result;
    row.region_tuned_in =
        perf::seconds([&] { result = kiln::tune_region(runtime_, mlp, options); });
    row.runs = result.runs;
    for (const kiln::RegionSite& site : result.sites)
      row.chosen +=
          "  " + site.tuned.kernel + " " + site.tuned.describe(site.tuned.winner()) + "\n";
    ways[2] = as_now();
    // In turns, so that a GPU that grows warm slows all of them down.
    const int times =
        std::clamp(static_cast<int>(0.01 * 0.7e15 / (6.0 * l.tokens * l.hidden * inner)), 5, 50);
    std::array<std::vector<double>, 3> rounds;
    memory_.within(kiln::deadline_in(100), [&] {
      for (int round = 0; round < 9; ++round)
        for (std::size_t way = 0; way < ways.size(); ++way)
          rounds[way].push_back(seconds_each(ways[way], times, 1));
    });
    row.untuned = perf::median(rounds[0]);
    row.parts = perf::median(rounds[1]);
    row.region = perf::median(rounds[2]);
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (!perf::has_ranks()) return 77;
  kiln::TuneOptions tuning;
  tuning.max_seconds = argc > 1 ? std::atof(argv[1]) : 10;
  tuning.max_evaluations = argc > 2 ? std::size_t(std::atoi(argv[2])) : 32;
  std::array<std::vector<Row>, kLayers.size()> rows;
  rows.fill(std::vector<Row>(static_cast<std::size_t>(kRanks)));
  const bool well = perf::on_ranks([&](std::size_t r, auto ranks, const auto& store) {
    Rank rank(static_cast<int>(r), std::move(ranks), tuning, store, largest());
    for (std::size_t i = 0; i < kLayers.size(); ++i) rank.measure(kLayers[i], rows[i][r]);
    rank.close();
  });
  std::printf("%6s %6s %6s %11s %9s %10s %9s %11s %5s\n", "tokens", "hidden", "inner", "untuned us",
              "parts us", "region us", "tuned in", "region in", "runs");
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    const auto slowest = [&](double Row::* field) { return perf::slowest(rows[i], field); };
    if (rows[i][0].region == 0) continue;
    std::printf("%6d %6d %6d %11.1f %9.1f %10.1f %7.1f s %9.1f s %5zu\n%s", kLayers[i].tokens,
                kLayers[i].hidden, kLayers[i].inner, 1e6 * slowest(&Row::untuned),
                1e6 * slowest(&Row::parts), 1e6 * slowest(&Row::region),
                slowest(&Row::parts_tuned_in), slowest(&Row::region_tuned_in), rows[i][0].runs,
                rows[i][0].chosen.c_str());
  }
  return well ? 0 : 1;
}
