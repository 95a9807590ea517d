#include "runtime/prepare/tune_budget.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"
#include "runtime/prepare/budget_places.hpp"
#include "runtime/prepare/slices.hpp"
#include "runtime/prepare/text_of.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/provisions.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/support/parallel.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/tune/best_guess.hpp"
#include "runtime/tune/candidate_space.hpp"
#include "runtime/tune/cost_model.hpp"
#include "runtime/tune/starting_points.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln::runtime {

using detail::format;

namespace {

/// Seconds; a longer budget is none, and a deadline so far away is still a time.
constexpr double kLongest = 1e8;
/// Neighbours whose winners a look measures.
constexpr std::size_t kNeighbours = 3;
/// The part of the budget in which best guesses are compiled ahead; the searches compile the rest.
constexpr double kForGuesses = 0.15;
/// The part of a slice after which a search ends for want of time: the rest is for its finals.
constexpr double kUsedUp = 0.8;

class Budget {
 public:
  Budget(detail::Engine& engine, std::span<const WeightedProblem> problems,
         const TuneOptions& options)
      : engine_(engine),
        options_(options),
        total_(std::min(options.max_seconds.value_or(0), kLongest)),
        may_look_(options.max_evaluations.value_or(0) == 0 && !options.retune),
        start_(Clock::now()),
        deadline_(total_, start_) {
    BudgetPlaces places(engine);
    std::map<std::pair<std::string, std::vector<std::string>>, std::size_t> kernels;
    for (const WeightedProblem& p : problems) {
      const BudgetPlaces::Place place = places.of(p);
      asked_.push_back(place.index);
      if (place.index == items_.size()) {
        const KernelDefinition& kernel = p.handle->definition();
        const std::size_t number =
            kernels.try_emplace({kernel.name, kernel.types}, kernels.size()).first->second;
        items_.push_back({p.handle, p.problem, place.first, {}, {}, {}, {}, {}, {}});
        courses_.push_back({number, 0, {}});
      }
      Item& item = items_[place.index];
      if (p.handle != item.handle && std::ranges::find(item.others, p.handle) == item.others.end())
        item.others.push_back(p.handle);
      double& weight = courses_[place.index].weight;
      weight = std::min(weight + p.weight, std::numeric_limits<double>::max());
    }
  }

  ~Budget() { engine_.drawn().drop(); }
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  std::vector<BudgetResult> run() {
    look();
    compile();
    stand_in();
    while (!options_.stop.stop_requested()) {
      const double left = deadline_.left();
      const auto next = next_slice(courses_, left, total_, may_look_);
      if (!next) break;
      tune(*next, left);
    }
    for (Item& item : items_) finish(item);
    tell();
    std::vector<BudgetResult> results;
    for (const std::size_t place : asked_)
      results.push_back({*items_[place].result, items_[place].failure});
    return results;
  }

 private:
  struct Item {
    ServedHandle* handle;  ///< tunes it
    Values problem;
    const ServedHandle* first;          ///< of all handles of the kernel
    std::vector<ServedHandle*> others;  ///< of the kernel, for the same problem: get what is found
    BestConfigs best;
    Values guess;  ///< the other config that is compiled first; empty: none
    std::optional<TuneResult> result;
    std::exception_ptr failure;  ///< there is no result, and more time would not help
    std::string in_vain;         ///< why a search ended without a result, for want of time

    const KernelDefinition& kernel() const { return handle->definition(); }
  };
  using Instance = std::pair<ServedHandle*, Values>;
  Builder::Access access() const {
    return engine_.may_compile() ? Builder::Access::compile : Builder::Access::look_up;
  }

  /// Errors are ignored here: tuning the problem reports them.
  void look() {
    for_each_index(engine_.builder().threads(), items_.size(), options_.stop,
                   [&](std::size_t i) {
                     try {
                       items_[i].best =
                           items_[i].handle->provisions().best_configs(items_[i].problem, options_);
                       // What is measured anew begins anew.
                       courses_[i].known = items_[i].best.winner && !options_.retune;
                       if (!courses_[i].known) items_[i].guess = guess(items_[i]);
                     } catch (...) {
                     }
                   },
                   {});
  }

  /// The cost model's best guess, which every search tries early; empty where it is not compiled
  /// ahead: on the host, where compiling takes the time that measuring needs.
  Values guess(const Item& item) const {
    const DeviceInfo& device = engine_.device()->info();
    if (device.limits.on_host() || item.handle->fixed() || !engine_.may_compile()) return {};
    const detail::Tunable subject(item.kernel());
    const std::vector<Values> authored = subject.configs(item.problem, device.limits);
    return best_guess(candidate_space(subject, item.problem, device.limits, authored),
                      CostModel(subject, item.problem, device), options_.seed);
  }

