// The part of a preparation that makes choices ready, once their kernels are.
#include <algorithm>
#include <exception>
#include <set>
#include <utility>
#include <vector>

#include "runtime/prepare/choices_together.hpp"
#include "runtime/prepare/preparation_run.hpp"
#include "runtime/prepare/text_of.hpp"
#include "runtime/together/beside_agreement.hpp"

namespace kiln::runtime {

std::size_t PreparationRun::count_unanswered() const {
  if (work_ != PrepareWork::tune) return 0;
  return static_cast<std::size_t>(
      std::ranges::count_if(choices_, [](const ChoiceItem& item) { return !item.answered; }));
}

void PreparationRun::prepare_choices() {
  const auto asks = ask_ranks(engine_, manifest_, choices_, work_ == PrepareWork::tune);
  std::size_t left = count_unanswered(), done = 0;
  std::exception_ptr failed;
  // One agreement for all exact problems of a bucket, as on the other ranks.
  std::set<std::pair<const ServedChoice*, Values>> asked;
  const bool decide = decides(engine_, work_ == PrepareWork::tune);
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const ChoiceItem& item = choices_[i];
    RanksAsk ask = asks[i];
    if (ask == RanksAsk::different && item.answered) ask = RanksAsk::no;
    if (ask == RanksAsk::together && decide &&
        !asked
             .emplace(item.choice.get(),
                      item.choice->description().operation.bucketed(item.problem))
             .second)
      ask = RanksAsk::no;
    if (failed) {  // the others go on
      if (ask == RanksAsk::together && decide)
        announce_absence(patient(item.choice->tuning()), "its preparation has failed before");
      continue;
    }
    try {
      double seconds = 0;
      timed(seconds, [&] { prepare(item, ask, std::max<std::size_t>(left, 1)); });
      report_.problems[item.place].seconds += seconds;
      tell(Step::tune, ++done, choices_.size());
    } catch (...) {  // the device is lost, or the program's progress throws
      failed = std::current_exception();
    }
    if (left > 0 && !item.answered) --left;
  }
  if (failed) std::rethrow_exception(failed);
}

void PreparationRun::prepare(const ChoiceItem& item, RanksAsk ask, std::size_t left) {
  PreparedProblem& of = report_.problems[item.place];
  // Ranks take part: the others must not wait.
  const bool ranks = item.choice->tuning().ranks != nullptr;
  if (stop_.stop_requested() && !ranks) return;
  if (ranks && ask == RanksAsk::different) {
    of.state = PreparedState::failed;
    of.why = "the ranks do not all prepare this choice, in the same way";
    return;
  }
  const bool measures = work_ == PrepareWork::tune;
  if (ranks && ask == RanksAsk::together && !decides(engine_, measures)) {
    of.state = PreparedState::missing;
    of.why = "ranks decide on a choice by tuning it, which was not asked for";
    return;
  }
  ServedChoice::HowReady how;
  how.measure = measures && (!ended() || ranks);
  how.max_seconds = part_of({}, left).max_seconds;
  how.stop = stop_;
  how.ask = ask == RanksAsk::together;
  try {
    describe(item, item.choice->make_ready(item.problem, how), how.measure);
  } catch (const DeviceLost&) {
    throw;
  } catch (const MissingError& error) {
    of.state = PreparedState::missing;
    of.why = error.what();
    of.missing = error.missing();
  } catch (...) {
    of.state = PreparedState::failed;
    of.why = text_of(std::current_exception());
  }
}

void PreparationRun::describe(const ChoiceItem& item, PreparedChoice made, bool measure) {
  PreparedProblem& of = report_.problems[item.place];
  of.state = made.state;
  of.why = std::move(made.why);
  of.alternative = std::move(made.alternative);
  of.config = std::move(made.config);
  const bool wanted = work_ == PrepareWork::tune && !item.answered;
  if (made.tuned && !made.tuned->from_store) {
    report_.compiled += made.tuned->compiled;
    report_.evaluated += made.tuned->evaluated;
    if (made.state == PreparedState::tuned) ++report_.searched;
  }
  report_.out_of_time =
      report_.out_of_time || (wanted && !measure && deadline_.passed()) ||
      (made.tuned && made.tuned->end == SearchEnd::seconds && deadline_.at().has_value());
  const auto take_kernels = [&](const PreparedProblem& kernel) {
    of.state = kernel.state;
    of.why = kernel.why;
    of.missing = kernel.missing;
  };
  const PreparedProblem *launched = nullptr, *lacking = nullptr;
  for (const auto& [alternative, kernel] : item.kernels) {
    const PreparedProblem& own = this->of(items_[kernel]);
    const bool has_nothing =
        own.state == PreparedState::missing || own.state == PreparedState::failed;
    if (!lacking && has_nothing) lacking = &own;
    if (alternative == of.alternative) launched = &own;
  }
  if (launched && (made.as_its_kernel || launched->state == PreparedState::untuned ||
                   launched->state == PreparedState::on_default)) {
    take_kernels(*launched);
  } else if (of.state == PreparedState::missing && of.why.empty()) {
    if (lacking) take_kernels(*lacking);
    if (of.why.empty()) of.why = "its kernel has nothing in use";
  } else if (of.state == PreparedState::untuned && work_ == PrepareWork::tune) {
    of.state = PreparedState::on_default;
    of.why = late("it was not tuned");
  } else if (of.state == PreparedState::on_default && of.why.empty()) {
    of.why = late("nothing was measured");
  } else if (launched && launched->state == PreparedState::known && of.why.empty()) {
    of.why = launched->why;  // its kernel's search could not go on
  }
}

}  // namespace kiln::runtime
