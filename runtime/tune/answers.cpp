// What a tuning may be asked for, and when a result that is there answers it.
#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/search/strategy.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/tuner.hpp"

namespace kiln::runtime {

using kiln::detail::format;

namespace {

constexpr std::size_t kMaxWarnings = 5;

/// Whether the way of timing has no part in it: launches were not timed when it was found out, or
/// a fault ended them.
bool is_verdict(CandidateStatus status) {
  switch (status) {
    case CandidateStatus::compile_failed:
    case CandidateStatus::wrong_result:
    case CandidateStatus::crashed:
    case CandidateStatus::hung:
    case CandidateStatus::out_of_memory:
      return true;
    default:
      return false;
  }
}

}  // namespace

void check(const TuneOptions& options) {
  for (const double limit :
       {options.max_seconds.value_or(0), options.target_seconds, options.candidate_seconds})
    if (!(limit >= 0) || std::isinf(limit))
      throw UserError(
          format("tuning: a limit is {} seconds; it must be finite and not negative", limit));
  check_strategy(options.strategy);
}

bool answers(const Recall& recall, const TuneOptions& options, bool for_launch) {
  const TuneResult& known = recall.result;
  if (options.retune || !recall.same_space) return false;
  // A launch is content with any way of timing, unless one was asked for.
  if (for_launch)
    return !options.launching || policy_of(options).launching == recall.policy.launching;
  if (recall.policy != policy_of(options)) return false;
  const std::size_t most = options.max_evaluations.value_or(0);
  // A search of enough evaluations that was stopped has not held its finals to the end.
  if (most != 0 && recall.evaluated >= most && known.end != SearchEnd::stopped) return true;
  if (options.target_seconds > 0 && known.winner().seconds <= options.target_seconds) return true;
  return known.complete &&
         (options.strategy.empty() || options.strategy == known.strategy || recall.exhausted);
}

Ending ending_of(const TuneResult& result, bool may_measure) {
  const CandidateStatus status = result.winner().status;
  const bool untried = status == CandidateStatus::not_tried;
  if (may_measure && !untried && status != CandidateStatus::measured) return Ending::unusable;
  const bool reached = !may_measure || !untried;
  if (result.agreed)
    return reached && result.agreed->outcome == RankReport::Outcome::plan ? Ending::winner
                                                                          : Ending::defaults;
  return reached ? Ending::winner : Ending::undecided;
}

TuneResult merged(const TuneResult& earlier, const TuneResult& now) {
  const bool was_over = earlier.complete && !now.complete;
  TuneResult result = was_over ? earlier : now;
  const TuneResult& other = was_over ? now : earlier;
  const Candidate best = other.winner();
  const bool tried = std::ranges::any_of(result.candidates, [&](const Candidate& c) {
    return c.config == best.config && c.status != CandidateStatus::not_tried;
  });
  add_missing(result, other);
  if (!tried && best.status == CandidateStatus::measured && best.seconds < result.winner().seconds)
    result.winner_index = static_cast<std::size_t>(
        std::ranges::find(result.candidates, best.config, &Candidate::config) -
        result.candidates.begin());
  return result;
}

void add_missing(TuneResult& result, const TuneResult& earlier) {
  std::map<Values, std::size_t> there;
  for (std::size_t i = 0; i < result.candidates.size(); ++i)
    there.emplace(result.candidates[i].config, i);
  for (const Candidate& c : earlier.candidates) {
    if (!is_kept(c)) continue;
    const auto [place, absent] = there.emplace(c.config, result.candidates.size());
    if (absent)
      result.candidates.push_back(c);
    else if (Candidate& now = result.candidates[place->second];
             now.status == CandidateStatus::not_tried &&
             (was_built(c) || c.cut_seconds > now.cut_seconds))
      now = c;
  }
}

void drop_untried(TuneResult& result, std::span<const std::size_t> postponed) {
  const Values winner = result.winner().config;
  std::size_t index = 0;
  std::erase_if(result.candidates, [&](const Candidate& c) {
    const std::size_t i = index++;
    return i != result.default_index && !is_kept(c) && c.status == CandidateStatus::not_tried &&
           std::find(postponed.begin(), postponed.end(), i) == postponed.end();
  });
  const auto found = std::find_if(result.candidates.begin(), result.candidates.end(),
                                  [&](const Candidate& c) { return c.config == winner; });
  result.winner_index = static_cast<std::size_t>(found - result.candidates.begin());
}

void limit_warnings(TuneResult& result) {
  std::vector<std::string>& warnings = result.warnings;
  if (warnings.size() <= kMaxWarnings) return;
  const std::size_t more = warnings.size() - kMaxWarnings;
  warnings.resize(kMaxWarnings);
  warnings.push_back(format("and {} more warnings", more));
}

TuneResult not_tuned(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                     const DeviceInfo& device, SearchEnd end, std::string why) {
  TuneResult result = empty_result(subject, problem, device);
  Candidate& base = result.candidates.emplace_back();
  base.config = subject.default_config(problem, device.target, device.limits);
  base.reason = std::move(why);
  result.end = end;
  return result;
}

bool may_join(const std::optional<Recall>& known, const TuneOptions& options) {
  return known && known->same_space && known->policy == policy_of(options);
}

TuneResult comparable(const Recall& known, const TuneOptions& options) {
  TuneResult result = known.result;
  if (known.policy == policy_of(options)) return result;
  for (Candidate& c : result.candidates) {
    if (is_verdict(c.status)) continue;
    Candidate untimed;
    untimed.config = std::move(c.config);
    untimed.cut_seconds = c.cut_seconds;  // it may hang
    c = std::move(untimed);
  }
  return result;
}

TuneResult joined(const std::optional<Recall>& latest, const TuneResult& found,
                  const TuneOptions& options, bool anew) {
  if (!latest || !latest->same_space) return found;
  if (!anew && may_join(latest, options)) return merged(latest->result, found);
  TuneResult result = found;
  add_missing(result, comparable(*latest, options));
  return result;
}

}  // namespace kiln::runtime
