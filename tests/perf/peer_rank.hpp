// What benchmarks of GEMMs of ranks share: a rank on a GPU, as a thread, that measures an operation
// as both ranks tune it in step, and the fastest candidates of several launches and of one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kiln/communicators.hpp"
#include "kiln/kernels/gemm_peers_kernel.hpp"
#include "perf.hpp"
#include "runtime/device/cuda/cuda_device.hpp"
#include "temporary_directory.hpp"

namespace perf {

/// Each on a GPU of its own: $PEER_RANKS, or 2.
inline const int kRanks = [] {
  const char* set = std::getenv("PEER_RANKS");
  return set ? std::max(2, std::atoi(set)) : 2;
}();

/// Seconds of one operation among many in a row.
struct PeerRow {
  double tuned = 0, apart = 0, joined = 0, bare = 0;
  double tuning = 0;  // seconds that tuning took
  std::size_t compiled = 0, measured = 0;
  double of_bare = 0;  // tuned over bare, of rounds in turns
  std::string config, all, digest;
};

/// The largest of what ranks have.
template <class Row>
double slowest(const std::vector<Row>& ranks, double Row::* field) {
  double most = 0;
  for (const Row& rank : ranks) most = std::max(most, rank.*field);
  return most;
}

inline std::size_t area(int x, int y) {
  return static_cast<std::size_t>(x) * static_cast<std::size_t>(y);
}
inline std::vector<kiln::bfloat16> noise(std::size_t count) {
  std::vector<kiln::bfloat16> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = kiln::bfloat16(static_cast<float>((i * 2654435761u >> 7) % 255) / 128 - 1);
  return values;
}

class PeerRank {
 public:
  PeerRank(int device, std::shared_ptr<kiln::Communicator> ranks, const kiln::TuneOptions& tuning,
           const std::filesystem::path& store, const kiln::SymmetricOptions& memory)
      : runtime_(on_a_gpu(device, store)),
        ranks_(std::move(ranks)),
        tuning_(tuning),
        memory_(runtime_, ranks_, memory) {}
  void close() { memory_.close(); }

 protected:
  /// `launch(handle)` launches it with a config; `bare()` launches what it is compared with.
  template <class Operation, class Problem, class Launch>
  void compare(PeerRow& row, const Operation& operation, const Problem& problem, int times,
               const Launch& launch, const std::function<void()>& bare = {}) {
    kiln::TuneResult result;
    row.tuning = seconds([&] { result = operation.tune(problem, ranks_, tuning_); });
    row.config = result.describe(result.winner());
    if (result.agreed) row.digest = result.agreed->plan_digest;
    row.compiled = result.compiled;
    row.measured = result.count(kiln::CandidateStatus::measured);
    for (const kiln::Candidate& candidate : result.candidates)
      row.all += "  " + std::to_string(1e6 * candidate.seconds) + " us  " +
                 kiln::to_string(candidate.status) + " " + candidate.reason + "  " +
                 result.describe(candidate) + "\n";
    memory_.within(kiln::deadline_in(60), [&] {
      std::vector<double> tuned, others, ratios;
      for (int round = 0; round < 7; ++round) {
        tuned.push_back(seconds_each([&] { launch(operation.handle()); }, times, 1));
        if (!bare) continue;
        others.push_back(seconds_each(bare, times, 1));
        ratios.push_back(tuned.back() / others.back());
      }
      row.tuned = median(tuned);
      if (bare) row.bare = median(others), row.of_bare = median(ratios);
      time_kinds(row, result, operation, times, launch);
    });
  }

  template <class Launch>
  double seconds_each(const Launch& launch, int times, int measured = 5) {
    for (int i = 0; i < 3; ++i) launch();
    runtime_.synchronize();
    std::vector<double> rounds;
    for (int round = 0; round < measured; ++round) {
      memory_.barrier();
      rounds.push_back(seconds([&] {
                         for (int i = 0; i < times; ++i) launch();
                         runtime_.synchronize();
                       }) /
                       times);
    }
    return median(rounds);
  }

 private:
  template <class Operation, class Launch>
  void time_kinds(PeerRow& row, const kiln::TuneResult& result, const Operation& operation,
                  int times, const Launch& launch) {
    using kiln::templates::PeerGemm;
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
  static kiln::RuntimeOptions on_a_gpu(int device, const std::filesystem::path& store) {
    kiln::RuntimeOptions options;
    options.device = "cuda:" + std::to_string(device);
    options.store.directory = store;
    options.mode = kiln::Mode::untuned;
    return options;
  }

 protected:
  kiln::Runtime runtime_;
  std::shared_ptr<kiln::Communicator> ranks_;
  kiln::TuneOptions tuning_;
  kiln::SymmetricMemory memory_;
};

/// Whether there are GPUs enough; says so if not.
inline bool has_ranks() {
  const int gpus = kiln::runtime::probe_cuda().devices;
  if (gpus < kRanks) std::printf("skipped: %d GPUs; it needs %d\n", gpus, kRanks);
  return gpus >= kRanks;
}
/// Calls work(rank, communicator, folder of the store that ranks share) for each rank. Returns
/// whether none threw.
template <class Work>
bool on_ranks(const Work& work) {
  const kiln::test::TemporaryDirectory store;
  auto ends = kiln::thread_communicators(kRanks);
  std::vector<std::string> failed(ends.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ends.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        work(r, std::shared_ptr<kiln::Communicator>(std::move(ends[r])), store.path());
      } catch (const std::exception& error) {
        failed[r] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  bool well = true;
  for (const std::string& text : failed) {
    if (text.empty()) continue;
    std::printf("failed: %s\n", text.c_str());
    well = false;
  }
  return well;
}

}  // namespace perf
