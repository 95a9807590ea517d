// Tuning that ranks do together: what is tried, how, and what comes of it. The agreement itself is
// in ranks/.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/communicator.hpp"
#include "kiln/detail/tunable.hpp"
#include "kiln/tune.hpp"
#include "runtime/device/device.hpp"
#include "runtime/measure/bench.hpp"

namespace kiln::runtime {

/// What a config is to be chosen for.
struct TunableProblem {
  detail::Tunable what;
  Values problem;  ///< bucketed
};

/// Configs of one problem that are to be measured.
struct Request {
  std::size_t problem = 0;
  std::vector<Values> configs;
  std::optional<std::size_t> incumbent{};  ///< the place of what was on record before
  /// Whether the choice is made by these times, so that the best are timed again here. If not, the
  /// best of all ranks will be measured once more.
  bool decides = true;
  /// Only for trials that are always in step: configs, by place, which this rank does not try. The
  /// others hear of it, so that none does.
  std::map<std::size_t, Refusal> refused{};
};

/// This rank has lost its device while it tried candidates of a problem.
class TrialLostDevice final : public DeviceLost {
 public:
  /// @param seen what became of the candidates at work: if it is known which one did it, that one
  /// is `crashed`
  TrialLostDevice(const DeviceLost& why, std::size_t problem, std::vector<Candidate> seen)
      : DeviceLost(why),
        problem_(problem),
        seen_(std::make_shared<const std::vector<Candidate>>(std::move(seen))) {}
  std::size_t problem() const noexcept { return problem_; }
  const std::vector<Candidate>& seen() const noexcept { return *seen_; }

 private:
  std::size_t problem_;
  std::shared_ptr<const std::vector<Candidate>> seen_;  ///< shared, so that a copy cannot throw
};

/// How a config is tried: on a bench, or by running a region. An exception from one of these
/// functions is this rank's trouble: the other ranks are told, and all use defaults.
class Trials {
 public:
  virtual ~Trials() = default;

  /// Makes what measure_in_step() needs of a problem, on the thread that tunes: the program's
  /// functions run there. Why it cannot be had; nothing: it is there.
  virtual std::optional<Refusal> make_data(std::size_t /*problem*/) { return {}; }
  /// Makes `config` ready to be launched, and does not launch it. Why it cannot be launched here;
  /// nothing: it can. Called from several threads.
  /// @param for_lockstep also for measure_in_step(), with its data
  virtual std::optional<Refusal> make_ready(std::size_t problem, const Values& config,
                                            bool for_lockstep) = 0;

  /// One candidate per config, in the same order. Candidates that were not reached before the
  /// deadline are `not_tried`.
  virtual std::vector<std::vector<Candidate>> measure(std::span<const Request> requests,
                                                      Deadline deadline) = 0;

  /// One config of something that communicates, run by all ranks at the same time: the number of
  /// launches follows from `timing` and from what is launched.
  virtual Candidate measure_in_step(std::size_t problem, const Values& config, TimingPolicy timing,
                                    Deadline deadline) = 0;

  /// What measure() tries runs in a worker from now on, where that is possible.
  virtual void isolate() {}
  /// Why measure_in_step() cannot try configs in workers; empty: no reason is
  /// known.
  virtual std::string why_not_in_workers() const { return "its trials are the program's own"; }
  /// From now on it does, where the workers of all ranks can be had. The same on all ranks.
  virtual void isolate_in_step() {}

  /// What a candidate may cost, for sharding; empty: all alike. Begins nothing after the deadline.
  struct Cost {
    double compile_seconds = 0, run_seconds = 0;
  };
  virtual std::vector<Cost> costs(std::size_t /*problem*/, std::span<const Values> /*configs*/,
                                  Deadline /*deadline*/) {
    return {};
  }

  /// Whether ranks run the candidates in step whatever RankOptions::lockstep says.
  virtual bool always_in_step() const { return false; }

  /// Adds what this rank saw while it measured: seconds spent, warnings, spans; and whether the
  /// search was complete, if that is not so.
  virtual void annotate(std::size_t /*problem*/, TuneResult& /*result*/) const {}
};

}  // namespace kiln::runtime
