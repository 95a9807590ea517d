// The problems of one handle: what launches of each get, and what becomes of it.
//
//   detail::ReadSection section;
//   begin(section);
//   if (auto* ready = problems.find(problem, section)) return launch(*ready);  // the hit path
//   problems.make(problem, work);  // one thread works, others wait for it
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
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

/// How many problems are held, and which of them must stay.
struct ProblemBound {
  std::size_t most = 0;        ///< 0: any number
  bool may_be_evicted = true;  ///< by evict(); without that and without `most` there is no bound
  /// Erases from the list the problems that must stay, and withdraws what was to be done for the
  /// others. Called with the lock held, so it must not ask for problems. Empty: all may leave.
  std::function<void(std::vector<Values>&)> release{};
  /// Destroys what has left. Empty: at once, on the thread that has found it unused.
  std::function<void(std::shared_ptr<const void>)> dispose{};
  /// Called after something was put in use or stands in, on that thread, without any lock: lets
  /// problems of several handles leave where they hold too much together. Empty: they may.
  std::function<void()> keep_all{};
  Counters* counters = nullptr;  ///< where it is counted; null: nowhere
  /// Called after launches of a problem got another config, on that thread, without any lock.
  /// `before`: the one that they got before; null: none. Empty: nobody is told.
  std::function<void(const Values& problem, const Values& config, const Values* before)>
      published{};
};

/// Safe from any number of threads. Callables that are handed in run without any of its locks,
/// except ProblemBound::release; they may ask for other problems, but must not make, or load a
/// stand-in for, their own.
///
/// With a bound, what is replaced or leaves is freed when no section and no owner has it. Without
/// one all of it stays valid as long as the object.
class Problems {
 public:
  struct Unmade {};  ///< without a verdict: a later making tries again
  /// How making a launchable ends, unless it throws.
  using Made = std::variant<detail::Launchable, Missing, Unmade>;
  using Work = std::function<Made()>;
  /// What the callers get: the launchable in use, if there is one.
  using Outcome = std::variant<detail::Ready, Missing, Unmade>;

  using Loaded = std::variant<detail::Launchable, Missing>;
  using Load = std::function<Loaded()>;
  using StandIn = std::variant<detail::Ready, Missing>;

  enum class If { not_in_use, always };

  /// `count`: a number that the problems held here are added to; null: none.
  explicit Problems(PerKernel::Number count = {})
      : count_(std::move(count)), table_(ProblemTable::Replaced::stays) {}
  Problems(PerKernel::Number count, ProblemBound bound)
      : count_(std::move(count)),
        bound_(std::move(bound)),
        table_(bound_.most == 0 && !bound_.may_be_evicted ? ProblemTable::Replaced::stays
                                                          : ProblemTable::Replaced::leaves) {}
  Problems(const Problems&) = delete;
  Problems& operator=(const Problems&) = delete;
  ~Problems() {
    if (count_) *count_ -= static_cast<std::int64_t>(lives_.size());
  }

  /// The launchable in use, or null. Lock-free, allocation-free.
  const detail::Launchable* find(std::span<const std::int64_t> problem,
                                 detail::ReadSection& section) const noexcept {
    return table_.find(problem, section);
  }
  detail::Ready find(std::span<const std::int64_t> problem) const noexcept {
    return table_.find(problem);
  }
  /// The same with stand-ins of at least that standing.
  detail::Ready served(std::span<const std::int64_t> problem, Standing at_least) const noexcept {
    return table_.find(problem, at_least);
  }

  /// What is in use or stands in; without a bound, also what did before.
  std::vector<detail::Ready> loaded() const { return table_.all(); }

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
  /// being made meanwhile does not replace it. `built_anew`: its source may be another one, so it
  /// replaces that, too. Counts as a use of the problem.
  detail::Ready choose(detail::Launchable chosen, bool built_anew = false);
  /// The same, if `seen` is still what is in use for the problem. Returns whether it was.
  bool choose_over(const detail::Ready& seen, detail::Launchable chosen);
  /// What is in use for the problem was chosen in its context, by a region: a record, which knows
  /// the problem alone, does not replace it. So the problem stays, whatever the bound, until
  /// something else is chosen.
  void keep_choice(std::span<const std::int64_t> problem);
  /// What is in use, if it was kept so; else null.
  detail::Ready kept_choice(std::span<const std::int64_t> problem) const;

  /// The problem stays, whatever the bound, from now on or from when it is held.
  void pin(std::span<const std::int64_t> problem);
  bool pinned(std::span<const std::int64_t> problem) const;
  /// The problem stays while this lives, whatever the bound. The problems must outlive it.
  class Pin {
   public:
    Pin(Problems& problems, std::span<const std::int64_t> problem);
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    ~Pin();

