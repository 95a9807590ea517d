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
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kiln/communicators.hpp"
#include "kiln/kernels/gemm_experts_combine.hpp"
#include "kiln/kernels/gemm_experts_gather.hpp"
#include "perf.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "temporary_directory.hpp"

namespace {

using kiln::bfloat16;
using namespace kiln::templates;

constexpr int kRanks = 2;

/// A layer: tokens of all ranks, the model's and the experts' dimension (of all ranks), experts.
struct Layer {
  int tokens, hidden, inner, experts, top;
  bool skewed;
};
constexpr std::array<Layer, 3> kLayers{{{8192, 2048, 1536, 32, 2, false},
                                        {8192, 2048, 1536, 32, 2, true},
                                        {2048, 2048, 1536, 32, 2, false}}};

struct Row {
  double tuned = 0, apart = 0, joined = 0, tuning = 0;
  std::size_t measured = 0;
  std::string config, all;
};

std::size_t area(int x, int y) { return static_cast<std::size_t>(x) * static_cast<std::size_t>(y); }
std::vector<bfloat16> noise(std::size_t count) {
  std::vector<bfloat16> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = bfloat16(static_cast<float>((i * 2654435761u >> 7) % 255) / 128 - 1);
  return values;
}

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

class Rank {
 public:
  Rank(int device, std::shared_ptr<kiln::Communicator> ranks, const kiln::TuneOptions& tuning,
       const std::filesystem::path& store)
      : runtime_(on_a_gpu(device, store)), ranks_(std::move(ranks)), tuning_(tuning) {
    std::size_t bytes = 0;
    for (const Layer& l : kLayers)
      bytes = std::max({bytes,
                        expert_gather_bytes<bfloat16>(l.tokens / kRanks, l.hidden, l.top, kRanks),
                        expert_combine_bytes<bfloat16>(l.tokens / kRanks, l.hidden, kRanks)});
    memory_ = std::make_unique<kiln::SymmetricMemory>(
        runtime_, ranks_, kiln::SymmetricOptions{.bytes = bytes, .flags = kExpertFlags});
  }

  void measure(const Layer& l, Row& gather, Row& combine) {
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
    const ExpertsGather<bfloat16> gathers(runtime_, *memory_);
    const ExpertsCombine<bfloat16> combines(runtime_, *memory_);
    memory_->within(kiln::deadline_in(200), [&] {
      compare(gather, gathers, up, [&](const auto& handle) {
        handle(kiln::Stream{}, products.data(), own.data(), up_weights.data(),
               static_cast<const bfloat16*>(memory_->data()), tokens.data(), ends.data(),
               memory_->peers(), up.m, up.n, up.k, up.groups, up.top, up.ranks);
      });
      compare(combine, combines, down, [&](const auto& handle) {
        handle(kiln::Stream{}, out.data(), rows.data(), down_weights.data(), ends.data(),
               places.data(), weights.data(), memory_->peers(), down.m, down.n, down.k, down.groups,
               down.top, down.ranks);
      });
    });
  }
  void close() { memory_->close(); }

 private:
  static kiln::RuntimeOptions on_a_gpu(int device, const std::filesystem::path& store) {
    kiln::RuntimeOptions options;
    options.device = "cuda:" + std::to_string(device);
    options.store.directory = store;
    options.mode = kiln::Mode::untuned;
    return options;
  }

