// Ranks that serve in steps with an all-reduce each, and are tuned behind their launches, on every
// target. Each rank is a thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kiln/communicators.hpp"
#include "kiln/kiln.hpp"

namespace kiln::test {

using RankEnds = std::vector<std::shared_ptr<Communicator>>;

inline double seconds_after(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Calls `body(rank)` for each rank on a thread of its own. Returns what they threw.
inline std::string on_ranks(int ranks, const std::function<void(int rank)>& body) {
  std::vector<std::string> thrown(static_cast<std::size_t>(ranks));
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        try {
          body(r);
        } catch (const std::exception& error) {
          thrown[static_cast<std::size_t>(r)] =
              "rank " + std::to_string(r) + ": " + error.what() + "; ";
        }
      });
  }
  std::string all;
  for (const std::string& text : thrown) all += text;
  return all;
}

/// y = 2 x. The default stores every element many times, so that another config is certainly
/// faster.
inline KernelDefinition doubled(const std::string& note = "") {
  using Span = std::span<const std::int64_t>;
  KernelDefinition k;
  k.name = "doubled";
  k.source.text = "// " + note + R"(
template <int block, int rounds>
__global__ void doubled(float* y, const float* x, int n) {
  volatile float* const out = y;
  const int i = blockIdx.x * block + threadIdx.x;
  for (int r = 0; r < rounds; ++r)
    if (i < n) out[i] = 2 * x[i];
}
)";
  k.entry = "doubled";
  k.arguments = {"float*", "const float*", "int"};
  k.space.parameter("block", {64}, 64);
  k.space.parameter("rounds", {1, 10, 100}, 100);
  k.problem_fields = {"n"};
  k.launch = [](Span c, Span p) {
    return Launch{{static_cast<unsigned>((p[0] + c[0] - 1) / c[0])}, {static_cast<unsigned>(c[0])}};
  };
  k.workload = [](Span p, Workload& w) {
    const auto n = static_cast<std::size_t>(p[0]);
    w.output<float>(n).input<float>(n).scalar<int>(static_cast<int>(n));
  };
  k.reference = [](Span, std::span<void* const> args) {
    auto* y = static_cast<float*>(args[0]);
    const auto* x = static_cast<const float*>(args[1]);
    for (int i = 0; i < *static_cast<int*>(args[2]); ++i) y[i] = 2 * x[i];
  };
  return k;
}

struct StepPlan {
  std::vector<int> problems{3000, 5000, 7000};
  int at_least = 200, at_most = 4000;  ///< steps
  int between_commits = 50;
  double step_seconds = 2e-3;  ///< of each step's other work, which is not tuned
  int between_windows = 1;     ///< steps
  double idle_seconds = 2e-3;  ///< between steps, in which the background may measure
};

/// What a rank saw. A step is from its first launch to the end of its all-reduce, and of the commit
/// after that, if any. It begins when the idle time before it is over, its window closed: how long
/// closing takes is counted apart.
struct StepReport {
  std::vector<double> steps, closings, commits;  ///< seconds
  std::size_t changes = 0;                       ///< that commits put in use
  std::size_t pending = 0;                       ///< commits after which something was still loaded
  bool sums_right = true, digests_equal = true, settled = false;

  double median() const {
    std::vector<double> sorted = steps;
    std::nth_element(sorted.begin(), sorted.begin() + std::ssize(sorted) / 2, sorted.end());
    return sorted[sorted.size() / 2];
  }
  /// Steps of more than twice the median.
  std::ptrdiff_t slow() const {
    return std::count_if(steps.begin(), steps.end(),
                         [most = 2 * median()](double s) { return s > most; });
  }
  static double longest(const std::vector<double>& times) {
    return times.empty() ? 0 : *std::max_element(times.begin(), times.end());
  }
  std::string describe() const {
    const auto ms = [](double seconds) { return std::to_string(1e3 * seconds) + " ms"; };
    return std::to_string(steps.size()) + " steps of " + ms(median()) + ", " +
           std::to_string(slow()) + " of more than twice that, the longest " + ms(longest(steps)) +
           "; in them " + std::to_string(commits.size()) + " commits, the longest " +
           ms(longest(commits)) + ", " + std::to_string(pending) +
           " of which left something to be loaded behind; counted apart: windows, which closed "
           "within " +
           ms(longest(closings)) + "; " + std::to_string(changes) +
           " problems exchanged; digests " + (digests_equal ? "equal at each step" : "DIFFER");
  }
};