   private:
    Problems& problems_;
    std::map<Values, std::size_t>::iterator pins_;
  };
  /// Lets problems leave that were not used since this was called last: `most` of them at most, in
  /// one round over all. Returns how many. @pre there is a bound
  std::size_t evict(std::size_t most);
  /// Whether something that has left waits for a launch to end.
  bool waiting() const { return table_.waiting(); }
  /// Frees what has left and is not used any more.
  void reclaim() noexcept;

  ProblemState state(std::span<const std::int64_t> problem) const;
  /// Whether launches of any problem get a stand-in that is not the best known. Takes time by the
  /// number of problems.
  bool on_stand_in() const;
  /// What is missing, in the two `missing` states.
  std::optional<Missing> missing(std::span<const std::int64_t> problem) const;

  /// With ranks: the config that they chose together, whether it could be loaded here or not.
  std::optional<Values> agreed(std::span<const std::int64_t> problem) const;
  /// Ranks agree on this many problems of a handle, and not on more. None is forgotten: a rank that
  /// forgets one would ask the others, which remember it and do not answer.
  static constexpr std::size_t kMostAgreed = std::size_t{1} << 16;
  enum class By { all_ranks, this_rank };
  /// Whether all ranks may agree on this problem. The same on all of them, because they agree on
  /// the same problems in the same order, and what one rank has decided alone does not count.
  bool may_agree(std::span<const std::int64_t> problem) const;
  /// False: may_agree() forbids it.
  bool agree(std::span<const std::int64_t> problem, const Values& config, By by = By::all_ranks);
  /// Launches of this problem throw `why`, and ask no rank: the ranks found nothing, or went on
  /// without this one. Holds until agree(). False: may_agree() forbids it.
  bool remember_none(std::span<const std::int64_t> problem, std::exception_ptr why);
  /// Throws what remember_none() was given.
  void throw_if_none(std::span<const std::int64_t> problem) const;
  /// The same as agree(), if `seen` is still what agreed() gives.
  void agree_over(std::span<const std::int64_t> problem, const std::optional<Values>& seen,
                  const Values& config);

  /// Launches have measured it, although it was on record.
  bool measured_anew(std::span<const std::int64_t> problem) const;
  void note_measured_anew(std::span<const std::int64_t> problem);

  /// Failed requests that are remembered where problems have no bound of their own.
  static constexpr std::size_t kMostFailures = 1024;
  /// How a request to tune failed before.
  std::optional<TuningFailedError> failure(const Digest& request) const;
  void remember_failure(const Digest& request, const TuningFailedError& error);
  void forget_failure(const Digest& request);

 private:
  struct Life {
    ProblemState state = ProblemState::unknown;
    std::optional<Missing> missing;
    bool chosen = false;   ///< since the making that is going on began
    bool kept = false;     ///< keep_choice()
    bool pinned = false;   ///< stays: pin()
    bool leaving = false;  ///< found by the hand in this sweep
  };
  using Lives = std::map<Values, Life>;
  struct Agreed {
    std::optional<Values> config{};  ///< nothing: none may be used
    std::exception_ptr none{};       ///< then: why
    bool counts = false;             ///< all ranks have agreed on this problem
  };

  class Sweep;

  Outcome work_alone(const Values& problem, const Work& work, If when);
  Outcome end(const Values& problem, Made made);
  /// The mutex is held.
  Life& life_of(const Values& problem);
  bool has_room_for(const Values& problem) const;
  void count(Agreed& agreement);
  void advance(const Values& problem, ProblemEvent event);
  detail::Ready put_in_use(detail::Launchable& made, Sweep& sweep);
  detail::Ready publish(detail::Launchable& made, Standing standing, Sweep& sweep);
  /// Of those that nothing keeps and that were not used since the hand passed them last.
  std::vector<Values> unused(std::size_t most, std::size_t rounds, const Life* but = nullptr);
  std::size_t leave(const std::vector<Values>& problems);
  /// `newest` stays.
  void keep_to_bound(const Values& newest);

  const PerKernel::Number count_;
  const ProblemBound bound_;
  ProblemTable table_;
  cache::SingleFlight<Values, Outcome> makers_;
  cache::SingleFlight<std::pair<Standing, Values>, StandIn> loaders_;
  mutable std::mutex mutex_;  ///< of those below, and of what is published in `table_`
  Lives lives_;
  std::set<Values> pinned_;              ///< held or not
  std::map<Values, std::size_t> pins_;   ///< how many each problem has; held or not
  Lives::iterator hand_ = lives_.end();  ///< goes round, as that of a clock
  std::size_t sweep_at_ = 0;             ///< more lives than that are too many
  std::map<Values, Agreed> agreed_;      ///< outlasts the lives: no rank asks the others again
  std::size_t counted_ = 0;              ///< of these
  std::map<Digest, TuningFailedError> failures_;
  std::set<Values> measured_anew_;
};

}  // namespace kiln::runtime
