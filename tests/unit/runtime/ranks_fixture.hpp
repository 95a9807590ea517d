// A job: processes on fake devices, one thread each, that tune together, and what they come to.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine_fixture.hpp"
#include "findings.hpp"
#include "kiln/communicator.hpp"
#include "kiln/communicators.hpp"
#include "kiln_test.hpp"

namespace kiln::test {

/// An end that tells of calls: the n-th, from 0.
class Watched final : public Communicator {
 public:
  explicit Watched(std::shared_ptr<Communicator> base) : base_(std::move(base)) {}

  std::function<void(int nth)> before = [](int) {};        ///< any
  std::function<void(int nth)> after_reduce = [](int) {};  ///< reductions alone
  std::atomic<int> calls = 0, reductions = 0;
  bool hears_answers = true;  ///< what is settled

  int rank() const noexcept override { return base_->rank(); }
  int size() const noexcept override { return base_->size(); }
  Failure gather(std::span<const std::byte> mine, std::span<std::byte> all,
                 Deadline deadline) override {
    return watched([&] { return base_->gather(mine, all, deadline); });
  }
  Failure reduce(std::span<float> values, Reduction op, Deadline deadline) override {
    Failure failure = watched([&] { return base_->reduce(values, op, deadline); });
    after_reduce(reductions++);
    return failure;
  }
  Failure broadcast(std::span<std::byte> bytes, int root, Deadline deadline) override {
    return watched([&] { return base_->broadcast(bytes, root, deadline); });
  }
  void abort(const RankFailure& why) noexcept override { base_->abort(why); }
  bool settles() const noexcept override { return base_->settles(); }
  std::optional<bool> settle(const Digest& question, bool proposal, Deadline d) override {
    const auto answer = base_->settle(question, proposal, d);
    return hears_answers ? answer : std::nullopt;
  }
  Failure split(int group, std::unique_ptr<Communicator>& part, Deadline deadline) override {
    return base_->split(group, part, deadline);
  }

 private:
  template <class Call>
  Failure watched(const Call& call) {
    before(calls++);
    return call();
  }

  std::shared_ptr<Communicator> base_;
};

class Job {
 public:
  explicit Job(int size, bool one_store = false) {
    for (int r = 0; r < size; ++r) {
      if (r == 0 || !one_store) directories_.push_back(std::make_unique<Directory>());
      processes_.push_back(std::make_unique<Process>(directories_.back()->path()));
      settings().first_seconds = settings().step_seconds = settings().tune_seconds = 30;
    }
    connect();
  }

  /// A new start of all processes, on the stores that are there.
  void restart() {
    for (auto& process : processes_) {
      auto fresh = std::make_unique<Process>(process->options.store.directory);
      fresh->options.tuning = process->options.tuning;
      fresh->options.mode = process->options.mode;
      fresh->script = process->script;
      fresh->device = std::make_shared<FakeDevice>(process->script);
      fresh->device->compute = compute_doubling;
      fresh->compiler = std::make_shared<FakeCompiler>(process->script);
      process = std::move(fresh);
    }
    connect();
  }

  int size() const { return static_cast<int>(processes_.size()); }
  Process& operator[](int rank) { return *processes_[static_cast<std::size_t>(rank)]; }
  const Directory& directory(int rank) { return *directories_[static_cast<std::size_t>(rank)]; }
  /// The options of one rank; all ranks get the same ones by `set`.
  RankOptions& settings() { return processes_.back()->options.tuning.together; }
  void set(const RankOptions& options) {
    for (auto& process : processes_) process->options.tuning.together = options;
  }

  /// Candidates run in step from now on.
  void in_step() {
    RankOptions options = settings();
    options.lockstep = true;
    set(options);
  }

  /// What every rank's `work` gave. `work` runs on a thread of its own for each rank: it asserts
  /// with Findings.
  template <class Result>
  std::vector<Result> run(const std::function<Result(Process&, int rank)>& work) {
    std::vector<std::optional<Result>> results(processes_.size());
    {
      std::vector<std::jthread> threads;
      for (int r = 0; r < size(); ++r)
        threads.emplace_back(
            [&, r] { results[static_cast<std::size_t>(r)] = work((*this)[r], r); });
    }
    std::vector<Result> all;
    for (auto& result : results) all.push_back(std::move(*result));
    return all;
  }

  /// This rank's calls, from now on.
  Watched& watch(int rank) {
    auto& ranks = (*this)[rank].options.tuning.ranks;
    const auto watched = std::make_shared<Watched>(ranks);
    ranks = watched;
    return *watched;
  }

  std::vector<TuneResult> tune(int n = 64, const KernelDefinition& kernel = doubling()) {
    return run<TuneResult>(
        [&](Process& process, int) { return process.runtime().tuned(kernel).tune({n}); });
  }

 private:
  void connect() {
    auto ends = thread_communicators(size());
    for (int r = 0; r < size(); ++r)
      (*this)[r].options.tuning.ranks = std::move(ends[static_cast<std::size_t>(r)]);
  }

  std::vector<std::unique_ptr<Directory>> directories_;
  std::vector<std::unique_ptr<Process>> processes_;
};

constexpr double kMs = 1e-3;
using Outcome = RankReport::Outcome;

/// Every rank holds the same, and it is this.
inline void check_plan(const std::vector<TuneResult>& results, int a) {
  for (const TuneResult& r : results) {
    REQUIRE(r.agreed);
    CHECK(r.agreed->why == "");
    CHECK(r.agreed->outcome == Outcome::plan);
    CHECK(r.winner().config == Values{a, 0});
    CHECK(r.agreed->plan_digest.size() == 64);
    CHECK(r.agreed->plan_digest == results.front().agreed->plan_digest);
    CHECK(r.agreed->size == static_cast<int>(results.size()));
  }
}

inline void check_defaults(const std::vector<TuneResult>& results, const std::string& why) {
  for (const TuneResult& r : results) {
    REQUIRE(r.agreed);
    CHECK(r.agreed->outcome == Outcome::defaults);
    CHECK(r.winner().config == Values{2, 0});
    CHECK_THAT(r.agreed->why, Catch::Contains(why));
    CHECK(r.agreed->plan_digest.empty());
  }
}

inline int measured(const Process& p) { return p.device->timings; }

/// 1, 2 and so on.
inline std::vector<std::int64_t> up_to(std::int64_t last) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(last));
  std::iota(values.begin(), values.end(), 1);
  return values;
}

}  // namespace kiln::test
