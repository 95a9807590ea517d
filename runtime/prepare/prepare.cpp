#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <variant>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/prepare/before_agreement.hpp"
#include "runtime/prepare/instances.hpp"
#include "runtime/prepare/preparation.hpp"
#include "runtime/prepare/prepare_items.hpp"
#include "runtime/prepare/text_of.hpp"
#include "runtime/prepare/tune_jobs.hpp"
#include "runtime/serve/provisions.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/support/parallel.hpp"
#include "runtime/support/spans.hpp"
#include "runtime/support/time_limit.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/tune/candidates.hpp"

namespace kiln::runtime {

using detail::Engine;
using detail::format;

namespace {

using Access = Builder::Access;
using Step = PrepareProgress::Step;

constexpr std::size_t kLooksPerThread = 16, kLookers = 8;

/// The part of what was asked for that the runtime's mode allows.
PrepareWork allowed(PrepareWork asked, const Engine& engine) {
  if (!engine.may_compile()) return PrepareWork::look_up;
  if (engine.options().mode == Mode::untuned) return std::max(asked, PrepareWork::compile);
  return asked;
}

class Run {
 public:
  Run(Engine& engine, const Manifest& manifest, const PrepareOptions& options,
      const std::stop_token& stop, const std::function<void(const PrepareProgress&)>& progress)
      : engine_(engine),
        manifest_(manifest),
        stop_(stop),
        progress_(progress),
        work_(allowed(options.work, engine)),
        tuning_(patient(engine.completed(engine.options().tuning))),
        start_(Clock::now()),
        deadline_(options.max_seconds, start_) {}

  PrepareReport run() {
    SpanScope span(&engine_.workshop().telemetry().spans, "kiln.prepare",
                   {{"work", to_string(work_)}});
    report_.work = work_;
    const auto before_tuning = [&] {
      tell(Step::check, 0, manifest_.wanted.size());
      items_ = prepare_items(engine_, manifest_, report_.problems);
      free_before_ = engine_.device()->available();
      timed(report_.compile_seconds, [&] { look_and_compile(); });
      load();
      report_.load_seconds = load_seconds_;
    };
    before_agreement(engine_, manifest_, tuning_, before_tuning);
    timed(report_.tune_seconds, [&] { tune(); });
    for (const PrepareItem& item : items_)
      if (of(item).why.empty()) {
        of(item).why = item.lacking;
        of(item).missing = item.missing;
      }
    engine_.serving().renew();
    report_.stopped = stop_.stop_requested();
    report_.seconds = seconds_since(start_);
    engine_.log(
        LogLevel::info,
        format("prepared {} of {} problems in {:.3g} s: {} compiled, {} tuned", report_.ready(),
               report_.problems.size(), report_.seconds, report_.compiled, report_.searched));
    tell(Step::done, 0, 0);
    span.set("problems", std::to_string(report_.problems.size()));
    span.set("ready", std::to_string(report_.ready()));
    span.end();
    return std::move(report_);
  }

 private:
  template <class F>
  static void timed(double& seconds, const F& work) {
    const auto start = Clock::now();
    work();
    seconds = seconds_since(start);
  }

  bool ended() const { return stop_.stop_requested() || deadline_.passed(); }
  Access access() const {
    return work_ == PrepareWork::look_up || ended() ? Access::look_up : Access::compile;
  }
  PreparedProblem& of(const PrepareItem& item) { return report_.problems[item.place]; }

  /// `missing`: what `why` is about, if that is a binary.
  void set(const PrepareItem& item, PreparedState state, std::string why = {},
           std::optional<Missing> missing = {}) {
    of(item).state = state;
    of(item).why = std::move(why);
    of(item).missing = std::move(missing);
    if (state == PreparedState::failed) of(item).config.clear();  // launches get nothing
  }

  void tell(Step step, std::size_t done, std::size_t total) const {
    if (!progress_) return;
    PrepareProgress now{step,
                        done,
                        total,
                        report_.problems.size(),
                        report_.ready(),
                        report_.count(PreparedState::on_default),
                        report_.count(PreparedState::missing),
                        report_.count(PreparedState::failed),
                        seconds_since(start_)};
    progress_(now);
  }

