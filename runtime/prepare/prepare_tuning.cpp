// The part of a preparation that tunes, and that asks other ranks.
#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/prepare/preparation_run.hpp"
#include "runtime/prepare/text_of.hpp"
#include "runtime/prepare/tune_jobs.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/tune/candidates.hpp"

namespace kiln::runtime {

using detail::format;

bool PreparationRun::agrees(const PrepareItem& item) const {
  return tuning_.ranks && !item.handle->fixed() && item.usable &&
         !empty(item.kernel().launch(default_of(item), item.problem, item.handle->limits()));
}

void PreparationRun::tune() {
  if (tuning_.ranks)
    agree();
  else
    tune_each();
  for (const PrepareItem& item : items_)
    if (item.usable && of(item).state != PreparedState::failed)
      item.provisions().use_stand_in(item.problem);
  if (Background* const background = engine_.background())
    for (const PrepareItem& item : items_)
      if (const auto ready = item.usable ? item.handle->find(item.problem) : nullptr;
          ready && !ready->provisional)
        background->drop(item.handle.get(), item.problem);
}

void PreparationRun::tune_each() {
  std::vector<PrepareItem*> left;
  for (PrepareItem& item : items_)
    if (item.usable && to_tune(item) && of(item).state != PreparedState::missing &&
        of(item).state != PreparedState::waiting)
      left.push_back(&item);
  // What has nothing yet comes before what a search has begun with.
  std::ranges::stable_partition(left, [](const PrepareItem* item) { return !item->best.winner; });
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (ended()) {
      report_.out_of_time = report_.out_of_time || deadline_.passed();
      for (; i < left.size(); ++i)
        if (of(*left[i]).state == PreparedState::known)
          set(*left[i], PreparedState::known, late("nothing was measured"));
        else if (of(*left[i]).state != PreparedState::failed && !left[i]->best.winner)
          set(*left[i], PreparedState::on_default, late("it was not tuned"));
      return;
    }
    double seconds = 0;
    timed(seconds, [&] { tune(*left[i], left.size() - i + count_unanswered()); });
    of(*left[i]).seconds += seconds;
    tell(Step::tune, i + 1, left.size());
  }
}

TuneOptions PreparationRun::tuning_of(const PrepareItem& item) const {
  TuneOptions tuning = item.tuning ? *item.tuning : tuning_;
  tuning.retune = tuning.retune && !item.handle->problems().measured_anew(item.problem);
  return tuning;
}

TuneOptions PreparationRun::part_of(TuneOptions tuning, std::size_t left) const {
  tuning.stop = stop_;
  if (!deadline_.at()) return tuning;
  constexpr double kLeastSeconds = 1e-3;
  const double share = std::max(deadline_.left() / static_cast<double>(left), kLeastSeconds);
  const double own = tuning.max_seconds.value_or(0);
  tuning.max_seconds = own > 0 ? std::min(own, share) : share;
  return tuning;
}

void PreparationRun::tune(PrepareItem& item, std::size_t left) {
  const TuneOptions tuning = part_of(tuning_of(item), left);
  try {
    const TuneOutcome tuned = item.handle->tune_bucket(item.problem, tuning);
    take(item, tuned);
    report_.compiled += tuned.result.compiled;
    item.provisions().distrust(item.problem, false);
  } catch (const DeviceLost&) {
    throw;
  } catch (const TuningFailedError& error) {
    item.provisions().distrust(item.problem, true);
    set(item, PreparedState::failed, error.what());
  } catch (const EnvironmentError& error) {
    if (of(item).state == PreparedState::known)
      set(item, PreparedState::known, error.what());
    else if (of(item).state != PreparedState::failed)
      set(item, PreparedState::on_default, error.what());
  } catch (...) {
    const std::string why = text_of(std::current_exception());
    if (of(item).state == PreparedState::known)
      set(item, PreparedState::known, why);  // launches have it all the same
    else
      set(item, PreparedState::failed, why);
  }
}

void PreparationRun::take(const PrepareItem& item, const TuneOutcome& tuned) {
  const TuneResult& result = tuned.result;
  const detail::TunableHandle& handle = *item.handle;
  if (tuned.ending == Ending::winner)
    of(item).config = handle.what().named_config(result.winner().config);
  else if (const detail::Ready in_use = handle.find(item.problem))
    of(item).config = handle.what().named_config(in_use->config);
  report_.out_of_time = report_.out_of_time || (result.end == SearchEnd::seconds && deadline_.at());
  if (tuned.ending == Ending::defaults) {
    set(item, PreparedState::on_default,
        result.agreed->outcome == RankReport::Outcome::plan
            ? late("nothing was measured")
            : "the ranks use defaults: " + result.agreed->why);
  } else if (work_ != PrepareWork::tune) {
    set(item, result.from_store ? PreparedState::known : PreparedState::untuned);
  } else if (tuned.ending == Ending::unusable) {
    set(item, PreparedState::failed,
        "none of its candidates can be used: " + result.winner().reason);
    item.provisions().distrust(item.problem, true);
  } else if (tuned.ending == Ending::winner) {
    set(item, result.from_store ? PreparedState::known : PreparedState::tuned);
    if (!result.from_store) ++report_.searched;
  } else if (result.from_store) {  // what is on record is used, though it is no answer
    set(item, PreparedState::known, late("nothing was measured"));
  } else {
    set(item, PreparedState::on_default, late("nothing was measured"));
  }
  if (!result.from_store) report_.evaluated += result.evaluated;
}

void PreparationRun::agree() {
  std::vector<HandleProblem> jobs;
  std::vector<const PrepareItem*> asked;
  for (const PrepareItem& item : items_)
    if (agrees(item)) {
      jobs.push_back({item.handle.get(), item.problem});
      asked.push_back(&item);
    }
  if (manifest_.wanted.empty()) return;  // as on all ranks
  TuneOptions tuning = tuning_;
  tuning.retune =
      std::ranges::any_of(asked, [&](const PrepareItem* item) { return tuning_of(*item).retune; });
  tuning.stop = stop_;
  constexpr double kLeastSeconds = 1e-3;
  if (deadline_.at()) tuning.max_seconds = std::max(deadline_.left(), kLeastSeconds);
  if (jobs.empty()) {
    announce_absence(tuning, "it has none of the manifest's problems");
    return;
  }
  try {
    const Agreed agreed = tune_together_and_use(engine_, jobs, tuning, work_ == PrepareWork::tune);
    report_.compiled += agreed.compiled;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      take(*asked[i], agreed.tuned[i]);
      if (agreed.failures[i] && of(*asked[i]).state != PreparedState::failed)
        set(*asked[i], PreparedState::failed, text_of(agreed.failures[i]));
    }
  } catch (...) {
    const std::string why = text_of(std::current_exception());
    for (const PrepareItem* item : asked) set(*item, PreparedState::failed, why);
  }
  tell(Step::tune, jobs.size(), jobs.size());
}

}  // namespace kiln::runtime
