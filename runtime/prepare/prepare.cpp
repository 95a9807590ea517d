// A preparation from its beginning to its report, up to what is tuned.
#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "kiln/detail/format.hpp"
#include "runtime/prepare/before_agreement.hpp"
#include "runtime/prepare/preparation.hpp"
#include "runtime/prepare/preparation_run.hpp"
#include "runtime/prepare/text_of.hpp"
#include "runtime/support/parallel.hpp"
#include "runtime/support/spans.hpp"

namespace kiln::runtime {

using detail::Engine;
using detail::format;

namespace {

constexpr std::size_t kLooksPerThread = 16, kLookers = 8;

/// The part of what was asked for that the runtime's mode allows.
PrepareWork allowed(PrepareWork asked, const Engine& engine) {
  if (!engine.may_compile()) return PrepareWork::look_up;
  if (engine.options().mode == Mode::untuned) return std::max(asked, PrepareWork::compile);
  return asked;
}

}  // namespace

PreparationRun::PreparationRun(Engine& engine, const Manifest& manifest,
                               const PrepareOptions& options, const std::stop_token& stop,
                               const std::function<void(const PrepareProgress&)>& progress)
    : engine_(engine),
      manifest_(manifest),
      stop_(stop),
      progress_(progress),
      work_(allowed(options.work, engine)),
      tuning_(patient(engine.completed(engine.options().tuning))),
      streams_(options.streams),
      start_(Clock::now()),
      deadline_(options.max_seconds, start_) {}

PrepareReport PreparationRun::run() {
  SpanScope span(&engine_.workshop().telemetry().spans, "kiln.prepare",
                 {{"work", to_string(work_)}});
  report_.work = work_;
  const auto before_tuning = [&] {
    tell(Step::check, 0, manifest_.wanted.size());
    PrepareItems found =
        prepare_items(engine_, manifest_, work_ == PrepareWork::tune, report_.problems);
    items_ = std::move(found.kernels);
    choices_ = std::move(found.choices);
    entries_ = std::move(found.entries);
    free_before_ = engine_.device()->available();
    timed(report_.compile_seconds, [&] { look_and_compile(); });
    load();
    report_.load_seconds = load_seconds_;
  };
  before_agreement(engine_, manifest_, tuning_, before_tuning);
  timed(report_.tune_seconds, [&] {
    try {
      tune();
    } catch (...) {
      leave_choices(engine_, manifest_);
      throw;
    }
    prepare_choices();
  });
  // Not earlier: the other ranks would wait for this one.
  if (engine_.device()->lost())
    throw DeviceLost("the device was lost while the manifest was prepared");
  for (const PrepareItem& item : items_)
    if (of(item).why.empty()) {
      of(item).why = item.lacking;
      of(item).missing = item.missing;
    }
  reserve_workspaces();
  keep_asked_for();
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

void PreparationRun::tell(Step step, std::size_t done, std::size_t total) const {
  if (!progress_) return;
  PrepareProgress now{step, done, total, 0, 0, 0, 0, 0, seconds_since(start_)};
  for (std::size_t i = 0; i < report_.problems.size(); ++i) {
    if (!entries_.empty() && !entries_[i]) continue;  // there for a choice alone
    const PreparedState state = report_.problems[i].state;
    ++now.problems;
    now.on_default += state == PreparedState::on_default;
    now.missing += state == PreparedState::missing;
    now.failed += state == PreparedState::failed;
    now.ready += state == PreparedState::on_default || state == PreparedState::tuned ||
                 state == PreparedState::known || state == PreparedState::untuned;
  }
  progress_(now);
}

void PreparationRun::keep_asked_for() {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i]) places.push_back(i);
  std::ranges::stable_sort(places, {}, [&](std::size_t i) { return *entries_[i]; });
  std::vector<PreparedProblem> asked;
  for (const std::size_t place : places) asked.push_back(std::move(report_.problems[place]));
  report_.problems = std::move(asked);
  entries_.clear();
}

