// Candidates that communicate, of which some make the other ranks wait in vain: on every target
// they are ended on all ranks, which go on with the rest. Ranks that tune in memory that was given
// up before. And a check of one rank that takes longer than a candidate has.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "findings.hpp"
#include "kiln/communicators.hpp"
#include "kiln/kiln.hpp"
#include "rank_steps.hpp"

namespace kiln::test {

/// Ranks signal the next one and wait for the one before. With `silent`, rank 0 does not signal.
inline constexpr const char* kTurn = R"(
#include <kiln/peers.cuh>
template <int threads, int silent>
__global__ void turn(int* out, const kiln::Peers* peers) {
  const kiln::Peers& p = *peers;
  if (threadIdx.x != 0) return;
  const unsigned epoch = ++*p.counters;
  if (!silent || p.rank != 0) kiln::signal(p, (p.rank + 1) % p.size, 1, epoch);
  if (kiln::wait(p, (p.rank + p.size - 1) % p.size, 1, epoch)) *out = 7;
}
)";

/// Its one other argument, `peers`, is the same in all launches. `silent`: the values to be tried.
inline KernelDefinition turns(const Peers* peers,
                              const std::vector<std::int64_t>& silent = {0, 1}) {
  KernelDefinition k;
  k.name = "turn";
  k.source.text = kTurn;
  k.entry = "turn";
  k.arguments = {"int*", "const kiln::Peers*"};
  k.space.parameter("threads", {32, 64}, 32).parameter("silent", silent, 0);
  k.problem_fields = {"n"};
  k.launch = [](std::span<const std::int64_t> config, auto) {
    return Launch{{1}, {static_cast<unsigned>(config[0])}};
  };
  k.workload = [peers](auto, Workload& w) { w.output<int>(1).address(peers); };
  k.reference = [](auto, std::span<void* const> args) { *static_cast<int*>(args[0]) = 7; };
  return k;
}

/// With a check that finds nothing wrong, and takes its time on the last rank.
inline KernelDefinition slowly_checked(KernelDefinition k, const Communicator& ranks,
                                       double seconds) {
  k.check = [seconds = ranks.rank() == ranks.size() - 1 ? seconds : 0](auto, auto, auto) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    return std::string();
  };
  return k;
}

/// What a rank does in rounds: it tunes the above in step, and then launches it, to which one rank
/// comes too late now and then. What is given up in one round must be over in the next. Where a
/// candidate is silent, the last rank's check takes longer than candidates have.
class GivenUpRounds {
 public:
  GivenUpRounds(const Runtime& runtime, const SymmetricMemory& memory,
                std::shared_ptr<Communicator> ranks)
      : runtime_(runtime),
        memory_(memory),
        ranks_(std::move(ranks)),
        all_(runtime.tuned(slowly_checked(turns(memory.peers()), *ranks_, 2 * kSeconds))),
        good_(runtime.tuned(turns(memory.peers(), {0}))),
        launched_(good_.with_config({32, 0})),
        out_(runtime.array<int>(1)) {
    static_cast<void>(launched_.workspace_size({1}));  // compiled before anybody waits
  }

  /// Returns whether it went as it must.
  bool run(int round) {
    const bool with_silent = round % 50 == 4;
    TuneOptions options;
    options.ranks = ranks_;
    options.retune = true;
    options.together.lockstep = true;
    options.together.finalists = round % 2 == 1 ? 4 : 0;  // without, the last candidate may hang
    options.together.guard = memory_.guard(with_silent ? kSeconds : 20);
    const TuneResult result = (with_silent ? all_ : good_).tune({1}, options);
    const bool right = result.agreed && result.agreed->outcome == RankReport::Outcome::plan &&
                       result.count(CandidateStatus::measured) == 2 &&
                       result.count(CandidateStatus::hung) == (with_silent ? 2U : 0U);
    using std::chrono::milliseconds;
    if (round % memory_.size() == memory_.rank())
      std::this_thread::sleep_for(milliseconds(round % 3 * 5));
    try {
      memory_.within(std::chrono::steady_clock::now() + milliseconds(5), [&] {
        launched_({}, {1}, out_.data(), memory_.peers());
        runtime_.synchronize();
      });
    } catch (const EnvironmentError& error) {
      return right && std::string(error.what()).find("gave up") != std::string::npos;
    }
    return right && out_.download().front() == 7;
  }

 private:
  static constexpr double kSeconds = 0.5;  ///< that a candidate has where some are silent

  const Runtime& runtime_;
  const SymmetricMemory& memory_;
  const std::shared_ptr<Communicator> ranks_;
  const DynamicTuned all_, good_, launched_;
  Array<int> out_;
};