  // --- compiling --------------------------------------------------------------------------------

  void look_and_compile() {
    looked_at_ = std::vector<std::atomic<bool>>(items_.size());
    const SpanScope::Context part_of = SpanScope::here();
    // Of many look-ups a thread has several, or starting it takes longer than what it does.
    const std::size_t items = items_.size();
    const auto threads = std::min<std::size_t>(
        engine_.builder().threads(), std::max(items / kLooksPerThread, std::min(items, kLookers)));
    for_each_index(static_cast<unsigned>(threads), items_.size(), stop_,
                   [&](std::size_t i) {
                     const SpanParent parent(part_of);
                     look_and_find(i);
                     load_found();
                   },
                   {});
    // What many problems can run with comes first, so that a short time makes many launchable.
    const auto want = [&](const PrepareItem& item, const Values& config) {
      instances_.want(item, config);
    };
    for (const PrepareItem& item : items_)
      if (item.usable && !item.best.winner) want(item, item.best.configs.back());
    for (const PrepareItem& item : items_)
      if (item.usable) want(item, item.best.configs.front());
    for (const PrepareItem& item : items_)
      for (const Values& config : item.instances) want(item, config);
    report_.instances = instances_.size();
    std::atomic<std::size_t> compiled{0};
    for_each_index(
        engine_.builder().builds_at_once(), instances_.all_found() ? 0 : instances_.size(), stop_,
        [&](std::size_t i) {
          const SpanParent parent(part_of);
          if (deadline_.passed())
            cut_off_ = true;
          else if (instances_.build(i, access()))
            ++compiled;
        },
        [&](std::size_t done) {
          tell(Step::compile, done, instances_.size());
          load_found();
        });
    report_.compiled = compiled;
    report_.out_of_time = cut_off_;
    for (PrepareItem& item : items_)
      for (const Values& config : item.instances) note_lacking(item, config);
  }

  void look_and_find(std::size_t i) {
    PrepareItem& item = items_[i];
    const SourceDigests sources = item.sources->get(engine_.records());
    look(item, &sources);
    if (to_load(item)) instances_.find(item, item.best.configs.front());
    looked_at_[i] = true;
  }

  void look(PrepareItem& item, const SourceDigests* sources = nullptr) {
    try {
      item.best = item.provisions().best_configs(item.problem, tuning_of(item), sources);
      item.usable = true;
    } catch (...) {
      item.usable = false;
      set(item, PreparedState::failed, text_of(std::current_exception()));
    }
  }

  /// Why an instance that the manifest names cannot be had; empty: it can.
  void note_lacking(PrepareItem& item, const Values& config) {
    const auto found = instances_.lacking(item, config);
    if (found && std::holds_alternative<std::monostate>(*found)) return;
    item.missing.reset();
    if (!found)
      item.lacking = late(format("{} was not compiled", item.kernel().space.describe(config)));
    else if (const auto* why = std::get_if<std::string>(&*found))
      item.lacking = *why;
    else if (const auto* missing = std::get_if<Missing>(&*found)) {
      item.lacking = missing->explain();
      item.missing = *missing;
    }
  }

  // --- loading ----------------------------------------------------------------------------------

  bool to_tune(const PrepareItem& item) const {
    return work_ == PrepareWork::tune && !item.handle->fixed() && !item.best.searched;
  }

  static bool to_load(const PrepareItem& item) { return item.usable && !item.best.configs.empty(); }

  /// Loads what needs nothing that is still to be found or built, while other threads do that. One
  /// thread does so at a time: two of them took longer in the driver together than one alone.
  void load_found() {
    const std::unique_lock alone(loading_, std::try_to_lock);
    if (!alone) return;
    while (PrepareItem* const item = next_to_load()) load_and_note(*item);
  }

