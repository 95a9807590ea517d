// The candidates of one tuning run: what became of each, found by config.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kiln/detail/tunable.hpp"
#include "kiln/error.hpp"
#include "kiln/tune.hpp"
#include "runtime/support/counters.hpp"

namespace kiln::runtime {

/// Whether this outcome cost a compile and is worth remembering. Others cost nothing to find again,
/// and depend on code that no key covers.
bool was_built(const Candidate& candidate) noexcept;
/// Whether a record keeps it: it was built, or cut off by the budget.
bool is_kept(const Candidate& candidate) noexcept;
/// Whether a run with this budget (in seconds; 0: none) may give it clearly more time than it had
/// when it was cut off.
bool gets_more_time(const Candidate& candidate, double budget) noexcept;

/// A tuning without a winner, and what became of each of its candidates.
class NoneUsable final : public TuningFailedError {
 public:
  NoneUsable(const detail::Tunable& subject, TuneResult result);
  const TuneResult& result() const noexcept { return *result_; }

 private:
  std::shared_ptr<const TuneResult> result_;  ///< shared, so that a copy cannot throw
};

/// Counts the candidates that were tried, by status. Those of earlier runs were counted then.
void count_outcomes(const TuneResult& result, const std::vector<bool>& built_before,
                    Counters& counters);

/// Not thread-safe. Candidate 0 is the default.
class Candidates {
 public:
  /// @param budget of the run, in seconds; 0: none
  Candidates(TuneResult& result, const DynamicSpace& space, double budget)
      : result_(result), space_(space), budget_(budget) {}
  /// A guess at a config's cost, the same in every process: among equals the least is preferred.
  void prefer_by(std::function<double(std::span<const std::int64_t>)> cost) {
    cost_ = std::move(cost);
  }

  Candidate& operator[](std::size_t index) { return result_.candidates[index]; }
  const Candidate& operator[](std::size_t index) const { return result_.candidates[index]; }
  std::size_t size() const noexcept { return result_.candidates.size(); }
  bool known(const Values& config) const { return index_.count(config) != 0; }
  std::optional<std::size_t> find(const Values& config) const;
  /// Index of a config's candidate, new or not.
  std::size_t add(const Values& config);
  std::size_t adopt(const Candidate& candidate);
  void reject(std::size_t index, CandidateStatus status, std::string reason);

  /// A candidate that a budget has cut off may hang. So it takes no budget twice, and the search
  /// tries it after all others: before the finals, and if this run may give it more time than it
  /// had.
  bool comes_last(std::size_t index) const;
  bool gets_more_time(std::size_t index) const;
  /// Whether some candidate was cut off and has no result.
  bool any_cut_off() const;

  /// What the search goes by: seconds per launch at the pace of the first measurement, infinite for
  /// what cannot be used.
  double score(std::size_t index) const { return scores_[index]; }
  void set_score(std::size_t index, double seconds) { scores_[index] = seconds; }
  /// Measured ones, best score first.
  std::vector<std::size_t> ranked() const;
  /// Whether a is preferred to b if both are equally fast: the one of less cost by `prefer_by`,
  /// else the first in the order of the parameters and their values.
  bool before(std::size_t a, std::size_t b) const { return orders_[a] < orders_[b]; }

  /// The best by what was measured so far: the default unless it is beaten by more than the noise
  /// (and at least by 1 %), else the preferred one within that band. Nothing when none was
  /// measured.
  std::optional<std::size_t> decide() const;

 private:
  TuneResult& result_;
  const DynamicSpace& space_;
  const double budget_;
  std::map<Values, std::size_t> index_;
  std::vector<double> scores_;
  std::function<double(std::span<const std::int64_t>)> cost_;
  /// Cost, and the places of values in their parameters' lists.
  std::vector<std::pair<double, std::vector<std::size_t>>> orders_;
};

}  // namespace kiln::runtime
