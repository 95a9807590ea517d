// Ranks that tune a function together: threads, each with a runtime of its own.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "function_fixture.hpp"
#include "kiln/communicators.hpp"

namespace kiln::test {

/// What every rank must reach before one goes on, as a collective inside a function would; hangs,
/// but not for ever, when ranks do not make the same number of calls.
class FunctionMeeting {
 public:
  explicit FunctionMeeting(int size) : size_(size) {}
  void join() {
    std::unique_lock lock(mutex_);
    const int round = round_;
    if (++here_ == size_) {
      here_ = 0;
      ++round_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(20),
                                  [&] { return round != round_; })) {
      late = true;
      --here_;
      throw std::runtime_error("the ranks do not meet");
    }
  }
  std::atomic<bool> late = false;

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int here_ = 0, round_ = 0;
};

struct FunctionRank {
  std::unique_ptr<Caller> caller;
  Sum sum;
  std::vector<float> x = std::vector<float>(1, 0.0f);
  std::string thrown{};
  TuneResult result{};
};

class FunctionJob {
 public:
  FunctionJob(int size, const fs::path& folder, bool one_store = false) {
    auto ends = thread_communicators(size);
    for (int r = 0; r < size; ++r) {
      auto caller = std::make_unique<Caller>(one_store ? folder / "store"
                                                       : folder / ("store" + std::to_string(r)));
      const Sum sum = caller->sum();
      FunctionRank rank{std::move(caller), sum};
      TuneOptions& tuning = rank.caller->options.tuning;
      tuning.ranks = std::move(ends[static_cast<std::size_t>(r)]);
      tuning.together.first_seconds = tuning.together.step_seconds = 20;
      tuning.together.tune_seconds = 60;
      ranks.push_back(std::move(rank));
    }
  }

  /// All ranks tune, at once.
  void tune(int n) {
    std::vector<std::thread> threads;
    for (FunctionRank& rank : ranks)
      threads.emplace_back([&rank, n] {
        try {
          rank.result = rank.caller->tuned(rank.sum).tune({}, rank.x, n);
        } catch (const std::exception& error) {
          rank.thrown = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
  /// Ranks that did not end with `config`.
  int others_than(const Values& config) const {
    int count = 0;
    for (const FunctionRank& r : ranks)
      count += !r.thrown.empty() || r.result.winner().config != config;
    return count;
  }
  bool agreed(RankReport::Outcome outcome) const {
    for (const FunctionRank& r : ranks)
      if (!r.thrown.empty() || !r.result.agreed || r.result.agreed->outcome != outcome ||
          r.result.agreed->plan_digest != ranks[0].result.agreed->plan_digest)
        return false;
    return true;
  }

  std::vector<FunctionRank> ranks;
};

}  // namespace kiln::test