  /// The next item, if its binary has been found; else null.
  PrepareItem* next_to_load() {
    for (; loaded_ < items_.size() && looked_at_[loaded_] && !stop_.stop_requested(); ++loaded_) {
      PrepareItem& item = items_[loaded_];
      if (!to_load(item)) continue;
      if (!instances_.can_be_loaded(item, item.best.configs.front())) break;
      ++loaded_;
      return &item;
    }
    return nullptr;
  }

  void load_and_note(PrepareItem& item) {
    timed(of(item).seconds, [&] { load(item); });
    load_seconds_ += of(item).seconds;
  }

  void load() {
    if (loaded_ > 0) tell(Step::load, loaded_, items_.size());
    for (; loaded_ < items_.size(); ++loaded_) {
      if (stop_.stop_requested()) break;
      PrepareItem& item = items_[loaded_];
      if (to_load(item)) load_and_note(item);
      tell(Step::load, loaded_ + 1, items_.size());
    }
    std::map<ServedHandle*, std::vector<Values>> problems;
    for (const PrepareItem& item : items_)
      if (item.usable) problems[item.handle.get()].push_back(item.problem);
    double of_defaults = 0;
    timed(of_defaults, [&] {
      for (auto& [handle, own] : problems)
        if (!stop_.stop_requested()) handle->provisions().keep_default(own, access());
    });
    load_seconds_ += of_defaults;
    instances_.forget();
    const auto after = engine_.device()->available();
    if (free_before_ && after) report_.device_bytes = *free_before_ - *after;
  }

  void load(PrepareItem& item) {
    // Compiling takes long, and the program may have chosen something meanwhile.
    if (item.handle->find(item.problem) != item.best.seen) look(item);
    if (!item.usable) return;
    Served served;
    try {
      // Ranks use nothing before they have agreed on it.
      const bool later = to_tune(item) || agrees(item);
      served = serve(item, later);
    } catch (...) {
      if (engine_.device()->lost()) throw;  // it fails every load: that is not the problem's fault
      set(item, PreparedState::failed, text_of(std::current_exception()));
      return;
    }
    describe(item, std::move(served));
  }

  Served serve(PrepareItem& item, bool later) {
    try {
      return item.provisions().serve(item.problem, item.best, access(), later);
    } catch (const EnvironmentError& error) {
      if (access() == Access::look_up || engine_.device()->lost()) throw;
      // No compiler, most likely. What is in the store serves, and what is not is missing.
      Served served = item.provisions().serve(item.problem, item.best, Access::look_up, later);
      if (served.missing) served.missing->why = error.what();
      if (served.ready && !served.best) served.why = error.what();
      return served;
    }
  }

  void describe(const PrepareItem& item, Served served) {
    if (served.missing && work_ != PrepareWork::look_up && ended())
      served.missing->why = late("it was not compiled");
    const std::string why = served.missing       ? served.missing->explain()
                            : served.why.empty() ? late("it was not compiled")
                                                 : served.why;
    if (!served.ready) {
      set(item, served.missing ? PreparedState::missing : PreparedState::failed, why,
          served.missing);
      return;
    }
    of(item).config = item.handle->what().named_config(served.ready->config);
    if (served.best)
      set(item, PreparedState::known);
    else if (served.ready->config == item.best.configs.front() && !item.best.winner &&
             served.why.empty())
      set(item, PreparedState::untuned);
    else
      set(item, PreparedState::on_default, why, served.missing);
  }

  std::string late(const std::string& what) const {
    return stop_.stop_requested() ? what + ": the preparation was stopped"
           : deadline_.passed()   ? what + ": the time was used up"
                                  : what;
  }

  // --- tuning -----------------------------------------------------------------------------------

  /// Whether the ranks choose for it.
  bool agrees(const PrepareItem& item) const {
    return tuning_.ranks && !item.handle->fixed() && item.usable &&
           !empty(item.kernel().launch(default_of(item), item.problem, item.handle->limits()));
  }
  Values default_of(const PrepareItem& item) const {
    return engine_.workshop().default_config(item.kernel(), item.problem);
  }