/// Ranks that are threads tune the above in step, twice; then they launch it. `seconds`: what a
/// candidate has. Returns what is wrong.
inline std::string check_silent_candidates(const std::vector<std::string>& devices,
                                           double seconds) {
  Findings findings;
  auto ends = thread_communicators(static_cast<int>(devices.size()));
  std::vector<std::string> thrown(ends.size());
  const auto rank = [&](std::size_t r, const std::shared_ptr<Communicator>& communicator) {
    RuntimeOptions at_launch;
    at_launch.device = devices[r];
    at_launch.store.disk = false;
    at_launch.mode = Mode::untuned;
    at_launch.isolation = Isolation::off;  // else workers try the rest once one has hung
    const Runtime runtime(at_launch);
    SymmetricMemory memory(runtime, communicator, {.bytes = 64, .flags = 2});
    const DynamicTuned turn = runtime.tuned(turns(memory.peers()));
    TuneOptions options;
    options.ranks = communicator;
    options.together.lockstep = true;
    const auto guard = memory.guard(seconds);
    int ended = 0;
    options.together.guard = [&](const std::function<void()>& launches) {
      try {
        guard(launches);
      } catch (...) {
        ++ended;
        throw;
      }
    };
    // The first search ends early. What it has seen to hang is not tried by the second.
    options.max_evaluations = 3;
    const TuneResult first = turn.tune({1}, options);
    findings.check(first.count(CandidateStatus::hung) == static_cast<std::size_t>(ended));
    findings.check(ended > 0);
    findings.check(!memory.aborted());
    options.max_evaluations = 0;
    const TuneResult result = turn.tune({1}, options);
    findings.check(ended == 2);
    findings.check(result.agreed && result.agreed->outcome == RankReport::Outcome::plan);
    findings.check(result.candidates.size() == 4);
    for (const Candidate& c : result.candidates) {
      const bool silent = c.config[1] != 0;
      findings.check(c.status == (silent ? CandidateStatus::hung : CandidateStatus::measured));
      if (silent) findings.check(c.reason.find("gave up") != std::string::npos);
    }
    findings.check(result.winner().config[1] == 0);
    auto out = runtime.array<int>(1);
    memory.within(deadline_in(60), [&] {
      turn({}, {1}, out.data(), memory.peers());
      runtime.synchronize();
    });
    findings.check(out.download().front() == 7);
    memory.close();
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < ends.size(); ++r)
      threads.emplace_back([&, r, communicator = std::shared_ptr(std::move(ends[r]))] {
        try {
          rank(r, communicator);
        } catch (const std::exception& error) {
          thrown[r] = error.what() + std::string("; ");
        }
      });
  }
  std::string wrong = findings.wrong();
  for (const std::string& text : thrown) wrong += text;
  return wrong;
}

/// Ranks that are threads tune two of the above, while the last rank's check takes `check` seconds.
/// A candidate has `seconds`, and ranks wait for a late one for `patience`. Returns what is wrong.
inline std::string check_slow_check(const std::vector<std::string>& devices, double seconds,
                                    double check, double patience) {
  Findings findings;
  auto ends = thread_communicators(static_cast<int>(devices.size()));
  const int last = static_cast<int>(devices.size()) - 1;
  const std::string wrong = on_ranks(last + 1, [&](int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const std::shared_ptr<Communicator> communicator = std::move(ends[r]);
    RuntimeOptions at_launch;
    at_launch.device = devices[r];
    at_launch.store.disk = false;
    at_launch.mode = Mode::untuned;
    const Runtime runtime(at_launch);
    if (auto failure = communicator->gather({}, {}, deadline_in(120)))
      throw EnvironmentError(failure->describe());
    SymmetricMemory memory(runtime, communicator, {.bytes = 64, .flags = 2, .seconds = patience});
    const DynamicTuned turn =
        runtime.tuned(slowly_checked(turns(memory.peers(), {0}), *communicator, check));
    TuneOptions options;
    options.ranks = communicator;
    options.together.lockstep = true;
    options.together.guard = memory.guard(seconds);
    const TuneResult result = turn.tune({1}, options);
    if (check < patience) {
      findings.check(result.agreed->outcome == RankReport::Outcome::plan);
      findings.check(result.count(CandidateStatus::measured) == 2);
      memory.close();
    } else {
      findings.check(result.agreed->outcome == RankReport::Outcome::defaults);
      findings.check(rank == last ||
                     result.agreed->why.find("rank " + std::to_string(last)) != std::string::npos);
    }
  });
  return findings.wrong() + wrong;
}

}  // namespace kiln::test
