// What ranks that serve go through, on every target: steps with an all-reduce each while they are
// tuned behind their launches, and a rank whose compiler takes long. Each rank is a thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codegen/compiler.hpp"
#include "kiln/communicators.hpp"
#include "kiln/kiln.hpp"
#include "runtime/background/make_engine.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/runtime.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"

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
  k.space.parameter("block", {64, 128}, 64);
  k.space.parameter("rounds", {1, 100}, 100);
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
  double idle_seconds = 2e-3;  ///< between steps, in which the background may measure
};

/// What a rank saw. A step is from its first launch to the end of its all-reduce. It begins when
/// the idle time before it is over, its window closed: how long closing takes is counted apart, and
/// so are commits, which come between two steps.
struct StepReport {
  std::vector<double> steps, closings, commits;  ///< seconds
  std::size_t changes = 0;                       ///< that commits put in use
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
           "; counted apart: " + std::to_string(commits.size()) + " commits, the longest " +
           ms(longest(commits)) + ", and windows, which closed within " + ms(longest(closings)) +
           "; " + std::to_string(changes) + " problems exchanged; digests " +
           (digests_equal ? "equal at each step" : "DIFFER");
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
    {
      TuningWindow window = runtime.window();
      std::this_thread::sleep_for(std::chrono::duration<double>(plan.idle_seconds));
      const auto closes = Clock::now();
      window.close();
      report.closings.push_back(seconds_after(closes));
    }
    const bool before = runtime.settled();
    const auto starts = Clock::now();
    for (int i = 0; i < launches; ++i) launch(other_work, other);
    for (const Data& d : data) launch(handle, d);
    std::vector<float> sums;
    for (const Data& d : data) sums.push_back(d.y.download().back());
    sums.push_back(before ? 0.0F : 1.0F);
    must(steps.reduce(sums, Reduction::sum, deadline_in(60)));
    report.steps.push_back(seconds_after(starts));

    const bool all_settled = sums.back() == 0;
    sums.pop_back();
    for (const float sum : sums) report.sums_right = report.sums_right && sum == total;
    std::string in_use;
    for (const int n : plan.problems)
      for (const std::int64_t value : handle.config({n})) in_use += std::to_string(value) + ' ';
    report.digests_equal = same_on_all(steps, sha256(in_use)) && report.digests_equal;

    if (step % plan.between_commits != 0) continue;
    const auto commits = Clock::now();
    const CommitReport committed = runtime.commit();
    report.commits.push_back(seconds_after(commits));
    report.changes += committed.changes.size();
    report.digests_equal = same_on_all(steps, committed.digest) && report.digests_equal;
    report.settled = all_settled;
    if (step >= plan.at_most || (step >= plan.at_least && all_settled)) return report;
  }
}

/// The kind's real one, which tells of what it compiles.
class ToldCompiler final : public codegen::Compiler {
 public:
  ToldCompiler(std::shared_ptr<codegen::Compiler> real, std::function<void()> before,
               std::function<void()> after)
      : real_(std::move(real)), before_(std::move(before)), after_(std::move(after)) {}

  codegen::CompilerIdentity identity() const override { return real_->identity(); }
  codegen::IncludeContext includes(const Target& target) const override {
    return real_->includes(target);
  }
  std::vector<std::string> options(const codegen::Source& source,
                                   const Target& target) const override {
    return real_->options(source, target);
  }
  codegen::CompileResult compile(const codegen::Source& source, const Target& target) override {
    before_();
    auto result = real_->compile(source, target);
    after_();
    return result;
  }

 private:
  const std::shared_ptr<codegen::Compiler> real_;
  const std::function<void()> before_, after_;
};

/// A runtime whose compiler tells of what it compiles.
inline Runtime told_runtime(const RuntimeOptions& options, std::function<void()> before,
                            std::function<void()> after) {
  auto device = runtime::open_device(options.device, {});
  const auto compiler = std::make_shared<ToldCompiler>(
      runtime::make_compiler(device->info().target.kind), std::move(before), std::move(after));
  return detail::Access::runtime(runtime::make_engine(
      options, std::move(device), [compiler](Target::Kind) { return compiler; }));
}

