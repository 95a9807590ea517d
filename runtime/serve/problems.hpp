// The problems of one handle: what launches of each get, and what becomes of it.
//
//   const ReadyKernel* ready = problems.find(problem);  // the hit path
//   if (!ready) problems.make(problem, work);           // one thread works, others wait for it
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <variant>

#include "cache/single_flight.hpp"
#include "kiln/detail/handle_core.hpp"
#include "kiln/error.hpp"
#include "kiln/key.hpp"
#include "kiln/missing.hpp"
#include "runtime/serve/problem_state.hpp"
#include "runtime/serve/problem_table.hpp"

namespace kiln::runtime {

/// Safe from any number of threads. What it returned stays valid as long as the object. Callables
/// that are handed in run without any of its locks; they may ask for other problems, but must not
/// make, or load a stand-in for, their own.
class Problems {
 public:
  struct GaveUp {};  ///< the time for the making went in waiting
  /// How a making ends, unless by an exception.
  using Made = std::variant<detail::ReadyKernel, Missing, GaveUp>;
  using Work = std::function<Made()>;
  /// What those get who asked for it. Where a version is in use it is always that.
  using Outcome = std::variant<const detail::ReadyKernel*, Missing, GaveUp>;

  using Loaded = std::variant<detail::ReadyKernel, Missing>;
  using Load = std::function<Loaded()>;
  using StandIn = std::variant<const detail::ReadyKernel*, Missing>;

  enum class If { not_in_use, always };

  /// The version in use, or null. Lock-free, allocation-free.
  const detail::ReadyKernel* find(std::span<const std::int64_t> problem) const noexcept {
    return table_.find(problem);
  }
  /// The same with stand-ins of at least that standing.
  const detail::ReadyKernel* served(std::span<const std::int64_t> problem,
                                    Standing at_least) const noexcept {
    return table_.find(problem, at_least);
  }

  /// What `work` comes to, which only one thread per problem does at a time: the others get that
  /// one's outcome. With If::not_in_use, `work` is not done where a version is in use.
  /// @throws what `work` throws
  Outcome make(std::span<const std::int64_t> problem, const Work& work, If when = If::not_in_use);
  /// The same, but nothing at once while another thread is at it.
  std::optional<Outcome> try_make(std::span<const std::int64_t> problem, const Work& work,
                                  If when = If::not_in_use);

  /// What is served with at least that standing, or else what `load` loads, which only one thread
  /// does at a time. @throws what `load` throws
  StandIn stand_in(std::span<const std::int64_t> problem, Standing standing, const Load& load);

  /// The version, or the one that is in use if it has the same config, is in use from now on.
  const detail::ReadyKernel& choose(detail::ReadyKernel version);

  ProblemState state(std::span<const std::int64_t> problem) const;
  /// In the states `missing`: what is.
  std::optional<Missing> missing(std::span<const std::int64_t> problem) const;

  /// With ranks: the config that they chose together, whether it could be loaded here or not.
  std::optional<Values> agreed(std::span<const std::int64_t> problem) const;
  void agree(std::span<const std::int64_t> problem, const Values& config);

  /// How a request to tune failed before.
  std::optional<TuningFailedError> failure(const Digest& request) const;
  void remember_failure(const Digest& request, const TuningFailedError& error);

 private:
  struct Life {
    ProblemState state = ProblemState::unknown;
    std::optional<Missing> missing;
    std::optional<Values> agreed;
  };

  Outcome work_alone(const Values& problem, const Work& work, If when);
  Outcome end(const Values& problem, Made made);
  /// The mutex is held.
  void advance(const Values& problem, ProblemEvent event);
  const detail::ReadyKernel& put_in_use(detail::ReadyKernel& version);

  ProblemTable table_;
  cache::SingleFlight<Values, Outcome> makers_;
  cache::SingleFlight<std::pair<Standing, Values>, StandIn> loaders_;
  mutable std::mutex mutex_;  ///< of those below, and of what is published in `table_`
  std::map<Values, Life> lives_;
  std::map<Digest, TuningFailedError> failures_;
};

}  // namespace kiln::runtime