  /// Compiles each distinct instance once: first what problems get meanwhile, even beyond the
  /// budget, because a launch of a problem that has nothing would tune; then best guesses, those of
  /// heavy problems first. What comes too late for that is no guess any more.
  void compile() {
    std::set<Instance> picks;
    for (const Item& item : items_)
      if (!item.best.configs.empty()) picks.emplace(item.handle, item.best.configs.front());
    std::set<Instance> ready(picks);
    std::vector<std::size_t> heavy_first(items_.size());
    std::iota(heavy_first.begin(), heavy_first.end(), std::size_t{0});
    std::ranges::stable_sort(heavy_first, std::greater<>(),
                             [&](std::size_t i) { return courses_[i].weight; });
    std::vector<Instance> guesses;
    for (const std::size_t i : heavy_first)
      if (const Instance guess{items_[i].handle, items_[i].guess};
          !guess.second.empty() && ready.insert(guess).second)
        guesses.push_back(guess);
    build({picks.begin(), picks.end()}, {});
    const std::set<Instance> late = build(guesses, TimeLimit(kForGuesses * total_, start_));
    for (Item& item : items_)
      if (late.contains({item.handle, item.guess})) item.guess.clear();
  }

  /// Returns those that were not begun within the limit.
  std::set<Instance> build(const std::vector<Instance>& instances, const TimeLimit& limit) {
    std::vector<char> begun(instances.size(), 0);
    for_each_index(engine_.builder().builds_at_once(), instances.size(), options_.stop,
                   [&](std::size_t i) {
                     if (limit.passed()) return;
                     begun[i] = 1;
                     const auto& [handle, config] = instances[i];
                     try {
                       engine_.builder().build(handle->definition(), config,
                                               engine_.device()->info().target, access());
                     } catch (...) {  // tuning the problem reports it
                     }
                   },
                   {});
    std::set<Instance> late;
    for (std::size_t i = 0; i < instances.size(); ++i)
      if (!begun[i]) late.insert(instances[i]);
    return late;
  }

  void stand_in() {
    for (Item& item : items_) {
      if (item.best.configs.empty() || item.handle->fixed()) continue;
      const auto how = options_.stop.stop_requested() ? Builder::Access::look_up : access();
      const auto serve = [&](ServedHandle& handle, const BestConfigs& best) {
        handle.provisions().serve(item.problem, best, how, true, Stay::while_used);
      };
      ignoring_errors([&] { serve(*item.handle, item.best); });
      for (ServedHandle* const other : item.others)
        ignoring_errors(
            [&] { serve(*other, other->provisions().best_configs(item.problem, options_)); });
    }
  }

  /// Those that tuning the problem reports, or that leave what is in use as it is.
  template <class Work>
  static void ignoring_errors(const Work& work) {
    try {
      work();
    } catch (const DeviceLost&) {
      throw;
    } catch (...) {
    }
  }

  /// How many configs a tuning measures before its search proposes any: the untuned config, the
  /// default, the best guess, and what has won for neighbours.
  std::size_t suggestions(const Item& item) const {
    const DeviceInfo& device = engine_.device()->info();
    const detail::Tunable subject(item.kernel());
    std::set<Values> distinct(item.best.configs.begin(), item.best.configs.end());
    if (!item.guess.empty()) distinct.insert(item.guess);
    const SearchSpace space = candidate_space(subject, item.problem, device.limits,
                                              subject.configs(item.problem, device.limits));
    for (Values& config : engine_.records().starting_points(subject, item.problem, kNeighbours))
      if (space.point(config) && space.allowed(config)) distinct.insert(std::move(config));
    return distinct.size();
  }

  /// The data of the problem that is expected to be next, while this slice keeps the device busy:
  /// as if it gained nothing. Not on the host, where drawing would disturb what is timed, nor for
  /// workers, which have data of their own.
  void draw_ahead(const NextSlice& slice, double left) {
    if (engine_.device()->shares_cpu() || engine_.workshop().isolation() == Isolation::always)
      return;
    std::vector<TuningCourse> then = courses_;
    TuningCourse& course = then[slice.problem];
    course.slices.push_back({slice.seconds, course.best()});
    const auto next = next_slice(then, left - slice.seconds, total_, may_look_);
    if (!next || next->problem == slice.problem) return;
    const Item& item = items_[next->problem];
    try {
      const auto recall = engine_.records().recall(item.kernel(), item.problem, options_, false);
      if (recall && answers(*recall, options_, false)) return;
      engine_.drawn().begin(item.kernel(), item.problem, options_.seed);
    } catch (...) {  // tuning the problem reports it
    }
  }

