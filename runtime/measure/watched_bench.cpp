#include "runtime/measure/watched_bench.hpp"

#include <algorithm>
#include <utility>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

using kiln::detail::format;

struct WatchedBench::WatchedRig final : Rig {
  WatchedRig(std::shared_ptr<Rig> rig, Values c, std::string t)
      : inner(std::move(rig)), config(std::move(c)), text(std::move(t)) {}
  bool recorded() const noexcept override { return inner->recorded(); }
  bool is_call() const noexcept override { return inner->is_call(); }

  const std::shared_ptr<Rig> inner;
  const Values config;
  const std::string text;  ///< the config, for messages
};

WatchedBench::WatchedBench(TrialBench& inner, double limit, Tell tell, Alone alone, Late late)
    : inner_(inner),
      limit_(limit),
      rejects_(limit > 0 && late == Late::rejected),
      tell_(std::move(tell)),
      alone_(std::move(alone)),
      watch_([this](double seconds) { this->tell(seconds, false); }) {}

std::variant<std::shared_ptr<Rig>, Refusal> WatchedBench::load(const Trial& trial) {
  auto loaded = inner_.load(trial);
  if (auto* rig = std::get_if<std::shared_ptr<Rig>>(&loaded))
    return std::make_shared<WatchedRig>(std::move(*rig), trial.config, trial.text);
  return loaded;
}

const Rig& WatchedBench::inner(const Rig& rig) {
  return *static_cast<const WatchedRig&>(rig).inner;
}

/// The calling thread waits in the trial, or has returned from it.
void WatchedBench::tell(double seconds, bool returned) {
  told_ = true;
  const Overdue late{at_work_->config, at_work_->text, seconds, allowed_, rejects_, returned};
  try {
    if (also_tell_) also_tell_(late);
  } catch (...) {
    // It is the program's exception, and `tell_` is still to be called.
  }
  if (tell_) tell_(late);
}

template <class Work>
auto WatchedBench::watched(Rig& rig, const Work& work) {
  auto& r = static_cast<WatchedRig&>(rig);
  at_work_ = &r;
  allowed_ = limit_ > 0 ? limit_ : usual_limit(longest_);
  told_ = false;
  watch_.begin(allowed_);
  const auto end = [&] {
    const double seconds = watch_.end();
    longest_ = std::max(longest_, seconds);
    if (told_) tell(seconds, true);
    return seconds;
  };
  auto result = [&] {
    try {
      return work(*r.inner);
    } catch (...) {
      end();
      throw;
    }
  }();
  if (const double seconds = end(); rejects_ && seconds > limit_)
    throw TrialFault(CandidateStatus::hung,
                     format("it ended after {:.3g} s, and {:.3g} s is the limit", seconds, limit_));
  return result;
}

/// With no other tuning of the runtime at work, which would disturb what is timed here. A call may
/// wait for one on another thread: then `again` has it made once more; a call that does so each
/// time is taken as it is.
template <class Work>
auto WatchedBench::alone(bool again, const Work& work) {
  constexpr int kMostTimes = 3;
  for (int times = 1;; ++times) {
    if (alone_.begin) alone_.begin();
    const auto ended = [&] { return !alone_.end || alone_.end(); };
    auto result = [&] {
      try {
        return work();
      } catch (...) {
        ended();
        throw;
      }
    }();
    if (ended() || !again || in_step_ || times == kMostTimes) return result;
  }
}

Verdict WatchedBench::verify(Rig& rig) {
  return alone(false,
               [&] { return watched(rig, [&](Rig& inner) { return inner_.verify(inner); }); });
}

std::size_t WatchedBench::most_launches(const Rig& rig) const {
  return inner_.most_launches(*static_cast<const WatchedRig&>(rig).inner);
}

double WatchedBench::time(Rig& rig, std::size_t launches) {
  return alone(
      true, [&] { return watched(rig, [&](Rig& inner) { return inner_.time(inner, launches); }); });
}

bool WatchedBench::record(Rig& rig, std::size_t launches) {
  return alone(false, [&] {
    return watched(rig, [&](Rig& inner) { return inner_.record(inner, launches); });
  });
}

double WatchedBench::host_seconds(Rig& rig) {
  return alone(
      true, [&] { return watched(rig, [&](Rig& inner) { return inner_.host_seconds(inner); }); });
}

void WatchedBench::forget_recording(Rig& rig) {
  inner_.forget_recording(*static_cast<WatchedRig&>(rig).inner);
}

}  // namespace kiln::runtime
