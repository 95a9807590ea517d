// Operations of ranks that use one memory by turns, and what they are put through on every target:
// epochs that wrap round, and a rank that does not come.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "findings.hpp"
#include "repeated_operation.hpp"

namespace kiln::test {

/// What a rank does. `make` leaves out what its device or its sizes do not allow.
template <class T>
struct Turns {
  std::string name;
  std::size_t bytes;
  unsigned flags;
  std::function<std::vector<RepeatedOperation<T>>(const Runtime&, const SymmetricMemory&)> make;
  std::filesystem::path store{};  ///< of what is compiled; empty: none
};

template <class Kernel, class Problem>
bool allowed(const Runtime& runtime, const Kernel& kernel, MaybeConfig config,
             const Problem& problem) {
  return !config || !kernel.definition().space.violated(to_values(*config), to_values(problem),
                                                        runtime.device().limits);
}

/// All-gather + GEMM, then GEMM + reduce-scatter. Configs are those of a list that outlives this.
template <class T>
Turns<T> gemm_turns(templates::PeerGemmProblem p, MaybeConfig gather = nullptr,
                    MaybeConfig scatter = nullptr) {
  using namespace templates;
  const auto rows = std::make_shared<const PeerData<T>>(p.m, p.n, p.k);
  const auto all = std::make_shared<const PeerData<T>>(p.m * p.ranks, p.n, p.k);
  const std::size_t bytes =
      std::max(all_gather_bytes<T>(p.m, p.k, p.ranks), reduce_scatter_bytes<T>(p.m, p.n, p.ranks));
  return {"GEMMs of ranks, m " + std::to_string(p.m) + ", n " + std::to_string(p.n) + ", k " +
              std::to_string(p.k),
          bytes, kPeerGemmFlags, [=](const Runtime& runtime, const SymmetricMemory& memory) {
            std::vector<RepeatedOperation<T>> turns;
            if (allowed(runtime, all_gather_gemm_kernel<T>(memory), gather, p))
              turns.push_back(repeated_gather<T>(runtime, memory, *rows, p.m, p.n, p.k, gather));
            if (allowed(runtime, reduce_scatter_gemm_kernel<T>(memory), scatter, p))
              turns.push_back(repeated_scatter<T>(runtime, memory, *all, p.m, p.n, p.k, scatter));
            return turns;
          }};
}

/// The operation that brings tokens to their experts, then the one that brings sums back.
template <class T>
Turns<T> experts_turns(templates::ExpertsProblem p, Routing routing, MaybeConfig gather = nullptr,
                       MaybeConfig combine = nullptr) {
  using namespace templates;
  const auto data = std::make_shared<const ExpertsData<T>>(p, routing);
  return {"GEMMs of experts, m " + std::to_string(p.m) + ", n " + std::to_string(p.n) + ", k " +
              std::to_string(p.k),
          expert_bytes<T>(p), kExpertFlags,
          [=](const Runtime& runtime, const SymmetricMemory& memory) {
            std::vector<RepeatedOperation<T>> turns;
            if (allowed(runtime, experts_gather_kernel<T>(memory), gather, p))
              turns.push_back(repeated_experts_gather<T>(runtime, memory, *data, gather));
            if (allowed(runtime, experts_combine_kernel<T>(memory), combine, p))
              turns.push_back(repeated_experts_combine<T>(runtime, memory, *data, combine));
            return turns;
          }};
}

/// Compiles all that is launched, at once, into the stores that they name.
template <class T>
void compile_first(const std::string& device, const std::vector<Turns<T>>& all) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::jthread> threads;
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < std::min(cores, 16U); ++i)
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < all.size(); at = next++)
        // A failure here comes again at the launch, where it is reported.
        on_peers(
            {device}, all[at].bytes,
            [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
              for (const auto& operation : all[at].make(runtime, memory)) operation.load();
            },
            all[at].flags, 0, all[at].store);
    });
}

/// A round of each, in turns, with ranks that come late. `most`: at most this many us.
template <class T>
void run_turns(const Runtime& runtime, const SymmetricMemory& memory,
               const std::vector<RepeatedOperation<T>>& turns, int rounds, int most,
               Findings& findings) {
  for (int round = 0; round < rounds; ++round)
    for (const RepeatedOperation<T>& operation : turns) {
      straggle(memory.rank(), round, most);
      memory.within(deadline_in(120), [&] {
        operation.feed_and_start({}, round);
        runtime.synchronize();
      });
      findings.check(operation.is_right(round));
    }
}

/// The counters of operations begin so that they wrap round half-way. Returns what is wrong.
template <class T>
std::string check_wrap(const std::vector<std::string>& devices, const Turns<T>& work, int rounds,
                       int most) {
  Findings findings;
  std::string thrown = on_peers(
      devices, work.bytes,
      [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
        const auto turns = work.make(runtime, memory);
        const auto half = static_cast<unsigned>(rounds / 2) * static_cast<unsigned>(turns.size());
        begin_behind(runtime, memory, 0U - half);
        run_turns(runtime, memory, turns, rounds, most, findings);
        const auto wanted = static_cast<unsigned>(rounds) * static_cast<unsigned>(turns.size());
        findings.check(operations_done(runtime, memory) == wanted - half);
      },
      work.flags, 0, work.store);
  return thrown + findings.wrong();
}

/// The first rank alone comes to an operation, at each in turn: it ends by its deadline and says
/// so, and the memory works again after a reset. Returns what is wrong.
template <class T>
std::string check_gives_up(const std::vector<std::string>& devices, const Turns<T>& work,
                           double seconds, int rounds, const std::string& says) {
  Findings findings;
  std::string thrown = on_peers(
      devices, work.bytes,
      [&](const Runtime& runtime, SymmetricMemory& memory, auto) {
        const auto turns = work.make(runtime, memory);
        run_turns(runtime, memory, turns, 1, 1, findings);
        for (const RepeatedOperation<T>& missed : turns) {
          if (memory.rank() == 0) {
            const auto begin = std::chrono::steady_clock::now();
            findings.check_throws<EnvironmentError>(
                [&] {
                  memory.within(deadline_in(seconds), [&] {
                    missed.feed_and_start({}, 1);
                    runtime.synchronize();
                  });
                },
                says);
            // A busy machine may be late; a kernel that waits on would be much later.
            findings.check(std::chrono::steady_clock::now() - begin <
                           std::chrono::duration<double>(seconds + 20));
          }
          memory.reset();
          findings.check(operations_done(runtime, memory) == 0);
          run_turns(runtime, memory, turns, rounds, 300, findings);
        }
      },
      work.flags, 0, work.store);
  return thrown + findings.wrong();
}

}  // namespace kiln::test