  /// @param left seconds, of which the slice has some
  void tune(const NextSlice& slice, double left) {
    const bool last = slice.seconds >= left;  // there is no time for another one
    const std::size_t place = slice.problem;
    const double seconds = slice.seconds;
    Item& item = items_[place];
    TuningCourse& course = courses_[place];
    TuneOptions options = options_;
    options.max_seconds = seconds;
    const bool looks = slice.look;
    // Once the slice has its own data, drawn before or now.
    options.progress = [&, once = false](const TuneProgress& now) mutable {
      if (now.phase != TuneProgress::Phase::compile && !std::exchange(once, true))
        draw_ahead(slice, left);
      if (options_.progress) options_.progress(now);
    };
    const auto begun = Clock::now();
    try {
      if (looks) options.max_evaluations = suggestions(item);
      TuneOutcome tuned = item.handle->tune_bucket(item.problem, options);
      TuneResult& result = tuned.result;
      const double took = seconds_since(begun);
      const bool measured = result.winner().status == CandidateStatus::measured;
      const bool more = !result.complete && (looks || result.end == SearchEnd::seconds);
      const bool waited = more && tuned.ending == Ending::undecided;  // another had the turn
      for (ServedHandle* const other : item.others)
        ignoring_errors([&] { other->use_outcome(tuned, options); });
      course.done = !waited && (!more || (result.from_store && !looks) || options_.retune ||
                                (measured && item.handle->fixed()));
      course.slices.push_back({took, measured ? result.winner().seconds : 0});
      if (item.result) add_up(result, *item.result);
      item.result = std::move(result);
      item.in_vain.clear();
    } catch (const DeviceLost&) {
      throw;
    } catch (const TuningFailedError& error) {
      // With more time a candidate that is right may be found.
      const bool in_vain = seconds_since(begun) >= kUsedUp * seconds;
      if (in_vain) item.in_vain = error.what();
      fail(place, begun, !in_vain || last, in_vain ? nullptr : std::current_exception(),
           error.what());
    } catch (const std::exception& error) {
      fail(place, begun, true, std::current_exception(), error.what());
    } catch (...) {
      fail(place, begun, true, std::current_exception(), kForeignException);
    }
  }

  /// What was measured is kept.
  void fail(std::size_t place, Clock::time_point begun, bool done, std::exception_ptr failure,
            const char* why) {
    Item& item = items_[place];
    TuningCourse& course = courses_[place];
    course.slices.push_back({seconds_since(begun), course.best()});
    course.done = done;
    if (item.result)
      item.result->warnings.push_back(format("the tuning ended early: {}", why));
    else
      item.failure = std::move(failure);
  }

  /// All slices are one run to the caller.
  static void add_up(TuneResult& result, TuneResult& earlier) {
    result.from_store = result.from_store && earlier.from_store;
    result.evaluated += earlier.evaluated;
    result.compiled += earlier.compiled;
    result.wall_seconds += earlier.wall_seconds;
    result.compile_seconds += earlier.compile_seconds;
    result.verify_seconds += earlier.verify_seconds;
    result.time_seconds += earlier.time_seconds;
    result.search_seconds += earlier.search_seconds;
    earlier.spans.insert(earlier.spans.end(), std::move_iterator(result.spans.begin()),
                         std::move_iterator(result.spans.end()));
    result.spans = std::move(earlier.spans);
    for (std::string& text : earlier.warnings)
      if (std::ranges::find(result.warnings, text) == result.warnings.end())
        result.warnings.push_back(std::move(text));
  }

  /// Where the untuned config is not chosen for the problem: the winner of the nearest problem of
  /// the kernel that was measured and whose winner this problem allows.
  const Item* neighbour_of(const Item& item) const {
    const DeviceLimits& limits = engine_.device()->info().limits;
    const KernelDefinition& kernel = item.kernel();
    if (untuned_for_problem(kernel, item.problem, limits)) return nullptr;
    const Item* nearest = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const Item& other : items_) {
      if (other.first != item.first || !is_measured(other)) continue;
      const double far =
          std::inner_product(other.problem.begin(), other.problem.end(), item.problem.begin(), 0.0,
                             std::plus<>(), size_distance);
      if (far < least &&
          !kernel.space.violated(other.result->winner().config, item.problem, limits)) {
        nearest = &other;
        least = far;
      }
    }
    return nearest;
  }

  static bool is_measured(const Item& item) {
    return item.result && item.result->winner().status == CandidateStatus::measured;
  }

  /// Puts what is expected to be best in use, so that launches begin no other tuning, except where
  /// no candidate passed verification. Returns whose winner that is, if it is another problem's.
  const Item* use_best_expected(const Item& item) {
    const bool known = is_measured(item) || item.best.winner || item.handle->find(item.problem);
    const Item* const neighbour = known ? nullptr : neighbour_of(item);
    for (ServedHandle* const other : item.others) use_best_expected(item, *other, neighbour);
    return use_best_expected(item, *item.handle, neighbour);
  }

