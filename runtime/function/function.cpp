#include "kiln/function.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "kiln/communicators.hpp"
#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"
#include "runtime/function/function_bench.hpp"
#include "runtime/function/function_maker.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/overdue.hpp"
#include "runtime/serve/problems.hpp"
#include "runtime/serve/reserve.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/together/alone_or_together.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/together/measuring_together.hpp"
#include "runtime/together/rank_log.hpp"
#include "runtime/tune/deterministic.hpp"
#include "runtime/worker/isolation.hpp"

namespace kiln::detail {

using runtime::RankLog;
using runtime::Version;

namespace {

bool is_set(Variable variable) {
  const std::string_view value = environment(variable);
  return !value.empty() && value != "0";
}

/// How a record's versions differ from today's; empty: they do not.
std::string differences(const std::vector<KeyField>& then, const std::vector<Version>& now) {
  std::string text;
  const auto differ = [&](const std::string& name, const std::string& old,
                          const std::string& current) {
    if (old != current)
      text += format("{}{} was {}, is {}", text.empty() ? "" : "; ", name,
                     old.empty() ? "unknown" : old, current.empty() ? "unknown" : current);
  };
  for (const Version& v : now) {
    const auto found =
        std::find_if(then.begin(), then.end(), [&](const KeyField& f) { return f.name == v.name; });
    differ(v.name, found == then.end() ? "" : found->value, v.value);
  }
  for (const KeyField& f : then)
    if (std::none_of(now.begin(), now.end(), [&](const Version& v) { return v.name == f.name; }))
      differ(f.name, f.value, "");
  return text;
}

class Core final : public FunctionCore {
 public:
  Core(std::shared_ptr<Engine> engine, const FunctionDescription& function, FunctionOptions options)
      : engine_(std::move(engine)),
        function_(function),
        options_(std::move(options)),
        workshop_(engine_->workshop(), runtime::Workshop::OwnTurn{}),
        default_(function_.space.default_config(workshop_.device()->info().target)),
        count_(workshop_.telemetry().counters.problems.of(function_.name)),
        unprepared_launches_(workshop_.telemetry().counters, function_.name),
        unprepared_(function_.problem_fields.size()) {
    check_names(format("function '{}'", function_.name), function_.name, function_.problem_fields);
    options_.always_retune = options_.always_retune || is_set("KILN_ALWAYS_RETUNE");
    options_.strict_versions = options_.strict_versions || is_set("KILN_STRICT_VERSIONS");
  }

  const Values* find(std::span<const std::int64_t> problem) const noexcept override {
    return find(own_, problem);
  }
  const Values& default_knobs() const noexcept override { return default_; }
  const FunctionDescription& description() const noexcept override { return function_; }
  const std::shared_ptr<Engine>& engine() const noexcept override { return engine_; }
  void use(std::span<const std::int64_t> problem, const Values& knobs) override {
    own_.choose(launchable(problem, knobs));
  }

  const Values& obtain(std::span<const std::int64_t> problem, const FunctionCall& call,
                       const CallOptions& how) override {
    Problems& problems = problems_of(how.ranks);
    const auto in_use_or_default = [&]() -> const Values& {
      const Values* in_use = find(problems, problem);
      return in_use ? *in_use : default_;
    };
    if (tuning_thread_ == std::this_thread::get_id()) return in_use_or_default();
    const bool sealed = engine_->serving().sealed().has_value();
    if (!how.retune && (sealed || !how.verbose)) {
      if (const Values* in_use = find(problems, problem)) return *in_use;
      if (sealed) return unprepared(problem);
    }
    const TuneOptions tuning = options_for(how);
    if (tuning.ranks && runtime::MeasuringTogether::here()) return in_use_or_default();
    if (engine_->device()->capturing(call.stream)) return captured(problems, problem, how);
    const auto work = [&] { return settle(problems, problem, call, how, tuning); };
    const auto when = how.retune ? Problems::If::always : Problems::If::not_in_use;
    std::optional<Problems::Outcome> made;
    const bool waits = engine_->options().while_busy == WhileBusy::wait && may_wait();
    if (waits || tuning.ranks)
      made = problems.make(problem, work, when);
    else if (tuning_thread_ ==
             std::thread::id())  // nor does it wait for the tuning of another problem
      made = problems.try_make(problem, work, when);
    const auto* in_use = made ? std::get_if<detail::Ready>(&*made) : nullptr;
    const Values* knobs = in_use ? &(*in_use)->config
                          : made ? &best_known(problems, problem)
                                 : &in_use_or_default();
    if (how.verbose)
      engine_->log(LogLevel::info, format("{} {}: calls with {}", function_.name,
                                          problem_text(function_.problem_fields, problem),
                                          function_.space.describe(*knobs)));
    return *knobs;
  }

