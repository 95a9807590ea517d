// The problems of one handle: what launches of each get, and what becomes of it.
//
//   const Launchable* ready = problems.find(problem);  // the hit path
//   if (!ready) problems.make(problem, work);           // one thread works, others wait for it
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "cache/single_flight.hpp"
#include "kiln/detail/handle_core.hpp"
#include "kiln/error.hpp"
#include "kiln/key.hpp"
#include "kiln/missing.hpp"
#include "runtime/serve/problem_state.hpp"
#include "runtime/serve/problem_table.hpp"
#include "runtime/support/counters.hpp"

namespace kiln::runtime {

/// Safe from any number of threads. What it returned stays valid as long as the object. Callables
/// that are handed in run without any of its locks; they may ask for other problems, but must not
/// make, or load a stand-in for, their own.
class Problems {
 public:
  struct GaveUp {};  ///< the time for it was spent waiting
  /// How making a launchable ends, unless it throws.
  using Made = std::variant<detail::Launchable, Missing, GaveUp>;
  using Work = std::function<Made()>;
  /// What the callers get: the launchable in use, if there is one.
  using Outcome = std::variant<const detail::Launchable*, Missing, GaveUp>;

  using Loaded = std::variant<detail::Launchable, Missing>;
  using Load = std::function<Loaded()>;
  using StandIn = std::variant<const detail::Launchable*, Missing>;

  enum class If { not_in_use, always };

  /// `count`: a number that the problems held here are added to; null: none.
  explicit Problems(PerKernel::Number count = {}) : count_(std::move(count)) {}
  Problems(const Problems&) = delete;
  Problems& operator=(const Problems&) = delete;
  ~Problems() {
    if (count_) *count_ -= static_cast<std::int64_t>(lives_.size());
  }

  /// The launchable in use, or null. Lock-free, allocation-free.
  const detail::Launchable* find(std::span<const std::int64_t> problem) const noexcept {
    return table_.find(problem);
  }
  /// The same with stand-ins of at least that standing.
  const detail::Launchable* served(std::span<const std::int64_t> problem,
                                   Standing at_least) const noexcept {
    return table_.find(problem, at_least);
  }

  /// What was ever in use or stood in: all of it stays loaded.
  std::vector<const detail::Launchable*> loaded() const { return table_.all(); }

  /// Runs `work`, one thread per problem at a time; the others wait for its outcome. With
  /// If::not_in_use, nothing is done where a launchable is in use.
  /// @throws what `work` throws
  Outcome make(std::span<const std::int64_t> problem, const Work& work, If when = If::not_in_use);
  /// As make(), but returns nothing at once if another thread is making the problem.
  std::optional<Outcome> try_make(std::span<const std::int64_t> problem, const Work& work,
                                  If when = If::not_in_use);

  /// What is served with at least that standing. If there is nothing, `load` is called, by one
  /// thread at a time. @throws what `load` throws
  StandIn stand_in(std::span<const std::int64_t> problem, Standing standing, const Load& load);

  /// Puts the launchable in use, unless the one in use has the same config. A launchable that is
  /// being made meanwhile does not replace it.
  const detail::Launchable& choose(detail::Launchable chosen);

  ProblemState state(std::span<const std::int64_t> problem) const;
  /// What is missing, in the two `missing` states.
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
    bool chosen = false;  ///< since the making that is going on began
  };

  Outcome work_alone(const Values& problem, const Work& work, If when);
  Outcome end(const Values& problem, Made made);
  /// The mutex is held.
  Life& life_of(const Values& problem);
  void advance(const Values& problem, ProblemEvent event);
  const detail::Launchable& put_in_use(detail::Launchable& made);

  const PerKernel::Number count_;
  ProblemTable table_;
  cache::SingleFlight<Values, Outcome> makers_;
  cache::SingleFlight<std::pair<Standing, Values>, StandIn> loaders_;
  mutable std::mutex mutex_;  ///< of those below, and of what is published in `table_`
  std::map<Values, Life> lives_;
  std::map<Digest, TuningFailedError> failures_;
};

}  // namespace kiln::runtime