  const Item* use_best_expected(const Item& item, ServedHandle& handle, const Item* neighbour) {
    Provisions& provisions = handle.provisions();
    bool used = false;
    if (neighbour)
      ignoring_errors([&] {  // it may work for the neighbour alone
        used = provisions.use_expected(item.problem, neighbour->result->winner().config, access(),
                                       Stay::while_used);
      });
    if (used) return neighbour;
    provisions.use_stand_in(item.problem, Stay::while_used);
    return nullptr;
  }

  /// Sees to it that the problem has a result, of its failure if need be.
  void finish(Item& item) {
    if (!item.failure) try {
        conclude(item);
      } catch (const DeviceLost&) {
        throw;
      } catch (...) {
        item.failure = std::current_exception();
      }
    if (item.failure) {
      item.result = failed(item);
      engine_.log(LogLevel::warning,
                  format("{} {}: {}", item.kernel().name,
                         item.kernel().describe_problem(item.problem), item.result->failure));
    }
  }

  /// Calls no function of the program's.
  TuneResult failed(const Item& item) const {
    const KernelDefinition& kernel = item.kernel();
    const DeviceInfo& device = engine_.device()->info();
    TuneResult named;
    named.kernel = kernel.name;
    named.types = kernel.types;
    named.problem_fields = kernel.problem_fields;
    named.problem = item.problem;
    named.device = device.id;
    for (const Parameter& p : kernel.space.parameters()) named.parameters.push_back(p.name);
    return failed_result(std::move(named), kernel.space.default_config(device.target),
                         item.failure);
  }

  void conclude(Item& item) {
    const Item* neighbour = nullptr;
    if (item.in_vain.empty() && !item.handle->fixed()) try {
        neighbour = use_best_expected(item);
      } catch (const DeviceLost&) {
        throw;
      } catch (...) {
        engine_.log(LogLevel::warning, format("{} {}: {}", item.kernel().name,
                                              item.kernel().describe_problem(item.problem),
                                              text_of(std::current_exception())));
      }
    if (item.result && item.result->winner().status != CandidateStatus::not_tried) return;
    const bool stopped = options_.stop.stop_requested();
    const SearchEnd end = stopped ? SearchEnd::stopped : SearchEnd::seconds;
    if (auto known = item.handle->known(item.problem)) {
      item.result = std::move(*known);
      item.result->end = end;
      item.result->evaluated = 0;
      return;
    }
    std::string why = stopped ? "the run was stopped before it was tried"
                              : "the shared budget ran out before it was tried";
    const DeviceInfo& device = engine_.device()->info();
    if (!item.result) item.result = not_tuned(item.kernel(), item.problem, device, end, why);
    TuneResult& result = *item.result;
    if (!item.in_vain.empty()) result.warnings.push_back(item.in_vain);
    const auto ready = item.handle->find(item.problem);
    const Values used = ready ? ready->config : untuned_config(item.kernel(), item.problem, device);
    if (used == result.winner().config) return;
    result.winner_index = static_cast<std::size_t>(
        std::ranges::find(result.candidates, used, &Candidate::config) - result.candidates.begin());
    if (result.winner_index == result.candidates.size()) result.candidates.emplace_back();
    Candidate& untried = result.candidates[result.winner_index];
    untried.config = used;
    if (neighbour)
      why +=
          format("; it is the winner for {}", item.kernel().describe_problem(neighbour->problem));
    untried.reason = why;
  }

  void tell() const {
    std::size_t measured = 0, complete = 0;
    for (const Item& item : items_) {
      measured += is_measured(item) ? 1 : 0;
      complete += item.result->complete ? 1 : 0;
    }
    engine_.log(LogLevel::info,
                format("tuned {} problems ({} distinct) in {:.3g} s: {} measured, {} to the end",
                       asked_.size(), items_.size(), seconds_since(start_), measured, complete));
  }

  detail::Engine& engine_;
  const TuneOptions& options_;
  const double total_;  ///< seconds
  const bool may_look_;
  const Clock::time_point start_;
  const TimeLimit deadline_;
  std::vector<Item> items_;            ///< distinct
  std::vector<TuningCourse> courses_;  ///< of `items_`
  std::vector<std::size_t> asked_;     ///< place among them, by problem
};

}  // namespace

TuneResult failed_result(TuneResult named, Values config, const std::exception_ptr& failure) {
  named.end = SearchEnd::stopped;
  named.failure = text_of(failure);
  Candidate& base = named.candidates.emplace_back();
  base.config = std::move(config);
  base.reason = named.failure;
  return named;
}

std::vector<BudgetResult> tune_within(detail::Engine& engine,
                                      std::span<const WeightedProblem> problems,
                                      const TuneOptions& options) {
  check(options);
  return Budget(engine, problems, options).run();
}

}  // namespace kiln::runtime