  void tune() {
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

  void tune_each() {
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
          if (!left[i]->best.winner && of(*left[i]).state != PreparedState::failed)
            set(*left[i], PreparedState::on_default, late("it was not tuned"));
        return;
      }
      double seconds = 0;
      timed(seconds, [&] { tune(*left[i], left.size() - i); });
      of(*left[i]).seconds += seconds;
      tell(Step::tune, i + 1, left.size());
    }
  }

  /// What this process has measured again already counts as on record.
  TuneOptions tuning_of(const PrepareItem& item) const {
    TuneOptions tuning = tuning_;
    tuning.retune = tuning.retune && !item.handle->problems().measured_anew(item.problem);
    return tuning;
  }

  void tune(PrepareItem& item, std::size_t left) {
    TuneOptions tuning = tuning_of(item);
    tuning.stop = stop_;
    if (deadline_.at()) {
      const double share = deadline_.left() / static_cast<double>(left);
      const double own = tuning.max_seconds.value_or(0);
      tuning.max_seconds = own > 0 ? std::min(own, share) : share;
    }
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
      if (of(item).state != PreparedState::failed)
        set(item, PreparedState::on_default, error.what());
    } catch (...) {
      set(item, PreparedState::failed, text_of(std::current_exception()));
    }
  }

  void take(const PrepareItem& item, const TuneOutcome& tuned) {
    const TuneResult& result = tuned.result;
    const detail::TunableHandle& handle = *item.handle;
    if (tuned.ending == Ending::winner)
      of(item).config = handle.what().named_config(result.winner().config);
    else if (const detail::Ready in_use = handle.find(item.problem))
      of(item).config = handle.what().named_config(in_use->config);
    report_.out_of_time =
        report_.out_of_time || (result.end == SearchEnd::seconds && deadline_.at());
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

  /// One agreement for all of it. Ranks that have no more time take part: the others must not wait.
  void agree() {
    std::vector<HandleProblem> jobs;
    std::vector<const PrepareItem*> asked;
    for (const PrepareItem& item : items_)
      if (agrees(item)) {
        jobs.push_back({item.handle.get(), item.problem});
        asked.push_back(&item);
      }
    if (manifest_.wanted.empty()) return;  // as on all ranks
    TuneOptions tuning = tuning_;
    tuning.retune = std::ranges::any_of(
        asked, [&](const PrepareItem* item) { return tuning_of(*item).retune; });
    tuning.stop = stop_;
    constexpr double kLeastSeconds = 1e-3;
    if (deadline_.at()) tuning.max_seconds = std::max(deadline_.left(), kLeastSeconds);
    if (jobs.empty()) {
      announce_absence(tuning, "it has none of the manifest's problems");
      return;
    }
    try {
      const Agreed agreed =
          tune_together_and_use(engine_, jobs, tuning, work_ == PrepareWork::tune);
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

  Engine& engine_;
  const Manifest& manifest_;
  const std::stop_token stop_;
  const std::function<void(const PrepareProgress&)>& progress_;
  const PrepareWork work_;
  const TuneOptions tuning_;
  const Clock::time_point start_;
  const TimeLimit deadline_;
  PrepareReport report_;
  std::vector<PrepareItem> items_;
  std::atomic<bool> cut_off_{false};          ///< something was not compiled any more
  std::vector<std::atomic<bool>> looked_at_;  ///< by item
  Instances instances_{engine_};
  std::mutex loading_;                       ///< of the next two while items are looked for
  std::size_t loaded_ = 0;                   ///< leading items that are loaded, or not to be
  double load_seconds_ = 0;                  ///< spent on them
  std::optional<std::int64_t> free_before_;  ///< bytes of the device's memory, before all loads
};

}  // namespace

PrepareReport prepare(Engine& engine, const Manifest& manifest, const PrepareOptions& options,
                      const std::stop_token& stop,
                      const std::function<void(const PrepareProgress&)>& progress,
                      const Serving::Preparing& /*preparing*/) {
  return Run(engine, manifest, options, stop, progress).run();
}

}  // namespace kiln::runtime