/// Ranks signal the next one and wait for the one before. Its one argument is the same always.
inline KernelDefinition meeting(const Peers* peers) {
  KernelDefinition k;
  k.name = "meeting";
  k.source.text = R"(
#include <kiln/peers.cuh>
template <int threads>
__global__ void meeting(int* out, const kiln::Peers* peers) {
  const kiln::Peers& p = *peers;
  if (threadIdx.x != 0) return;
  const unsigned epoch = ++*p.counters;
  kiln::signal(p, (p.rank + 1) % p.size, 1, epoch);
  if (kiln::wait(p, (p.rank + p.size - 1) % p.size, 1, epoch)) *out = 7;
}
)";
  k.entry = "meeting";
  k.arguments = {"int*", "const kiln::Peers*"};
  k.space.parameter("threads", {32, 64, 128}, 32);
  k.problem_fields = {"n"};
  k.launch = [](std::span<const std::int64_t> config, auto) {
    return Launch{{1}, {static_cast<unsigned>(config[0])}};
  };
  k.workload = [peers](auto, Workload& w) { w.output<int>(1).address(peers); };
  k.reference = [](auto, std::span<void* const> args) { *static_cast<int*>(args[0]) = 7; };
  return k;
}

/// What became of a rank while the last rank's compiler slept.
struct SlowCompilerReport {
  std::string said;      ///< of this rank, about the others; empty: all went on
  double seconds = 0;    ///< until then
  int begun = 0;         ///< candidates, which communicate
  int begun_before = 0;  ///< of these: while the last rank's compiler slept
  bool plan = false, launched = false;
  std::string digest;
};

enum class SlowCompiler {
  impatient,  ///< ranks tune, and wait for less than the compiler takes
  patient,    ///< ranks tune, and wait for longer
  launched    ///< nobody has prepared anything: launches wait for each other inside their kernels
};

/// `seconds`: that the compiler sleeps, once.
inline std::vector<SlowCompilerReport> with_slow_compiler(const std::vector<std::string>& devices,
                                                          const RankEnds& ends, double seconds,
                                                          SlowCompiler how, std::string& thrown) {
  std::vector<SlowCompilerReport> reports(devices.size());
  const int last = static_cast<int>(devices.size()) - 1;
  std::atomic<int> compiled = 0;
  std::atomic<bool> sleeps = true;  // until it has compiled for the first time
  thrown = on_ranks(last + 1, [&](int rank) {
    SlowCompilerReport& report = reports[static_cast<std::size_t>(rank)];
    RuntimeOptions options;
    options.device = devices[static_cast<std::size_t>(rank)];
    options.store.disk = false;
    options.mode = Mode::untuned;
    options.compile_threads = 1;
    std::function<void()> before = [] {}, after = [] {};
    if (rank == last) {
      before = [&] {
        if (compiled++ == 0) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      };
      after = [&] { sleeps = false; };
    }
    const Runtime runtime = told_runtime(options, before, after);
    const auto communicator = ends[static_cast<std::size_t>(rank)];
    SymmetricMemory memory(runtime, communicator, {.bytes = 64, .flags = 2, .seconds = 60});
    const DynamicTuned kernel = runtime.tuned(meeting(memory.peers()));
    const auto begin = std::chrono::steady_clock::now();
    if (how != SlowCompiler::launched) {
      TuneOptions tuning;
      tuning.ranks = communicator;
      tuning.together.lockstep = true;
      const double wait = how == SlowCompiler::impatient ? seconds / 4 : 4 * seconds + 30;
      tuning.together.first_seconds = tuning.together.step_seconds = wait;
      tuning.together.tune_seconds = wait;
      const auto guard = memory.guard(20);
      tuning.together.guard = [&](const std::function<void()>& launches) {
        ++report.begun;
        report.begun_before += sleeps ? 1 : 0;
        guard(launches);
      };
      const TuneResult result = kernel.tune({1}, tuning);
      report.seconds = seconds_after(begin);
      report.said = result.agreed->why;
      report.plan = result.agreed->outcome == RankReport::Outcome::plan;
      report.digest = result.agreed->plan_digest;
      if (!report.plan) return;  // the communicator is of no use any more
    }
    auto out = runtime.array<int>(1);
    const auto launch = [&] {
      kernel({}, {1}, out.data(), memory.peers());
      runtime.synchronize();
    };
    if (how == SlowCompiler::launched) {
      try {
        memory.within(deadline_in(rank == last ? 4 * seconds + 30 : seconds / 4), launch);
      } catch (const EnvironmentError& error) {
        report.said = error.what();
      }
      report.seconds = seconds_after(begin);
      memory.reset();
    }
    memory.within(deadline_in(60), launch);
    report.launched = out.download().front() == 7;
    memory.close();
  });
  return reports;
}

}  // namespace kiln::test
