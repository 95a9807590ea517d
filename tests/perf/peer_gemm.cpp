// GEMMs of ranks (bf16) on two GPUs, a thread a rank: as both ranks tune them in step, as two
// launches (the fastest such candidate), as one (likewise), and the bare GEMM of all rows, as
// tuned. Microseconds of one operation among many in a row, of the slowest rank.
//
//   perf_peer_gemm [SECONDS [SIZES [EVALUATIONS [all]]]]
//
// SECONDS and EVALUATIONS: of tuning each problem. SIZES: how many of them. all: the times of all
// candidates, too.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kiln/communicators.hpp"
#include "kiln/kernels/gemm.hpp"
#include "kiln/kernels/gemm_all_gather.hpp"
#include "kiln/kernels/gemm_reduce_scatter.hpp"
#include "perf.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "temporary_directory.hpp"

namespace {

using kiln::bfloat16;
using namespace kiln::templates;

constexpr int kRanks = 2;

/// `m`: rows of all ranks. All-gather: `n` columns of each. Reduce-scatter: `k` of each.
struct Size {
  int m, n, k;
};
constexpr std::array<Size, 7> kSizes{{{8192, 4096, 8192},
                                      {512, 4096, 8192},
                                      {4096, 2048, 8192},
                                      {8192, 14336, 4096},
                                      {8192, 2048, 8192},
                                      {4096, 4096, 4096},
                                      {128, 4096, 8192}}};

struct Row {
  double tuned = 0, apart = 0, joined = 0, bare = 0, tuning = 0;
  std::size_t compiled = 0, measured = 0;
  std::string config, all;
};
using Rows = std::vector<Row>;

std::vector<bfloat16> noise(std::size_t count) {
  std::vector<bfloat16> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = bfloat16(static_cast<float>((i * 2654435761u >> 7) % 255) / 128 - 1);
  return values;
}
std::size_t area(int x, int y) { return static_cast<std::size_t>(x) * static_cast<std::size_t>(y); }

class Rank {
 public:
  Rank(int device, std::shared_ptr<kiln::Communicator> ranks, const kiln::TuneOptions& tuning,
       const std::filesystem::path& store)
      : runtime_(on_a_gpu(device, store)), ranks_(std::move(ranks)), tuning_(tuning) {
    std::size_t bytes = 0;
    for (const auto& [m, n, k] : kSizes)
      bytes = std::max({bytes, all_gather_bytes<bfloat16>(m / kRanks, k, kRanks),
                        reduce_scatter_bytes<bfloat16>(m / kRanks, n, kRanks)});
    memory_ = std::make_unique<kiln::SymmetricMemory>(
        runtime_, ranks_, kiln::SymmetricOptions{.bytes = bytes, .flags = kPeerGemmFlags});
  }