  TuneResult tune(std::span<const std::int64_t> problem, const FunctionCall& call,
                  const CallOptions& how) override {
    if (tuning_thread_ == std::this_thread::get_id())
      throw UserError(
          format("function {}: it cannot be tuned from within its own tuning", function_.name));
    if (engine_->device()->capturing(call.stream)) throw in_a_capture(problem);
    return measure(problems_of(how.ranks), problem, call, how, options_for(how), false).result;
  }

  const Values& unprepared(std::span<const std::int64_t> problem) const override {
    const OnUnprepared what = engine_->serving().sealed().value_or(OnUnprepared::serve);
    unprepared_launches_.add(what != OnUnprepared::error);
    if (what == OnUnprepared::serve) return default_;
    const std::string text = problem_text(function_.problem_fields, problem);
    if (what == OnUnprepared::error)
      throw UnpreparedError(
          format("function {} for {}: it was not called before the runtime was sealed; call it, or "
                 "tune it, before that",
                 function_.name, text),
          {function_.name, {}, {}, Tunable(function_).named_problem(problem), {}});
    if (unprepared_.add(problem))
      engine_->log(LogLevel::warning,
                   format("function {} for {}: it was not called before the runtime was sealed, so "
                          "its default knobs are used",
                          function_.name, text));
    return default_;
  }

  std::optional<TuneResult> known(std::span<const std::int64_t> problem) override {
    auto recall = workshop_.records().recall(function_, problem);
    if (!recall || !recall->same_space) return {};
    return std::move(recall->result);
  }

 private:
  using Problems = runtime::Problems;

  static const Values* find(const Problems& problems,
                            std::span<const std::int64_t> problem) noexcept {
    // Valid as long as `problems`, which have no bound.
    detail::ReadSection section;
    const Launchable* in_use = problems.find(problem, section);
    return in_use ? &in_use->config : nullptr;
  }

  /// A choice that was agreed with some ranks does not hold for other ranks.
  Problems& problems_of(const std::shared_ptr<Communicator>& group) {
    if (!group || group == common_ranks()) return own_;
    std::lock_guard lock(groups_mutex_);
    std::erase_if(groups_, [](const Group& g) { return g.ranks.expired(); });
    for (const Group& g : groups_)
      if (g.ranks.lock() == group) return *g.problems;
    return *groups_.emplace_back(Group{group, std::make_unique<Problems>(count_)}).problems;
  }

  const std::shared_ptr<Communicator>& common_ranks() const {
    return options_.tuning && options_.tuning->ranks ? options_.tuning->ranks
                                                     : engine_->options().tuning.ranks;
  }

  TuneOptions options_for(const CallOptions& how) const {
    const TuneOptions& common = engine_->options().tuning;
    TuneOptions tuning = engine_->completed(options_.tuning ? *options_.tuning : common);
    if (how.ranks) tuning.ranks = how.ranks;
    tuning.together.lockstep = tuning.together.lockstep || function_.communicates;
    tuning.retune = tuning.retune || how.retune || options_.always_retune;
    if (function_.communicates && !tuning.ranks)
      throw UserError(format(
          "function {}: it communicates, so its knobs are chosen by all ranks together; give the "
          "ranks in TuneOptions::ranks or CallOptions::ranks, or call it with .tune = false",
          function_.name));
    return tuning;
  }

  static Launchable launchable(std::span<const std::int64_t> problem, const Values& knobs) {
    Launchable ready;
    ready.problem.assign(problem.begin(), problem.end());
    ready.config = knobs;
    return ready;
  }

  /// On a stream that is being captured: what is in use, whatever other threads are doing.
  const Values& captured(const Problems& problems, std::span<const std::int64_t> problem,
                         const CallOptions& how) const {
    const Values* const in_use = find(problems, problem);
    if (!in_use || how.retune) throw in_a_capture(problem);
    return *in_use;
  }

  CaptureError in_a_capture(std::span<const std::int64_t> problem) const {
    return engine_->captures().counted(format(
        "function {} for {}: its knobs cannot be found while the stream is being captured: call it "
        "once, or `tune`, before the capture",
        function_.name, problem_text(function_.problem_fields, problem)));
  }

