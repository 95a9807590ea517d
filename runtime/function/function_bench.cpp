#include "runtime/function/function_bench.hpp"

#include <bit>
#include <limits>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/measure/sampler.hpp"
#include "runtime/measure/translated.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

/// Filling more would take longer on a host than what is timed.
constexpr std::size_t kMostHostFlush = std::size_t{64} << 20;
constexpr std::size_t kMostCalls = 1000;

}  // namespace

struct FunctionBench::FunctionRig final : Rig {
  FunctionRig(Values c, std::string t) : config(std::move(c)), text(std::move(t)) {}

  bool recorded() const noexcept override { return replay != nullptr; }
  bool is_call() const noexcept override { return true; }

  const Values config;
  const std::string text;  ///< the config, for messages
  std::size_t samples = 0;
  std::size_t launches = 0;  ///< of the replay
  std::unique_ptr<Replay> replay;
};

FunctionBench::FunctionBench(std::shared_ptr<Device> device,
                             const detail::FunctionDescription& function,
                             const detail::FunctionCall& call, RankLog* log)
    : device_(std::move(device)), function_(function), call_(call), log_(log) {}

void FunctionBench::finish() {
  if (const auto last = std::exchange(put_back_, {})) translated([&] { last(call_.stream); });
}

std::variant<std::shared_ptr<Rig>, Refusal> FunctionBench::load(const Trial& trial) {
  return std::make_shared<FunctionRig>(trial.config, trial.text);
}

Verdict FunctionBench::verify(Rig& rig) {
  call_prepared(false, [&] {
    call(static_cast<FunctionRig&>(rig));
    device_->synchronize(call_.stream);
  });
  return verdict();
}

void FunctionBench::call_prepared(bool timed, const std::function<void()>& calls) {
  const auto prepare = [&] {
    put_back();
    if (timed) flush();
  };
  if (!in_step_) return prepare(), calls();
  in_step_->share_failure([&] {
    prepare();
    in_step_->run(calls);
  });
}

Verdict FunctionBench::verdict() const {
  if (!call_.verify) return {};
  bool right = false;
  std::string why = "the function's `verify` does not accept its results";
  try {
    right = translated(call_.verify);
  } catch (const DeviceLost&) {
    throw;
  } catch (const Error& error) {
    why = error.what();
  }
  if (right) return {};
  return {false, std::numeric_limits<double>::infinity(), why};
}

void FunctionBench::keep_cold(bool cold, const TimeLimit&) {
  cold_ = cold && device_->info().limits.l2_bytes > 0;
}

std::size_t FunctionBench::most_launches(const Rig&) const { return one_by_one() ? 1 : kMostCalls; }

double FunctionBench::time(Rig& rig, std::size_t launches) {
  auto& r = static_cast<FunctionRig&>(rig);
  double seconds = 0;
  call_prepared(true, [&] {
    if (in_step_) wait_for_ranks(*device_, call_.stream);
    seconds = timed(*device_, call_.stream, [&] {
      if (r.replay && launches == r.launches) return r.replay->run(call_.stream);
      for (std::size_t i = 0; i < launches; ++i) call(r);
    });
  });
  if (std::has_single_bit(++r.samples)) look_again();
  return seconds;
}

/// Results may be right once and wrong another time. Looking at each would take too long, and
/// nobody else's calls have come in between.
void FunctionBench::look_again() {
  if (!call_.verify) return;
  device_->synchronize(call_.stream);
  if (const Verdict now = verdict(); !now.right)
    throw TrialFault(
        CandidateStatus::wrong_result,
        format("its results were right at first, but wrong while it was timed: {}", now.why));
}

bool FunctionBench::record(Rig& rig, std::size_t launches) {
  if (!function_.graph_replay || one_by_one()) return false;
  auto& r = static_cast<FunctionRig&>(rig);
  r.launches = launches;
  r.replay = device_->capture(call_.stream, [&] {
    for (std::size_t i = 0; i < launches; ++i) call(r);
  });
  return r.replay != nullptr;
}

void FunctionBench::forget_recording(Rig& rig) { static_cast<FunctionRig&>(rig).replay.reset(); }

/// The first call finds the caller's state; before later calls that is restored.
void FunctionBench::put_back() {
  if (!function_.changes_state) return;
  translated([&] {
    if (put_back_)
      put_back_(call_.stream);
    else if (!(put_back_ = call_.snapshot(call_.stream)))
      throw UserError(format("function {}: `snapshot` returned an empty function", function_.name));
  });
}

void FunctionBench::flush() {
  if (!cold_) return;
  if (!flush_ && !flush_failed_) try {
      flush_ = shares_cpu() ? CacheFlush(device_, kMostHostFlush) : CacheFlush(device_);
    } catch (const Error& error) {
      flush_failed_ = true;
      if (log_) log_->line(function_.name + ": its calls find the cache warm: " + error.what());
    }
  flush_.run(call_.stream);
}

void FunctionBench::call(const FunctionRig& rig) {
  // Written before the call, so that the last line of a log names a call that did not return.
  if (log_ && told_ != rig.text) log_->line(function_.name + " calls with " + (told_ = rig.text));
  translated([&] { call_.run(rig.config, call_.stream); });
}

}  // namespace kiln::runtime