  void measure(const Size& size, Row& gather, Row& scatter) {
    const auto [m, n, k] = size;
    const auto a = runtime_.array(noise(area(m, k))), b = runtime_.array(noise(area(n, k)));
    auto c = runtime_.array<bfloat16>(area(m, n));
    const int times = std::clamp(static_cast<int>(0.03 * 0.7e15 / (2.0 * m * n * k)), 10, 300);
    const AllGatherGemm<bfloat16> gathers(runtime_, *memory_);
    const ReduceScatterGemm<bfloat16> scatters(runtime_, *memory_);
    const auto gemm = runtime_.tuned(gemm_kernel<bfloat16>());
    memory_->within(kiln::deadline_in(200), [&] {
      gemm.tune({m, n, k}, tuning_);
      memory_->barrier();
      gather.bare = scatter.bare = seconds_each(
          [&, m = m, n = n, k = k] { gemm({}, c.data(), a.data(), b.data(), m, n, k); }, times);
      compare(gather, gathers, size, times, [&](const auto& handle) {
        handle(kiln::Stream{}, c.data(), a.data(), b.data(),
               static_cast<const bfloat16*>(memory_->data()), a.data(), memory_->peers(),
               size.m / kRanks, size.n, size.k, kRanks);
      });
      compare(scatter, scatters, size, times, [&](const auto& handle) {
        handle(kiln::Stream{}, c.data(), a.data(), b.data(),
               static_cast<bfloat16*>(memory_->data()), memory_->peers(), size.m / kRanks, size.n,
               size.k, kRanks);
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
  void compare(Row& row, const Operation& operation, const Size& size, int times,
               const Launch& launch) {
    kiln::TuneResult result;
    row.tuning = perf::seconds(
        [&] { result = operation.tune(size.m / kRanks, size.n, size.k, ranks_, tuning_); });
    row.config = result.describe(result.winner());
    row.compiled = result.compiled;
    row.measured = result.count(kiln::CandidateStatus::measured);
    for (const kiln::Candidate& candidate : result.candidates)
      row.all += "  " + std::to_string(1e6 * candidate.seconds) + " us  " +
                 kiln::to_string(candidate.status) + " " + candidate.reason + "  " +
                 result.describe(candidate) + "\n";
    row.tuned = seconds_each([&] { launch(operation.handle()); }, times);
    for (const bool overlap : {false, true}) {
      const kiln::Candidate* best = nullptr;  // by times that all ranks have agreed on
      for (const kiln::Candidate& candidate : result.candidates)
        if (candidate.status == kiln::CandidateStatus::measured &&
            kiln::from_values<PeerGemm>(candidate.config).overlap == overlap &&
            (!best || candidate.seconds < best->seconds))
          best = &candidate;
      if (!best) continue;
      const auto kind = operation.handle().with_config(kiln::from_values<PeerGemm>(best->config));
      (overlap ? row.joined : row.apart) = seconds_each([&] { launch(kind); }, times);
    }
  }

  template <class Launch>
  double seconds_each(const Launch& launch, int times) {
    for (int i = 0; i < 3; ++i) launch();
    runtime_.synchronize();
    std::vector<double> rounds;
    for (int round = 0; round < 5; ++round) {
      memory_->barrier();
      rounds.push_back(perf::seconds([&] {
                         for (int i = 0; i < times; ++i) launch();
                         runtime_.synchronize();
                       }) /
                       times);
    }
    return perf::median(rounds);
  }

  kiln::Runtime runtime_;
  std::shared_ptr<kiln::Communicator> ranks_;
  kiln::TuneOptions tuning_;
  std::unique_ptr<kiln::SymmetricMemory> memory_;
};

void print(const char* what, const Size& size, const Row& one, const Row& other) {
  const auto slowest = [&](double Row::* field) { return std::max(one.*field, other.*field); };
  const double tuned = slowest(&Row::tuned), apart = slowest(&Row::apart),
               joined = slowest(&Row::joined), bare = slowest(&Row::bare);
  if (tuned == 0) return;
  std::printf("%s %5d %5d %5d %9.1f %9.1f %9.1f %9.1f %8.3f %8.3f %6.1f s %8zu  %s\n", what, size.m,
              size.n, size.k, 1e6 * tuned, 1e6 * apart, 1e6 * joined, 1e6 * bare, tuned / bare,
              apart / tuned, slowest(&Row::tuning), one.measured, one.config.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (const int gpus = kiln::runtime::probe_cuda().devices; gpus < kRanks) {
    std::printf("skipped: %d GPUs; it needs %d\n", gpus, kRanks);
    return 77;
  }
  kiln::TuneOptions tuning;
  tuning.max_seconds = argc > 1 ? std::atof(argv[1]) : 6;
  tuning.max_evaluations = argc > 3 ? std::size_t(std::atoi(argv[3])) : 32;
  const std::size_t sizes =
      std::min(kSizes.size(), argc > 2 ? std::size_t(std::atoi(argv[2])) : kSizes.size());
  const bool all = argc > 4;
  const kiln::test::TemporaryDirectory store;
  auto ends = kiln::thread_communicators(kRanks);
  std::array<Rows, kRanks> gather{Rows(sizes), Rows(sizes)}, scatter = gather;
  std::array<std::string, kRanks> failed;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < kRanks; ++r)
    threads.emplace_back([&, r] {
      try {
        Rank rank(static_cast<int>(r), std::move(ends[r]), tuning, store.path());
        for (std::size_t i = 0; i < sizes; ++i)
          rank.measure(kSizes[i], gather[r][i], scatter[r][i]);
        rank.close();
      } catch (const std::exception& error) {
        failed[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("%-20s %9s %9s %9s %9s %8s %8s %8s %8s\n", "   m     n     k", "tuned us", "apart us",
              "one us", "bare us", "of bare", "speedup", "tuned in", "measured");
  for (std::size_t i = 0; i < sizes; ++i) print("AG", kSizes[i], gather[0][i], gather[1][i]);
  for (std::size_t i = 0; i < sizes; ++i) print("RS", kSizes[i], scatter[0][i], scatter[1][i]);
  for (std::size_t i = 0; all && i < sizes; ++i)
    for (const Row* row : {&gather[0][i], &scatter[0][i]})
      std::printf("%s %d x %d x %d, compiled here: %zu\n%s", row == &gather[0][i] ? "AG" : "RS",
                  kSizes[i].m, kSizes[i].n, kSizes[i].k, row->compiled, row->all.c_str());
  for (const std::string& text : failed)
    if (!text.empty()) std::printf("failed: %s\n", text.c_str());
  return failed[0].empty() && failed[1].empty() ? 0 : 1;
}
