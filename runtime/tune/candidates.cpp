#include "runtime/tune/candidates.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/measure/race.hpp"
#include "runtime/support/infinity.hpp"

namespace kiln::runtime {

using kiln::detail::format;
using kiln::detail::Tunable;

namespace {

/// Lines of an error that are shown of each kind.
constexpr int kShownLines = 12;

/// Errors that differ in nothing but numbers (of the config, of lines) are of one kind.
std::string kind_of(const std::string& reason) {
  std::string kind;
  std::size_t begin = reason.find("error");
  begin = begin == std::string::npos ? 0 : reason.rfind('\n', begin) + 1;  // npos + 1 is 0
  for (const char c : reason.substr(begin, reason.find('\n', begin) - begin))
    if (!std::isdigit(static_cast<unsigned char>(c)))
      kind += c;
    else if (kind.empty() || kind.back() != '#')
      kind += '#';
  return kind;
}

/// The first lines of a text.
std::string shortened(const std::string& text) {
  std::size_t end = 0;
  for (int line = 0; line < kShownLines && end != std::string::npos; ++line)
    end = text.find('\n', line == 0 ? 0 : end + 1);
  const auto more =
      end == std::string::npos
          ? 0
          : std::count(text.begin() + static_cast<std::ptrdiff_t>(end) + 1, text.end(), '\n');
  return more > 0 ? format("{}\n  (and {} lines more)", text.substr(0, end), more) : text;
}

std::vector<TuningFailedError::Reason> reasons_of(const TuneResult& result) {
  std::vector<TuningFailedError::Reason> reasons;
  for (const Candidate& c : result.candidates)
    reasons.push_back(
        {result.describe(c), std::string(to_string(c.status)) + ": " + c.reason, c.status});
  return reasons;
}

/// By kind: how many there are, and the first of them.
std::string text_of(const Tunable& subject, const TuneResult& result) {
  const std::vector<TuningFailedError::Reason> reasons = reasons_of(result);
  std::string text = format("{} for {}: none of {} candidates can be used", subject.describe(),
                            subject.describe_problem(result.problem), result.candidates.size());
  std::map<std::pair<CandidateStatus, std::string>, std::pair<std::size_t, std::size_t>> grouped;
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    const Candidate& c = result.candidates[i];
    grouped.try_emplace({c.status, kind_of(c.reason)}, 0, i).first->second.first++;
  }
  for (const auto& [kind, seen] : grouped) {
    const auto& [count, first] = seen;
    text += format("\n  {} x (e.g. {}) {}", count, reasons[first].config,
                   shortened(reasons[first].reason));
  }
  for (const auto& refused : result.space.rejected)
    if (refused.count > 0)
      text += format("\n  {}{:.0f} configs were ruled out beforehand: {}",
                     result.space.exact ? "" : "about ", static_cast<double>(refused.count),
                     refused.reason);
  return text;
}

/// A winner must beat the default by this much at least, whatever the samples' own deviation.
constexpr double kLeastGain = 0.01;
/// The budgets that one call leaves to a tuning differ by milliseconds from start to start.
constexpr double kWorthIt = 1.5;

}  // namespace

bool was_built(const Candidate& c) noexcept {
  switch (c.status) {
    case CandidateStatus::measured:
    case CandidateStatus::compile_failed:
    case CandidateStatus::launch_failed:
    case CandidateStatus::wrong_result:
    case CandidateStatus::crashed:
    case CandidateStatus::hung:
    case CandidateStatus::out_of_memory:
      return true;
    case CandidateStatus::violates_constraint:
    case CandidateStatus::exceeds_limits:
    case CandidateStatus::not_tried:
      return false;
  }
  return false;
}

bool is_kept(const Candidate& c) noexcept { return was_built(c) || c.cut_seconds > 0; }

bool gets_more_time(const Candidate& c, double budget) noexcept {
  return budget == 0 || budget > kWorthIt * c.cut_seconds;
}