void PreparationRun::look_and_compile() {
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

void PreparationRun::look_and_find(std::size_t i) {
  PrepareItem& item = items_[i];
  const SourceDigests sources = item.sources->get(engine_.records());
  look(item, &sources);
  if (to_load(item)) instances_.find(item, item.best.configs.front());
  looked_at_[i] = true;
}

void PreparationRun::look(PrepareItem& item, const SourceDigests* sources) {
  try {
    item.best = item.provisions().best_configs(item.problem, tuning_of(item), sources);
    if (!ended()) item.provisions().guess_by_records(item.problem, tuning_, access(), item.best);
    item.usable = true;
  } catch (...) {
    item.usable = false;
    set(item, PreparedState::failed, text_of(std::current_exception()));
  }
}

void PreparationRun::note_lacking(PrepareItem& item, const Values& config) {
  std::optional<Missing> missing;
  std::string why = why_lacking(item, config, item.kernel().space.describe(config), missing);
  if (why.empty()) return;
  item.lacking = std::move(why);
  item.missing = std::move(missing);
}

std::string PreparationRun::why_lacking(const PrepareItem& item, const Values& config,
                                        const std::string& called,
                                        std::optional<Missing>& missing) const {
  const auto found = instances_.lacking(item, config);
  if (!found) return late(called + " was not compiled");
  if (const auto* why = std::get_if<std::string>(&*found)) return *why;
  const auto* lacking = std::get_if<Missing>(&*found);
  if (!lacking) return {};
  missing = *lacking;
  return missing->explain();
}

void PreparationRun::load_found() {
  const std::unique_lock alone(loading_, std::try_to_lock);
  if (!alone) return;
  while (PrepareItem* const item = next_to_load()) load_and_note(*item);
}

PrepareItem* PreparationRun::next_to_load() {
  for (; loaded_ < items_.size() && looked_at_[loaded_] && !stop_.stop_requested(); ++loaded_) {
    PrepareItem& item = items_[loaded_];
    if (!to_load(item)) continue;
    if (!instances_.can_be_loaded(item, item.best.configs.front())) break;
    ++loaded_;
    return &item;
  }
  return nullptr;
}

void PreparationRun::load_and_note(PrepareItem& item) {
  timed(of(item).seconds, [&] { load(item); });
  load_seconds_ += of(item).seconds;
}

void PreparationRun::load() {
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

void PreparationRun::load(PrepareItem& item) {
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

Served PreparationRun::serve(PrepareItem& item, bool later) {
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

void PreparationRun::describe(const PrepareItem& item, Served served) {
  if (served.missing && work_ != PrepareWork::look_up && ended())
    served.missing->why = late("it was not compiled");
  std::optional<Missing> missing = served.missing;
  std::string why = missing ? missing->explain() : served.why;
  if (why.empty()) why = why_lacking(item, item.best.configs.front(), "it", missing);
  if (why.empty()) why = "another config was put in use before it could be had";
  if (!served.ready) {
    set(item, missing ? PreparedState::missing : PreparedState::failed, why, missing);
    return;
  }
  of(item).config = item.handle->what().named_config(served.ready->config);
  if (served.best)
    set(item, PreparedState::known);
  else if (served.ready->config == item.best.configs.front() && !item.best.winner &&
           served.why.empty())
    set(item, PreparedState::untuned);
  else
    set(item, PreparedState::on_default, why, missing);
}

void PreparationRun::reserve_workspaces() {
  if (streams_.empty() || stop_.stop_requested()) return;
  const auto warn = [&](const std::string& whose) {
    if (engine_.device()->lost()) throw;
    const std::string why = text_of(std::current_exception());
    engine_.log(LogLevel::warning, format("prepare: {}: {}", whose, why));
    return why;
  };
  // A workspace that grows keeps what it was, so the largest comes first.
  for (const auto& handle : engine_.serving().handles()) try {
      const WorkspaceSize size = handle->provisions().workspace_size();
      for (const Stream stream : streams_) handle->reserve_workspace(stream, size);
    } catch (...) {
      warn("kernel " + handle->definition().name);
      for (const PrepareItem& item : items_)
        if (item.handle == handle) reserve_workspace(item);
    }
  for (const auto& choice : engine_.serving().choices()) try {
      for (const Stream stream : streams_) choice->reserve_workspaces(stream);
    } catch (...) {
      const std::string why = warn("choice " + choice->description().name);
      for (const ChoiceItem& item : choices_) {
        if (item.choice != choice) continue;
        PreparedProblem& problem = report_.problems[item.place];
        problem.state = PreparedState::failed;
        problem.why = why;
        problem.config.clear();
      }
    }
}

void PreparationRun::reserve_workspace(const PrepareItem& item) try {
  const detail::Ready ready = item.handle->find(item.problem);
  if (!ready || !ready->loaded) return;
  const WorkspaceSize size = item.handle->workspace_size(*ready, item.problem);
  for (const Stream stream : streams_) item.handle->reserve_workspace(stream, size);
} catch (...) {
  if (engine_.device()->lost()) throw;
  set(item, PreparedState::failed, text_of(std::current_exception()));
}

std::string PreparationRun::late(const std::string& what) const {
  return stop_.stop_requested() ? what + ": the preparation was stopped"
         : deadline_.passed()   ? what + ": the time was used up"
                                : what;
}

PrepareReport prepare(Engine& engine, const Manifest& manifest, const PrepareOptions& options,
                      const std::stop_token& stop,
                      const std::function<void(const PrepareProgress&)>& progress,
                      const Serving::Preparing& /*preparing*/) {
  return PreparationRun(engine, manifest, options, stop, progress).run();
}

}  // namespace kiln::runtime
