#include "runtime/prepare/tune_model.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <stop_token>
#include <string>
#include <tuple>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/prepare/tune_budget.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

using detail::format;

namespace {

/// The time of a meeting against that of a problem's search: as where a choice is tuned by itself.
constexpr double kMeeting = 0.25;
/// Seconds; one candidate is verified and timed however short it is.
constexpr double kLeastMeeting = 0.1;

/// Seconds; a longer budget is none, and a deadline so far away is still a time.
constexpr double kLongestModel = 1e8;

class Model {
 public:
  Model(detail::Engine& engine, std::span<const BudgetJob> jobs, const TuneOptions& options)
      : engine_(engine),
        options_(options),
        deadline_(std::min(options.max_seconds.value_or(0), kLongestModel), Clock::now()) {
    for (const BudgetJob& job : jobs)
      if (job.choice)
        add_choice(job);
      else
        add_kernel(job);
  }

  std::vector<TuneResult> run() {
    std::vector<BudgetResult> tuned;
    if (!problems_.empty()) {
      TuneOptions options = options_;
      options.max_seconds = *options_.max_seconds * (1 - part_of_meetings());
      tuned = tune_within(engine_, problems_, options);
    }
    meet_all();
    std::vector<TuneResult> results;
    std::exception_ptr first_failure;
    bool all_failed = true;
    for (const auto& [is_choice, place] : jobs_) {
      const BudgetResult& one = is_choice ? meetings_[place].outcome : tuned[place];
      if (!first_failure) first_failure = one.failure;
      all_failed = all_failed && one.failure;
      results.push_back(one.result);
    }
    if (all_failed && first_failure) std::rethrow_exception(first_failure);
    return results;
  }

 private:
  struct Meeting {
    detail::ChoiceCore* choice;
    Values problem;  ///< the first of its bucket
    Values bucket;
    double weight;
    std::vector<std::size_t> kernels{};  ///< places among the problems
    BudgetResult outcome{};
  };

  void add_kernel(const BudgetJob& job) {
    jobs_.emplace_back(false, problems_.size());
    problems_.push_back({job.handle, bucket_to_tune(*job.handle, job.problem), job.weight});
  }

  void add_choice(const BudgetJob& job) {
    const Values bucket(job.choice->description().operation.bucketed(job.problem));
    const auto [known, first] = places_.try_emplace({job.choice, bucket}, meetings_.size());
    jobs_.emplace_back(true, known->second);
    if (first) meetings_.push_back({job.choice, job.problem, bucket, 0});
    Meeting& meeting = meetings_[known->second];
    add(meeting.weight, job.weight);
    if (!first) {
      for (const std::size_t kernel : meeting.kernels) add(problems_[kernel].weight, job.weight);
      return;
    }
    try {
      for (auto& [kernel, problem] : job.choice->kernels(job.problem)) {
        ServedHandle* const handle = engine_.serving().find(*kernel).get();
        meeting.kernels.push_back(problems_.size());
        problems_.push_back({handle, std::move(problem), job.weight});
      }
    } catch (const DeviceLost&) {
      throw;
    } catch (...) {
      meeting.outcome = failed(meeting, std::current_exception());
    }
  }

  static void add(double& weight, double more) {
    weight = std::min(weight + more, std::numeric_limits<double>::max());
  }

  /// All of it where nothing is tuned by itself.
  double part_of_meetings() const {
    std::set<KernelProblem> distinct;
    for (const WeightedProblem& p : problems_) distinct.insert(kernel_problem(p));
    const double meetings = kMeeting * static_cast<double>(meetings_.size());
    return meetings / (meetings + static_cast<double>(distinct.size()));
  }

  /// Heavy ones first. What one leaves is for the others.
  void meet_all() {
    std::vector<std::size_t> order(meetings_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](std::size_t i) { return meetings_[i].weight; });
    std::size_t left = order.size();
    for (const std::size_t place : order) {
      Meeting& meeting = meetings_[place];
      const double seconds = deadline_.left() / static_cast<double>(left--);
      if (!meeting.outcome.failure) meet(meeting, seconds);
    }
  }

  void meet(Meeting& meeting, double seconds) {
    TuneOptions options = options_;
    options.max_seconds = std::max(seconds, kLeastMeeting);
    std::stop_source none;
    const bool late = !(seconds > 0) && !options_.stop.stop_requested();
    if (late) {
      none.request_stop();
      options.stop = none.get_token();
    }
    try {
      TuneResult& result = meeting.outcome.result;
      result = meeting.choice->meet(meeting.problem, options);
      if (!late) return;
      if (result.winner().status == CandidateStatus::measured) return;
      result.end = SearchEnd::seconds;
      result.candidates[result.winner_index].reason =
          "the shared budget ran out before its alternatives met";
    } catch (const DeviceLost&) {
      throw;
    } catch (...) {
      meeting.outcome = failed(meeting, std::current_exception());
    }
  }

  /// A kernel's problem, whatever the handle: they have one record.
  using KernelProblem = std::tuple<std::string, std::vector<std::string>, Values>;
  static KernelProblem kernel_problem(const WeightedProblem& p) {
    const KernelDefinition& kernel = p.handle->definition();
    return {kernel.name, kernel.types, p.problem};
  }

  BudgetResult failed(const Meeting& meeting, const std::exception_ptr& why) const {
    const detail::ChoiceDescription& choice = meeting.choice->description();
    TuneResult named;
    named.kernel = choice.name;
    named.types = choice.types;
    named.problem_fields = choice.operation.problem_fields;
    named.problem = meeting.bucket;
    named.device = engine_.device()->info().id;
    BudgetResult outcome{failed_result(std::move(named), {}, why), why};
    engine_.log(LogLevel::warning,
                format("choice {} for {}: {}", choice.name,
                       choice.operation.describe_problem(meeting.problem), outcome.result.failure));
    return outcome;
  }

  detail::Engine& engine_;
  const TuneOptions& options_;
  const TimeLimit deadline_;
  std::vector<WeightedProblem> problems_;
  std::vector<Meeting> meetings_;  ///< distinct
  std::map<std::pair<const detail::ChoiceCore*, Values>, std::size_t> places_;
  std::vector<std::pair<bool, std::size_t>> jobs_;  ///< whether it is a choice; its place
};

}  // namespace

std::vector<TuneResult> tune_model(detail::Engine& engine, std::span<const BudgetJob> jobs,
                                   const TuneOptions& options) {
  return Model(engine, jobs, options).run();
}

}  // namespace kiln::runtime