/// Throws what a collective call of the test's own failed with.
inline void must(const Communicator::Failure& failure) {
  if (failure) throw EnvironmentError(failure->describe());
}

/// Whether all ranks have the same.
inline bool same_on_all(Communicator& ranks, const Digest& mine) {
  std::vector<Digest> all(static_cast<std::size_t>(ranks.size()));
  must(ranks.gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)),
                    deadline_in(60)));
  return std::count(all.begin(), all.end(), mine) == std::ssize(all);
}

/// Steps of a rank, until what it launches is settled on all of them. The runtime's mode is
/// background, with ranks; `steps` are the same ranks on a communicator of the program's own.
inline StepReport serve_steps(const Runtime& runtime, Communicator& steps, const StepPlan& plan) {
  using Clock = std::chrono::steady_clock;
  StepReport report;
  const auto handle = runtime.tuned(doubled());
  const auto other_work = runtime.tuned(doubled("not tuned")).with_config({64, 100});
  struct Data {
    int n;
    Array<float> x, y;
  };
  const auto data_of = [&](int n) {
    return Data{n, runtime.array(std::vector<float>(std::size_t(n), float(steps.rank() + 1))),
                runtime.array<float>(std::size_t(n))};
  };
  std::vector<Data> data;
  for (const int n : plan.problems) data.push_back(data_of(n));
  const Data other = data_of(1 << 14);
  const auto launch = [](const DynamicTuned& kernel, const Data& d) {
    kernel(Stream{}, {d.n}, d.y.data(), static_cast<const float*>(d.x.data()), d.n);
  };

  for (const Data& d : data) launch(handle, d);  // compiled before the first step

  // As many launches on all ranks as take the step's time on the slowest one.
  launch(other_work, other);
  runtime.synchronize();
  const auto begin = Clock::now();
  for (int i = 0; i < 20; ++i) launch(other_work, other);
  runtime.synchronize();
  float one = static_cast<float>(seconds_after(begin) / 20);
  must(steps.reduce(std::span(&one, 1), Reduction::max, deadline_in(60)));
  const int launches = std::max(1, static_cast<int>(plan.step_seconds / double(one)));

  const float ranks = static_cast<float>(steps.size()), total = ranks * (ranks + 1);
  for (int step = 1;; ++step) {
    if (step % plan.between_windows == 0) {
      TuningWindow window = runtime.window();
      std::this_thread::sleep_for(std::chrono::duration<double>(plan.idle_seconds));
      const auto closes = Clock::now();
      window.close();
      report.closings.push_back(seconds_after(closes));
    }
    const auto starts = Clock::now();
    for (int i = 0; i < launches; ++i) launch(other_work, other);
    for (const Data& d : data) launch(handle, d);
    std::vector<float> sums;
    for (const Data& d : data) sums.push_back(d.y.download().back());
    must(steps.reduce(sums, Reduction::sum, deadline_in(60)));
    report.steps.push_back(seconds_after(starts));

    for (const float sum : sums) report.sums_right = report.sums_right && sum == total;
    std::string in_use;
    for (const int n : plan.problems)
      for (const std::int64_t value : handle.config({n})) in_use += std::to_string(value) + ' ';
    report.digests_equal = same_on_all(steps, sha256(in_use)) && report.digests_equal;

    if (step % plan.between_commits != 0) continue;
    const auto commits = Clock::now();
    const CommitReport committed = runtime.commit({.wait = false});
    report.commits.push_back(seconds_after(commits));
    report.steps.back() += report.commits.back();
    report.changes += committed.changes.size();
    report.pending += committed.pending > 0 ? 1 : 0;
    report.digests_equal = same_on_all(steps, committed.digest) && report.digests_equal;
    report.settled = runtime.settled();  // the same on all ranks: they leave at the same step
    if (step >= plan.at_most || (step >= plan.at_least && report.settled)) return report;
  }
}

}  // namespace kiln::test