void count_outcomes(const TuneResult& result, const std::vector<bool>& built_before,
                    Counters& counters) {
  for (std::size_t i = 0; i < result.candidates.size(); ++i)
    if (const CandidateStatus status = result.candidates[i].status;
        status != CandidateStatus::not_tried && !(i < built_before.size() && built_before[i]))
      counters.candidates.add(to_string(status));
}

NoneUsable::NoneUsable(const Tunable& subject, TuneResult result)
    : TuningFailedError(text_of(subject, result), reasons_of(result)),
      result_(std::make_shared<const TuneResult>(std::move(result))) {}

std::optional<std::size_t> Candidates::find(const Values& config) const {
  const auto found = index_.find(config);
  return found == index_.end() ? std::nullopt : std::optional(found->second);
}

std::size_t Candidates::add(const Values& config) {
  const auto [place, added] = index_.emplace(config, size());
  if (!added) return place->second;
  result_.candidates.emplace_back().config = config;
  scores_.push_back(kInfinity);
  auto& [cost, places] = orders_.emplace_back();
  if (cost_) cost = cost_(config);
  for (std::size_t i = 0; i < config.size(); ++i) {
    const auto& values = space_.parameters()[i].values;
    places.push_back(static_cast<std::size_t>(std::find(values.begin(), values.end(), config[i]) -
                                              values.begin()));
  }
  return place->second;
}

std::size_t Candidates::adopt(const Candidate& candidate) {
  const std::size_t index = add(candidate.config);
  result_.candidates[index] = candidate;
  if (candidate.status == CandidateStatus::measured)
    scores_[index] = undisturbed(candidate.samples);
  return index;
}

void Candidates::reject(std::size_t index, CandidateStatus status, std::string reason) {
  Candidate& candidate = result_.candidates[index];
  candidate.status = status;
  candidate.reason = std::move(reason);
  if (status != CandidateStatus::not_tried) candidate.cut_seconds = 0;
  scores_[index] = kInfinity;
}

bool Candidates::gets_more_time(std::size_t index) const {
  return runtime::gets_more_time(result_.candidates[index], budget_);
}

bool Candidates::comes_last(std::size_t index) const {
  const Candidate& c = result_.candidates[index];
  return c.cut_seconds > 0 && (!was_built(c) || !gets_more_time(index));
}

bool Candidates::any_cut_off() const {
  return std::any_of(result_.candidates.begin(), result_.candidates.end(),
                     [](const Candidate& c) { return is_kept(c) && !was_built(c); });
}

std::vector<std::size_t> Candidates::ranked() const {
  std::vector<std::size_t> ranked;
  for (std::size_t i = 0; i < size(); ++i)
    if (scores_[i] < kInfinity) ranked.push_back(i);
  std::sort(ranked.begin(), ranked.end(), [&](std::size_t a, std::size_t b) {
    return scores_[a] != scores_[b] ? scores_[a] < scores_[b] : before(a, b);
  });
  return ranked;
}

std::optional<std::size_t> Candidates::decide() const {
  std::vector<std::size_t> order = ranked();
  // One that may hang wins only if all may.
  const auto may_hang = [&](std::size_t i) { return result_.candidates[i].cut_seconds > 0; };
  if (!std::all_of(order.begin(), order.end(), may_hang)) std::erase_if(order, may_hang);
  if (order.empty()) return {};
  const std::size_t best = order.front();
  const double band = std::max({kLeastGain, relative_deviation(result_.candidates[best].samples),
                                relative_deviation(result_.candidates[0].samples)});
  const double limit = scores_[best] * (1 + band);
  if (scores_[0] <= limit && std::find(order.begin(), order.end(), 0) != order.end()) return 0;
  std::size_t winner = best;
  for (const std::size_t i : order)
    if (scores_[i] <= limit && result_.candidates[i].samples.size() > 1 && before(i, winner))
      winner = i;
  return winner;
}

}  // namespace kiln::runtime
