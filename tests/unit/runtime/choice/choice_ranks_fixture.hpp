// A job whose ranks tune a choice, `twice`, and what each of them comes to.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "choice_fixture.hpp"
#include "unit/runtime/ranks_fixture.hpp"

namespace kiln::test {

using Chosen = TunedChoice<DoublingProblem, void(float*, const float*, int)>;

inline DoublingWay way(Process& process, std::string name, double seconds) {
  return {.name = std::move(name),
          .version = "1",
          .call = [&process, seconds](const auto&, Stream, float* y, const float* x, int n) {
            for (int i = 0; i < n; ++i) y[i] = 2 * x[i];
            process.device->pass(seconds);
          }};
}

inline void kernel_takes(Process& process, double seconds) {
  for (const int a : {1, 2, 4, 8}) (*process.script)[typed_entry(a)].seconds = seconds;
}

/// The kernel, which takes 1 ms, and `mine`.
inline Doubling kernel_or_mine(Process& process, double seconds) {
  kernel_takes(process, kMs);
  Doubling twice = choice(typed_doubling(), "twice");
  twice.alternatives.push_back(way(process, "mine", seconds));
  return twice;
}

/// What a rank came to.
struct Told {
  TuneResult result;
  std::string chosen;
};
using Make = std::function<Doubling(Process&, int rank)>;

inline std::vector<Told> tune(Job& job, const Make& make, int n = 40) {
  return job.run<Told>([&](Process& process, int rank) {
    const Chosen twice = tuned(process.runtime(), make(process, rank));
    TuneResult result = twice.tune({n});
    return Told{std::move(result), twice.chosen({n}).name};
  });
}

inline void check_chosen(const std::vector<Told>& told, const std::string& name) {
  for (const Told& t : told) {
    CHECK(t.chosen == name);
    REQUIRE(t.result.agreed);
    CHECK(t.result.agreed->why == "");
    CHECK(t.result.agreed->outcome == Outcome::plan);
    CHECK(t.result.agreed->plan_digest.size() == 64);
    CHECK(t.result.agreed->plan_digest == told.front().result.agreed->plan_digest);
    CHECK(t.result.winner().status == CandidateStatus::measured);
  }
}

inline bool warns(const TuneResult& result, const std::string& text) {
  return std::ranges::any_of(result.warnings, [&](const std::string& w) { return w == text; });
}

/// A choice of callables alone, which are checked against the kernel's reference.
inline Doubling of_callables(std::vector<DoublingWay> ways) {
  const Typed kernel = typed_doubling();
  Doubling twice{.name = "twice", .problem = kernel.problem};
  twice.workload = kernel.workload;
  twice.reference = kernel.reference;
  twice.alternatives = std::move(ways);
  return twice;
}

/// What a launch of the choice runs: an entry of the kernel, else the chosen alternative's name.
/// What it throws, if it does.
inline std::string launched(Process& process, const Chosen& f, int n) {
  std::string ran;
  Buffers data(n);
  try {
    f({}, data.y.data(), data.x.data(), n);  // what is launched by a tuning does not count
    process.device->on_launch = [&](const std::string& entry, void**) { ran = entry; };
    f({}, data.y.data(), data.x.data(), n);
    if (ran.empty()) ran = f.chosen({n}).name;
    if (!data.doubled()) ran += ", and is wrong";
  } catch (const std::exception& error) {
    ran = error.what();
  }
  process.device->on_launch = nullptr;
  return ran;
}

inline std::shared_ptr<Communicator> alone() { return std::move(thread_communicators(1).front()); }

inline TuneOptions anew(const Process& process) {
  TuneOptions options = process.options.tuning;
  options.retune = true;
  return options;
}

/// Problems up to the next multiple of 64 share a bucket.
inline DoublingProblem to_64(const DoublingProblem& p) { return {(p.n + 63) / 64 * 64}; }

/// Unless a bucket is `to_64`, of a kernel or a choice.
inline DoublingProblem exactly(const DoublingProblem& p) { return p; }

/// The choice of a kernel that is tuned for exact problems, with `mine` for all but 41.
inline Doubling not_for_41(Process& process, double seconds) {
  kernel_takes(process, kMs);
  Typed kernel = typed_doubling();
  kernel.bucket = exactly;
  Doubling twice = choice(kernel, "twice");
  twice.bucket = to_64;
  twice.alternatives.push_back(way(process, "mine", seconds));
  twice.alternatives.back().supports = [](const DoublingProblem& p, const DeviceInfo&) {
    return std::string(p.n == 41 ? "not 41" : "");
  };
  return twice;
}

/// Ranks wait for each other for so long at most.
inline void wait_at_most(Job& job, double seconds) {
  RankOptions settings = job.settings();
  settings.first_seconds = settings.step_seconds = settings.tune_seconds = seconds;
  job.set(settings);
}

}  // namespace kiln::test
