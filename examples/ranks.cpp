// An engine with a communicator of its own: its workers tune together, and launch the same config.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "saxpy_kernel.hpp"

using Bytes = std::vector<std::byte>;

/// What the engine has anyway: its workers hand bytes to each other. Here they are threads.
class Workers {
 public:
  explicit Workers(int count) : count_(count) {}
  int count() const { return count_; }

  /// Everyone's bytes, by rank; fewer than `count()` when the deadline passed or somebody gave up.
  std::map<int, Bytes> all_gather(int round, int rank, Bytes mine, kiln::Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (gone_) return {};
    rounds_[round][rank] = std::move(mine);
    changed_.notify_all();
    changed_.wait_until(lock, deadline,
                        [&] { return gone_ || int(rounds_[round].size()) == count_; });
    return rounds_[round];
  }
  void give_up() {
    std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }

 private:
  const int count_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, std::map<int, Bytes>> rounds_;
  bool gone_ = false;
};

/// That, as Kiln wants it. Reductions and broadcasts can be made of a gather.
class EngineRanks final : public kiln::Communicator {
 public:
  EngineRanks(Workers& workers, int rank) : workers_(workers), rank_(rank) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return workers_.count(); }

  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                 kiln::Deadline deadline) override {
    const auto parts = workers_.all_gather(round_++, rank_, {mine.begin(), mine.end()}, deadline);
    kiln::RankFailure late{kiln::RankFailure::Kind::timeout, {}, "gather was not joined in time"};
    for (int r = 0; r < size(); ++r) {
      const auto part = parts.find(r);
      if (part == parts.end())
        late.ranks.push_back(r);
      else
        std::copy(part->second.begin(), part->second.end(), all.begin() + r * mine.size());
    }
    return late.ranks.empty() ? Failure{} : late;
  }

  Failure reduce(std::span<float> values, kiln::Reduction op, kiln::Deadline deadline) override {
    std::vector<float> all(values.size() * size());
    if (auto failure =
            gather(std::as_bytes(values), std::as_writable_bytes(std::span(all)), deadline))
      return failure;
    for (std::size_t i = 0; i < values.size(); ++i) {
      float result = all[i];
      for (int r = 1; r < size(); ++r) {
        const float other = all[r * values.size() + i];
        result = op == kiln::Reduction::max ? std::max(result, other) : result + other;
      }
      values[i] = op == kiln::Reduction::mean ? result / float(size()) : result;
    }
    return {};
  }

  Failure broadcast(std::span<std::byte> bytes, int root, kiln::Deadline deadline) override {
    Bytes all(bytes.size() * size());
    if (auto failure = gather(bytes, all, deadline)) return failure;
    std::copy_n(all.begin() + root * bytes.size(), bytes.size(), bytes.begin());
    return {};
  }

  void abort(const kiln::RankFailure&) noexcept override { workers_.give_up(); }
  Failure split(int, std::unique_ptr<kiln::Communicator>&, kiln::Deadline) override {
    return kiln::RankFailure{kiln::RankFailure::Kind::system, {}, "this engine has no sub-groups"};
  }

 private:
  Workers& workers_;
  const int rank_;
  int round_ = 0;
};

/// What each worker does.
kiln::TuneResult work(Workers& workers, int rank) {
  kiln::RuntimeOptions options;
  options.tuning.ranks = std::make_shared<EngineRanks>(workers, rank);
  options.tuning.together.strategy = kiln::RankStrategy::shard;
  const kiln::Runtime runtime(options);
  return runtime.tuned(saxpy_kernel()).tune(SaxpyProblem{1 << 18});
}

int main() {
  Workers workers(2);
  std::vector<kiln::TuneResult> results(workers.count());
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < workers.count(); ++rank)
      threads.emplace_back([&, rank] { results[rank] = work(workers, rank); });
  }
  for (const kiln::TuneResult& r : results)
    std::printf("rank %d of %d: %s, %s %.16s, timed %zu candidates%s\n", r.agreed->rank,
                r.agreed->size, r.describe(r.winner()).c_str(), to_string(r.agreed->outcome),
                r.agreed->plan_digest.c_str(), r.agreed->measured,
                r.from_store ? " (from the store)" : "");
  return results[0].agreed->plan_digest == results[1].agreed->plan_digest &&
                 results[0].agreed->outcome == kiln::RankReport::Outcome::plan
             ? 0
             : 1;
}