  template <class Operation, class Launch>
  void compare(Row& row, const Operation& operation, const ExpertsProblem& problem,
               const Launch& launch) {
    kiln::TuneResult result;
    row.tuning = perf::seconds([&] { result = operation.tune(problem, ranks_, tuning_); });
    row.config = result.describe(result.winner());
    row.measured = result.count(kiln::CandidateStatus::measured);
    for (const kiln::Candidate& candidate : result.candidates)
      row.all += "  " + std::to_string(1e6 * candidate.seconds) + " us  " +
                 kiln::to_string(candidate.status) + " " + candidate.reason + "  " +
                 result.describe(candidate) + "\n";
    row.tuned = seconds_each([&] { launch(operation.handle()); });
    for (const bool overlap : {false, true}) {
      const kiln::Candidate* best = nullptr;  // by times that all ranks have agreed on
      for (const kiln::Candidate& candidate : result.candidates)
        if (candidate.status == kiln::CandidateStatus::measured &&
            kiln::from_values<PeerGemm>(candidate.config).overlap == overlap &&
            (!best || candidate.seconds < best->seconds))
          best = &candidate;
      if (!best) continue;
      const auto kind = operation.handle().with_config(kiln::from_values<PeerGemm>(best->config));
      (overlap ? row.joined : row.apart) = seconds_each([&] { launch(kind); });
    }
  }

  template <class Launch>
  double seconds_each(const Launch& launch) {
    constexpr int kTimes = 100;
    for (int i = 0; i < 3; ++i) launch();
    runtime_.synchronize();
    std::vector<double> rounds;
    for (int round = 0; round < 5; ++round) {
      memory_->barrier();
      rounds.push_back(perf::seconds([&] {
                         for (int i = 0; i < kTimes; ++i) launch();
                         runtime_.synchronize();
                       }) /
                       kTimes);
    }
    return perf::median(rounds);
  }

  kiln::Runtime runtime_;
  std::shared_ptr<kiln::Communicator> ranks_;
  kiln::TuneOptions tuning_;
  std::unique_ptr<kiln::SymmetricMemory> memory_;
};

void print(const char* what, const Layer& l, const Row& one, const Row& other) {
  const auto slowest = [&](double Row::* field) {
    return 1e6 * std::max(one.*field, other.*field);
  };
  if (one.tuned == 0) return;
  std::printf("%-8s %5d %-8s %9.1f %9.1f %9.1f %8.1f s %8zu  %s\n", what, l.tokens,
              l.skewed ? "skewed" : "balanced", slowest(&Row::tuned), slowest(&Row::apart),
              slowest(&Row::joined), 1e-6 * slowest(&Row::tuning), one.measured,
              one.config.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (const int gpus = kiln::runtime::probe_cuda().devices; gpus < kRanks) {
    std::printf("skipped: %d GPUs; it needs %d\n", gpus, kRanks);
    return 77;
  }
  kiln::TuneOptions tuning;
  tuning.max_seconds = argc > 1 ? std::atof(argv[1]) : 10;
  tuning.max_evaluations = argc > 2 ? std::size_t(std::atoi(argv[2])) : 40;
  const bool all = argc > 3;
  const kiln::test::TemporaryDirectory store;
  auto ends = kiln::thread_communicators(kRanks);
  std::array<std::array<Row, kLayers.size()>, kRanks> gather, combine;
  std::array<std::string, kRanks> failed;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      try {
        Rank rank(static_cast<int>(r), std::move(ends[r]), tuning, store.path());
        for (std::size_t i = 0; i < kLayers.size(); ++i)
          rank.measure(kLayers[i], gather[r][i], combine[r][i]);
        rank.close();
      } catch (const std::exception& error) {
        failed[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("%-8s %5s %-8s %9s %9s %9s %10s %8s\n", "", "tokens", "routing", "tuned us",
              "apart us", "one us", "tuned in", "measured");
  for (std::size_t i = 0; i < kLayers.size(); ++i) {
    print("gather", kLayers[i], gather[0][i], gather[1][i]);
    print("combine", kLayers[i], combine[0][i], combine[1][i]);
    if (all) std::printf("%s%s", gather[0][i].all.c_str(), combine[0][i].all.c_str());
  }
  for (const std::string& text : failed)
    if (!text.empty()) std::printf("failed: %s\n", text.c_str());
  return failed[0].empty() && failed[1].empty() ? 0 : 1;
}