  /// What calls use until one of them finds an answer: waiting for another process has left this
  /// one no time to tune.
  const Values& best_known(Problems& problems, std::span<const std::int64_t> problem) {
    const auto served = problems.stand_in(problem, runtime::Standing::best_known, [&] {
      const auto recall = workshop_.records().recall(function_, problem);
      return launchable(problem, recall ? recall->result.winner().config : default_);
    });
    return std::get<detail::Ready>(served)->config;
  }

  /// What calls of a problem use from now on.
  Problems::Made settle(Problems& problems, std::span<const std::int64_t> problem,
                        const FunctionCall& call, const CallOptions& how,
                        const TuneOptions& tuning) {
    if (tuning.ranks && !how.retune)  // the others do not ask again
      problems.throw_if_none(problem);
    if (tuning.ranks || workshop_.may_measure(true)) {
      const runtime::TuneOutcome tuned = measure(problems, problem, call, how, tuning, true);
      if (tuned.ending == runtime::Ending::undecided) return Problems::Unmade{};
      return launchable(problem, *find(problems, problem));
    }
    const auto recall = workshop_.records().recall(function_, problem);
    return launchable(problem, recall ? recall->result.winner().config : default_);
  }

  /// Not the thread whose turn it is to tune: a call of this function that is being measured may
  /// launch what waits for that turn.
  bool may_wait() const noexcept { return !engine_->workshop().turn().mine(); }

  runtime::TuneOutcome measure(Problems& problems, std::span<const std::int64_t> problem,
                               const FunctionCall& call, const CallOptions& how,
                               const TuneOptions& tuning, bool for_launch) {
    try {
      return measure_now(problems, problem, call, how, tuning, for_launch);
    } catch (...) {  // the others go on without this rank, and do not answer again
      if (tuning.ranks && !runtime::MeasuringTogether::here() && !find(problems, problem))
        problems.remember_none(problem, std::current_exception());
      throw;
    }
  }

  runtime::TuneOutcome measure_now(Problems& problems, std::span<const std::int64_t> problem,
                                   const FunctionCall& call, const CallOptions& how,
                                   TuneOptions tuning, bool for_launch) {
    // One problem of a function at a time: two would disturb each other's clocks.
    std::unique_lock lock(tuning_, std::defer_lock);
    if (may_wait() || tuning.ranks)
      lock.lock();
    else if (!lock.try_lock())
      return {.result = runtime::not_tuned(
                  function_, problem, engine_->device()->info(), SearchEnd::seconds,
                  "another problem of the function is being tuned, and may wait for this thread"),
              .ending = runtime::Ending::undecided};
    struct OnThisThread {
      explicit OnThisThread(std::atomic<std::thread::id>& owner) : owner_(owner) {
        owner_ = std::this_thread::get_id();
      }
      ~OnThisThread() { owner_ = std::thread::id(); }
      std::atomic<std::thread::id>& owner_;
    } const mine(tuning_thread_);
    const std::string subject =
        format("{} {}", function_.name, problem_text(function_.problem_fields, problem));
    RankLog* const log = runtime::tell_if_it_throws(tuning, [&] {
      const auto recall = workshop_.records().recall(function_, problem);
      check_versions(subject, recall, tuning);
      RankLog* const found = log_of(tuning.ranks.get());
      found->line(format(
          "{}: {}", subject,
          recall ? "there is a record with " + recall->result.describe(recall->result.winner())
                 : std::string("there is no record")));
      return found;
    });
    runtime::TuneOutcome tuned;
    try {
      tuned = try_calls(problems, problem, call, tuning, for_launch, log);
    } catch (const std::exception& error) {
      log->line(format("{}: {}", subject, error.what()));
      throw;
    }
    log->result(tuned.result);
    if (how.verbose) tell(subject, tuned.result);
    return tuned;
  }

