// From a kernel and a problem to a winner: propose, reject, compile, verify, time, decide.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kiln/detail/tunable.hpp"
#include "kiln/tune.hpp"
#include "runtime/search/strategy.hpp"
#include "runtime/tune/record.hpp"
#include "runtime/tune/trial_maker.hpp"

namespace kiln::runtime {

/// @throws UserError on a limit that is no number of seconds or a strategy that does not exist.
void check(const TuneOptions& options);

/// Whether a stored answer is as good as what the requested search could find. A launch is content
/// with the answer of an unfinished search, and with one whose times were taken by another policy.
bool answers(const Recall& recall, const TuneOptions& options, bool for_launch);

/// What belongs on record after both: all that either of them tried, once, and the better winner
/// where one of them has not tried the other's. A search that was over stays so.
TuneResult merged(const TuneResult& earlier, const TuneResult& now);

/// Adds the candidates of an earlier run that this run has not tried.
void add_missing(TuneResult& result, const TuneResult& earlier);
/// Whether a record's times may stand beside those of a tuning with these options.
bool may_join(const std::optional<Recall>& known, const TuneOptions& options);
/// What is known of candidates to a tuning with these options. Of a record that was timed by
/// another policy that is what does not depend on it: which of them do not compile, are wrong,
/// crashed, hung or took too much memory, and which were cut off; the others are untried.
TuneResult comparable(const Recall& known, const TuneOptions& options);
/// What is to be on record from now on, where `latest` is. `anew`: what was found takes the place
/// of an earlier winner, and only what it did not try is added.
TuneResult joined(const std::optional<Recall>& latest, const TuneResult& found,
                  const TuneOptions& options, bool anew);

/// Leaves out the candidates that were planned, but not reached; not those that were `postponed`.
void drop_untried(TuneResult& result, std::span<const std::size_t> postponed);

/// Leaves out all warnings but a few: on a disturbed machine every group of candidates has some.
void limit_warnings(TuneResult& result);

/// What a tuning run may start from, and what it reports to.
struct TuneContext {
  /// An earlier result whose candidates are taken over and not tried again; or null.
  const TuneResult* prior = nullptr;
  /// Configs to try after those that run first in any case (the untuned config, the default), the
  /// nearest problem's winner first. Those outside of the space are left out.
  std::vector<Values> starts;
  /// What was measured of the same kernel elsewhere, for the strategy to learn from.
  std::vector<Evidence> evidence;
  /// The winner on record, if any: tried early, and in the finals.
  Values incumbent;
  /// If not empty, exactly these are tried, in this order, instead of what a strategy proposes; and
  /// the default, where outputs can be held against nothing else.
  std::span<const Values> only{};
  bool finals = true;            ///< time the best once more, side by side
  Counters* counters = nullptr;  ///< of candidates; null: they are not counted
  /// Called now and then, with a result that is whole, but unfinished. After a loss of the device
  /// its winner need not be measured.
  std::function<void(const TuneResult&)> save;
};

/// The answer of a run that ended before it began: the default, not tried.
TuneResult not_tuned(const detail::Tunable& subject, std::span<const std::int64_t> problem,
                     const DeviceInfo& device, SearchEnd end, std::string why);

/// What a tuning has come to for launches of its problem: one rule for kernels, functions and
/// choices, alone and with ranks.
enum class Ending {
  winner,     ///< there is one to launch: measured now, on record, or agreed on
  defaults,   ///< the ranks came to nothing, be it for this problem alone: those that hold nothing
              ///< launch the default
  undecided,  ///< the time was spent waiting, or a stop came before the first time: the result is
              ///< what is on record, which is no answer to what was asked, or the default
  unusable    ///< what was tried has failed, so there is nothing to launch
};

/// Whether the winner was measured now, or is known from before.
inline bool is_measured_anew(const TuneResult& result) {
  return !result.from_store && result.winner().status == CandidateStatus::measured;
}

/// The ending of a result that is the answer to what was asked.
/// @param may_measure whether candidates were verified; otherwise what is on record or was agreed
/// on is all there is
Ending ending_of(const TuneResult& result, bool may_measure);

struct TuneOutcome {
  TuneResult result;
  /// The winner as it was loaded to be timed, for launches to use; null: it has to be loaded
  /// anew.
  std::shared_ptr<Module> module{};
  /// What this run has compiled to be measured: configs, and the keys' digests.
  std::vector<std::pair<Values, Digest>> compiled{};
  Ending ending = Ending::winner;
  bool finals_begun = false;  ///< the search is over except for them
};

/// Tunes one bucketed problem. The untuned config is measured first, then the default, which stays
/// unless clearly beaten.
/// The maker keeps its bench for the next run. @throws UserError on a space or workload that makes
/// no sense, TuningFailedError when no candidate can be used, EnvironmentError when the device or
/// compiler fails as a whole.
TuneOutcome tune(TrialMaker& maker, const TuneOptions& options, const TuneContext& context);

}  // namespace kiln::runtime
