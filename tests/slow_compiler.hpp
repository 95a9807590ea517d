// A rank whose compiler takes long, on every target: what the others do meanwhile. Each rank is a
// thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "codegen/compiler.hpp"
#include "rank_steps.hpp"
#include "runtime/background/make_engine.hpp"
#include "runtime/build/compilers.hpp"
#include "runtime/runtime.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::test {

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

/// `seconds`: that the compiler sleeps, once. Each rank lets its end go on its own thread, because
/// the ends of some transports wait for each other then.
inline std::vector<SlowCompilerReport> with_slow_compiler(const std::vector<std::string>& devices,
                                                          RankEnds ends, double seconds,
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
    const auto communicator = std::move(ends[static_cast<std::size_t>(rank)]);
    SymmetricMemory memory(runtime, communicator, {.bytes = 64, .flags = 2, .seconds = 60});
    const DynamicTuned kernel = runtime.tuned(meeting(memory.peers()));
    if (rank != last)  // the others have compiled before
      for (const std::int64_t block : {32, 64, 128})
        static_cast<void>(kernel.with_config({block}).workspace_size({1}));
    memory.barrier();  // all begin together
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