  runtime::TuneOutcome try_calls(Problems& problems, std::span<const std::int64_t> problem,
                                 const FunctionCall& call, const TuneOptions& tuning,
                                 bool for_launch, RankLog* log) {
    const auto& device = workshop_.device();
    const double limit = runtime::tell_if_it_throws(
        tuning, [&] { return runtime::candidate_seconds(tuning.candidate_seconds); });
    runtime::FunctionBench bench(device, function_, call, log);
    runtime::WatchedBench watched(
        bench, limit,
        runtime::tell_of_overdue(
            *engine_,
            format("{} {}", function_.name, problem_text(function_.problem_fields, problem)),
            [log](const std::string& text) { log->line(text); }));
    auto maker =
        std::make_unique<runtime::FunctionMaker>(function_, problem, device->info(), watched);
    try {
      runtime::TuneOutcome tuned =
          runtime::tune_alone_or_together(workshop_, std::move(maker), tuning, for_launch);
      const TuneResult& result = tuned.result;
      const bool held = problems.find(problem) != nullptr;
      const runtime::Taken taken = runtime::taken_of(tuned.ending, held);
      if (taken == runtime::Taken::unusable) {
        if (tuning.ranks && !held)
          problems.remember_none(problem,
                                 std::make_exception_ptr(runtime::NoneUsable(function_, result)));
        if (for_launch || runtime::is_failure(tuned)) throw runtime::NoneUsable(function_, result);
      }
      // The choice stands even if the data cannot be put back: the other ranks use it.
      if (taken == runtime::Taken::chosen)
        problems.choose(launchable(problem, result.winner().config));
      bench.finish();
      return tuned;
    } catch (...) {
      try {
        bench.finish();
      } catch (const Error& error) {
        engine_->log(LogLevel::warning,
                     format("{}: the data that tuning changed cannot be restored: {}",
                            function_.name, error.what()));
      }
      throw;
    }
  }

  /// Another version means tuning again, or a warning.
  void check_versions(const std::string& subject, const std::optional<runtime::Recall>& recall,
                      TuneOptions& tuning) {
    if (!recall || tuning.retune) return;
    const std::string differ =
        differences(recall->result.versions, workshop_.records().versions(function_));
    if (differ.empty()) return;
    const bool strict = options_.strict_versions && workshop_.may_compile();
    tuning.retune = strict;
    if (!strict && std::exchange(told_, differ) == differ) return;
    engine_->log(strict ? LogLevel::info : LogLevel::warning,
                 format("{}: the record was made with other versions ({}){}", subject, differ,
                        strict ? ": it is tuned again" : ""));
  }

  RankLog* log_of(const Communicator* ranks) {
    const std::pair<int, int> place{ranks ? ranks->rank() : 0, ranks ? ranks->size() : 1};
    auto& log = logs_[place];
    if (!log)
      log =
          std::make_unique<RankLog>(options_.log_folder, function_.name, place.first, place.second);
    return log.get();
  }

  void tell(const std::string& subject, const TuneResult& result) const {
    for (const Candidate& c : result.candidates)
      engine_->log(
          LogLevel::info,
          c.status == CandidateStatus::measured
              ? format("{}: {} takes {:.4g} ms{}", subject, result.describe(c), c.seconds * 1e3,
                       &c == &result.winner()              ? ", and is chosen"
                       : &c == &result.default_candidate() ? ", the default"
                                                           : "")
              : format("{}: {} is {}: {}", subject, result.describe(c), kiln::to_string(c.status),
                       c.reason));
  }

  std::shared_ptr<Engine> engine_;  ///< the runtime's
  const FunctionDescription function_;
  FunctionOptions options_;
  runtime::Workshop workshop_;  ///< the runtime's, with a turn of its own: calls may tune kernels
  const Values default_;
  const runtime::PerKernel::Number count_;
  const runtime::UnpreparedLaunches unprepared_launches_;
  Problems own_{count_};                      ///< chosen alone, or with the function's own ranks
  mutable runtime::ProblemNotes unprepared_;  ///< that were warned of; thread-safe
  struct Group {
    std::weak_ptr<Communicator> ranks;
    std::unique_ptr<Problems> problems;
  };
  std::mutex groups_mutex_;
  std::vector<Group> groups_;  ///< chosen with others
  std::mutex tuning_;
  std::atomic<std::thread::id> tuning_thread_{};
  std::string told_;                                              ///< of other versions
  std::map<std::pair<int, int>, std::unique_ptr<RankLog>> logs_;  ///< by rank and size
};

}  // namespace

std::shared_ptr<FunctionCore> make_function_core(const Runtime& runtime,
                                                 FunctionDescription description,
                                                 FunctionOptions options) {
  if (description.communicates)
    description.versions.push_back({"nccl", nccl_version().value_or("none")});
  const auto& engine = Access::engine(runtime);
  if (engine->options().deterministic.value_or(false))
    description = runtime::deterministic(description, engine->device()->info().target);
  return std::make_shared<Core>(engine, description, std::move(options));
}

}  // namespace kiln::detail
