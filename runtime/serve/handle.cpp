#include "kiln/handle.hpp"

#include <atomic>
#include <variant>

#include "kiln/detail/format.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/device/spare_memory.hpp"
#include "runtime/measure/bench.hpp"
#include "runtime/serve/config_loader.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/kernel_loader.hpp"
#include "runtime/serve/launch_checks.hpp"
#include "runtime/serve/one_config.hpp"
#include "runtime/serve/problems.hpp"
#include "runtime/serve/provisional.hpp"
#include "runtime/serve/provisions.hpp"
#include "runtime/serve/served_handle.hpp"
#include "runtime/serve/swap_spans.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/serve/verification.hpp"
#include "runtime/together/measuring_together.hpp"
#include "runtime/together/tune_together.hpp"
#include "runtime/tune/deterministic.hpp"
#include "runtime/tune/kernel_maker.hpp"
#include "runtime/tune/tuner.hpp"
#include "runtime/tune/tuning_session.hpp"

namespace kiln {

using detail::format;
using detail::Launchable;
using detail::Ready;

namespace {

/// The policy of a kernel's problems: when they are looked up, tuned, or served with a stand-in.
/// The engine keeps the device alive that their kernels point to.
class KernelHandle final : public runtime::ServedHandle {
 public:
  KernelHandle(std::shared_ptr<detail::Engine> engine, KernelDefinition definition,
               bool fixed = false)
      : engine_(std::move(engine)),
        kept_definition_(std::make_shared<const KernelDefinition>(std::move(definition))),
        fixed_(fixed),
        loader_(engine_, definition_),
        configs_(*engine_, loader_, fixed_,
                 [this](Launchable made) { return mark_provisional(std::move(made)); }),
        problems_(engine_->workshop().telemetry().counters.problems.of(definition_.name), bound()),
        provisions_(*engine_, definition_, configs_, problems_, fixed_),
        nothing_(configs_.no_launch()),
        captured_(engine_->captures()) {
    relations_ = runtime::relations_of(definition_);
  }

  ~KernelHandle() override {
    if (runtime::Background* background = engine_->background()) background->forget(this);
  }

  const Launchable* find(std::span<const std::int64_t> problem,
                         detail::ReadSection& section) const noexcept override {
    return problems_.find(problem, section);
  }
  Ready find(std::span<const std::int64_t> problem) const override {
    return problems_.find(problem);
  }

  Ready make_ready(std::span<const std::int64_t> problem) override {
    if (const auto sealed = engine_->serving().sealed())
      return provisions_.unprepared(problem, *sealed);
    // A launch does not look again for what was missing a moment ago.
    if (const auto lacking = problems_.missing(problem)) return skip_or_throw(*lacking);
    const RuntimeOptions& options = engine_->options();
    const bool ranks = together();
    if (may_not_ask(problem)) return current(problem);
    if (ranks || fixed_ || options.mode == Mode::collect || options.mode == Mode::background ||
        options.while_busy == WhileBusy::wait)
      return launched(problem, make(problem));
    // While anything is being tuned, a launch that has a stand-in does not look for more.
    if (engine_->busy())
      if (Ready served = problems_.served(problem, Standing::meanwhile)) return served;
    const auto outcome = problems_.try_make(problem, [&] { return obtain(problem); });
    return outcome ? launched(problem, *outcome) : ready_or_throw(untuned_meanwhile(problem));
  }

  Ready make_ready(std::span<const std::int64_t> problem, Stream stream) override {
    if (!engine_->device()->capturing(stream)) return make_ready(problem);
    // As outside a capture, what was found missing is not looked for again, and no stand-in
    // replaces it.
    if (!engine_->serving().sealed())
      if (const auto lacking = problems_.missing(problem)) return skip_or_throw(*lacking);
    return captured(problem, stream);
  }

  Ready captured(std::span<const std::int64_t> problem, Stream stream) override {
    if (Ready ready = problems_.find(problem)) return ready;
    const auto sealed = engine_->serving().sealed();
    // Asked first: a launch that is refused here was not served.
    if (sealed && !engine_->captures().records(stream)) throw not_recorded(problem);
    const Ready served = sealed ? provisions_.unprepared(problem, *sealed)
                                : problems_.served(problem, Standing::meanwhile);
    // A stand-in is this rank's alone, and the other ranks may capture another one. What a sealed
    // runtime launches is the same on all.
    if (served && (sealed || !together() || runtime::MeasuringTogether::here())) {
      if (engine_->captures().records(stream))
        return captured_.of(served, problem, weak_from_this());
      throw not_recorded(problem);
    }
    const runtime::ProblemState state = problems_.state(problem);
    throw cannot_capture(
        problem,
        format("is not possible while the stream is being captured, because {}: call "
               "`prepare` before the capture",
               served ? "the ranks have not chosen its config yet"
               : state == runtime::ProblemState::being_made
                   ? "another thread is still making it ready"
               : state == runtime::ProblemState::failed ? "making it ready has failed before"
                                                        : "nothing is loaded for it"));
  }

  std::optional<Missing> prepare(std::span<const std::int64_t> problem) override {
    if (problems_.find(problem)) return {};
    const Problems::Outcome outcome = may_not_ask(problem) ? Problems::Unmade{} : make(problem);
    if (const auto* missing = std::get_if<Missing>(&outcome)) return *missing;
    if (std::holds_alternative<Problems::Unmade>(outcome)) {
      const Problems::StandIn served = best_known_meanwhile(problem);
      if (const auto* missing = std::get_if<Missing>(&served)) return *missing;
    }
    problems_.served(problem, Standing::meanwhile);  // a use, like the launch that it is made for
    return {};
  }

  std::variant<Launchable, Missing> load(std::span<const std::int64_t> problem,
                                         std::span<const std::int64_t> config) override {
    return configs_.load(problem, config);
  }

  Ready current(std::span<const std::int64_t> problem) override {
    if (Ready served = problems_.served(problem, Standing::best_known)) return served;
    if (const auto sealed = engine_->serving().sealed())
      return provisions_.unprepared(problem, *sealed);
    return ready_or_throw(problems_.stand_in(problem, Standing::best_known,
                                             [&] { return load_best_known(problem); }));
  }

  void use(std::span<const std::int64_t> problem, const Values& config) override {
    put_in_use(problem, config, {});
    if (engine_->options().tuning.ranks) problems_.agree(problem, config, Problems::By::this_rank);
    problems_.keep_choice(problem);
  }

  void put_in_use(std::span<const std::int64_t> problem, const Values& config,
                  std::shared_ptr<runtime::Module> module) override {
    const Ready ready = problems_.find(problem);
    const bool built_anew = module != nullptr;  // perhaps of a source that was edited
    // Also what is in use already is chosen: what another thread is making does not replace it.
    Problems::Loaded made = ready && ready->config == config && !ready->provisional && !built_anew
                                ? Problems::Loaded(runtime::as_tuned(*ready))
                                : load_config(problem, config, std::move(module));
    if (const auto* missing = std::get_if<Missing>(&made)) throw MissingError(*missing);
    problems_.choose(std::get<Launchable>(std::move(made)), built_anew);
    if (runtime::Background* background = engine_->background())
      background->drop(this, Values(problem.begin(), problem.end()));
  }

  std::shared_ptr<detail::HandleCore> with_config(
      std::span<const std::int64_t> config) const override {
    auto handle = std::make_shared<KernelHandle>(
        engine_, runtime::with_one_config(definition_, config), true);
    handle->loader_.take_symbols(loader_);
    engine_->serving().add(handle);
    return handle;
  }
  bool fixed() const noexcept override { return fixed_; }

  const KernelDefinition& definition() const noexcept override { return definition_; }
  const detail::Engine& engine() const noexcept override { return *engine_; }

  TuneResult tune(std::span<const std::int64_t> exact, const TuneOptions* options) override {
    TuneOptions tuning = engine_->completed(options ? *options : engine_->options().tuning);
    const auto asked = [&] { return runtime::bucket_to_tune(*this, exact); };
    const Values bucket = fixed_ ? asked() : tell_if_it_throws(exact, tuning, asked);
    if (!options) tuning.retune = tuning.retune && !problems_.measured_anew(bucket);
    return tune_bucket(bucket, tuning).result;
  }

  runtime::TuneOutcome tune_bucket(std::span<const std::int64_t> problem,
                                   const TuneOptions& tuning) override {
    if (fixed_) {
      TuneResult timed = runtime::time_default(
          engine_->workshop(), *engine_->maker(definition_, problem, tuning), tuning);
      const runtime::Ending ending = runtime::ending_of(timed, true);
      return {.result = std::move(timed), .ending = ending};
    }
    runtime::TuneOutcome tuned =
        runtime::tune_or_fail_again(*engine_, problems_, definition_, problem, tuning, false);
    use_outcome(tuned, tuning);
    if (runtime::is_failure(tuned)) throw runtime::NoneUsable(definition_, std::move(tuned.result));
    return tuned;
  }

  void use_outcome(runtime::TuneOutcome& tuned, const TuneOptions& tuning) override {
    const Values& problem = tuned.result.problem;
    const auto taken = runtime::take_outcome(*engine_, problems_, definition_, tuned, tuning);
    auto module = std::exchange(tuned.module, nullptr);
    // A device that a candidate has taken with it loads nothing. The result is a worker's, and on
    // record for the process that comes next.
    if (tuned.ending == runtime::Ending::undecided)
      provisions_.use_better_known(problem, tuned.result);
    else if (taken == runtime::Taken::chosen && (module || !engine_->device()->lost()))
      put_in_use(problem, tuned.result.winner().config, std::move(module));
    if (tuning.retune && runtime::is_measured_anew(tuned.result))
      problems_.note_measured_anew(problem);
  }

  std::optional<TuneResult> known(std::span<const std::int64_t> problem) override {
    if (fixed_) return {};
    auto recall = engine_->records().recall(definition_, problem);
    if (!recall || !recall->same_space) return {};
    return std::move(recall->result);
  }

  Verification verify(std::span<const std::int64_t> problem, std::uint64_t seed) override {
    if (!definition_.workload || !(definition_.reference || definition_.check))
      throw UserError(
          format("kernel {}: {} missing, so it cannot be verified", definition_.name,
                 definition_.workload ? "`reference` and `check` are" : "`workload` is"));
    const auto bucket = definition_.bucketed(problem);
    const Ready used = ready_or_throw(
        problems_.stand_in(bucket, Standing::best_known, [&] { return load_best_known(bucket); }));
    return runtime::verify_launch(*engine_, loader_, *used, problem, seed);
  }

  std::shared_ptr<const detail::BoundLaunch> bound_launch(
      const Launchable& ready, std::span<const std::int64_t> problem) const override {
    return runtime::KernelLoader::bound_launch(ready, problem);
  }
  WorkspaceSize workspace_size(const Launchable& ready,
                               std::span<const std::int64_t> problem) const override {
    return detail::planned_workspace(definition_, ready.config, problem, limits())
        .value_or(WorkspaceSize{});
  }
  void reserve_workspace(Stream stream, const WorkspaceSize& size) const override {
    loader_.reserve_workspace(stream, size);
  }
  void use_workspace(Stream stream, void* memory, const WorkspaceSize& size) const override {
    loader_.use_workspace(stream, memory, size);
  }
  void release_workspace(Stream stream) const override { loader_.release_workspace(stream); }
  const DeviceLimits& limits() const noexcept override { return engine_->device()->info().limits; }

  Symbol symbol(const Launchable& ready, std::string_view name) const override {
    return loader_.symbol(ready, name);
  }
  void set_symbol(std::string name, std::span<const std::byte> data) override {
    loader_.set_symbol(std::move(name), data);
  }

  runtime::Provisions& provisions() noexcept override { return provisions_; }
  runtime::Problems& problems() noexcept override { return problems_; }

  runtime::Problems::Loaded load_config(std::span<const std::int64_t> problem, const Values& config,
                                        std::shared_ptr<runtime::Module> module) override {
    if (module) return loader_.adopt(problem, config, std::move(module));
    return configs_.load(problem, config);
  }

  std::shared_ptr<const KernelDefinition> kept_definition() const override {
    return kept_definition_;
  }

 private:
  using Problems = runtime::Problems;
  using Standing = runtime::Standing;

  CaptureError cannot_capture(std::span<const std::int64_t> problem, const std::string& why) {
    return engine_->captures().counted(format("kernel {} for {}: a launch {}", definition_.name,
                                              definition_.describe_problem(problem), why));
  }

  CaptureError not_recorded(std::span<const std::int64_t> problem) {
    return cannot_capture(problem,
                          "would make a capture fail, because another stream that waits for this "
                          "one is being captured, or its own capture has failed: launch on "
                          "another stream");
  }

  runtime::ProblemBound bound() {
    const auto release = [this](std::vector<Values>& leaving) {
      if (engine_->serving().sealed()) leaving.clear();
      if (runtime::Background* const background = engine_->background())
        background->withdraw(this, leaving);
    };
    const auto dispose = [this](std::shared_ptr<const void> what) {
      engine_->bounds().dispose(std::move(what));
    };
    const auto keep_all = [this] { engine_->bounds().keep_to_module_bytes(); };
    return {engine_->bounds().max_problems(),
            engine_->bounds().max_module_bytes() != 0,
            release,
            dispose,
            keep_all,
            &engine_->workshop().telemetry().counters,
            runtime::swap_spans(engine_->workshop().telemetry().spans, definition_)};
  }

  /// Whether the ranks choose when a problem is launched.
  bool together() const noexcept {
    return engine_->options().tuning.ranks && !fixed_ &&
           engine_->options().mode != Mode::background;
  }

  /// Inside of a measurement neither the ranks may be asked nor a thread waited for that asks them:
  /// both would wait for this measurement.
  bool may_not_ask(std::span<const std::int64_t> problem) const {
    return together() && runtime::MeasuringTogether::here() && !problems_.agreed(problem);
  }

  /// What is put in use before a final winner is known: where it may be improved on, provisional.
  Launchable mark_provisional(Launchable made) {
    if (fixed_ || runtime::empty(definition_.launch(made.config, made.problem, limits())))
      return made;
    return runtime::may_improve(*engine_,
                                std::static_pointer_cast<runtime::ServedHandle>(shared_from_this()),
                                std::move(made));
  }

  static Ready ready_or_throw(const Problems::StandIn& outcome) {
    if (const auto* missing = std::get_if<Missing>(&outcome)) throw MissingError(*missing);
    return std::get<Ready>(outcome);
  }

  Ready skip_or_throw(const Missing& missing) const {
    if (engine_->options().mode == Mode::collect) return nothing_;
    throw MissingError(missing);
  }

  /// Waits for a thread that makes it; not on the one whose turn it is to tune, which that thread
  /// may wait for.
  Problems::Outcome make(std::span<const std::int64_t> problem) {
    const auto work = [&] { return obtain(problem); };
    if (!engine_->workshop().turn().mine()) return problems_.make(problem, work);
    return problems_.try_make(problem, work).value_or(Problems::Unmade{});
  }

  /// What a launch gets: a stand-in if the problem was left unmade.
  Ready launched(std::span<const std::int64_t> problem, const Problems::Outcome& outcome) {
    if (const auto* ready = std::get_if<Ready>(&outcome)) return *ready;
    if (const auto* missing = std::get_if<Missing>(&outcome)) return skip_or_throw(*missing);
    return ready_or_throw(best_known_meanwhile(problem));
  }

  /// When a problem was left unmade. With ranks, another rank's record may name another config.
  Problems::StandIn best_known_meanwhile(std::span<const std::int64_t> problem) {
    if (together()) return untuned_meanwhile(problem);
    return problems_.stand_in(problem, Standing::best_known,
                              [&] { return load_best_known(problem); });
  }

  /// While another thread is at it.
  Problems::StandIn untuned_meanwhile(std::span<const std::int64_t> problem) {
    return problems_.stand_in(problem, Standing::meanwhile,
                              [&] { return configs_.untuned(problem); });
  }

  /// The best that is known without measuring.
  Problems::Loaded load_best_known(std::span<const std::int64_t> problem) {
    if (const auto config = problems_.agreed(problem)) return configs_.load(problem, *config);
    const auto known = provisions_.on_record(problem, engine_->options().tuning, true);
    return configs_.best_known(problem, winner_of(known)).made;
  }

  static std::optional<Values> winner_of(const std::optional<runtime::Recall>& known) {
    return known ? std::optional(known->result.winner().config) : std::nullopt;
  }

  /// As runtime::tell_if_it_throws(). Launches of the problem do not ask the ranks again.
  template <class Work>
  std::invoke_result_t<const Work&> tell_if_it_throws(std::span<const std::int64_t> problem,
                                                      const TuneOptions& tuning, const Work& work) {
    return runtime::tell_if_it_throws(tuning, work, [&](const std::exception_ptr& why) {
      runtime::remember_absence(*engine_, problems_, definition_, problem, tuning, why);
    });
  }

  /// What the ranks agree on. Nothing where the default launches nothing that could be timed; other
  /// problems of the bucket may.
  std::optional<Problems::Made> obtain_together(std::span<const std::int64_t> problem) {
    problems_.throw_if_none(problem);
    const TuneOptions& tuning = engine_->options().tuning;
    if (tell_if_it_throws(problem, tuning, [&] { return configs_.launches_nothing(problem); }))
      return {};
    if (!problems_.may_agree(problem)) return not_agreed(problem);
    runtime::TuneOutcome tuned =
        runtime::tune_or_fail_again(*engine_, problems_, definition_, problem, tuning, true);
    if (runtime::take_outcome(*engine_, problems_, definition_, tuned, tuning) ==
        runtime::Taken::unusable)
      throw runtime::NoneUsable(definition_, tuned.result);
    // Another thread's problem may have taken the last place for what is agreed on.
    const Values config = problems_.agreed(problem).value_or(configs_.default_config(problem));
    if (tuned.module && config == tuned.result.winner().config)
      return loader_.adopt(problem, config, std::move(tuned.module));
    return load_or_warn(problem, config);
  }

  /// Makes a problem ready; one thread at a time does this for a problem.
  Problems::Made obtain(std::span<const std::int64_t> problem) {
    if (fixed_) return load_or_warn(problem, configs_.default_config(problem));
    // It holds, also if this rank cannot load it at once: the others do not ask again.
    if (const auto agreed = problems_.agreed(problem)) return load_or_warn(problem, *agreed);
    // What this rank remembers is no choice yet: the others may remember something else.
    if (together())
      if (auto made = obtain_together(problem)) return *std::move(made);
    const auto known = provisions_.on_record(problem, engine_->options().tuning, true);
    if (!engine_->workshop().may_measure(true) || configs_.launches_nothing(problem)) {
      auto best = configs_.best_known(problem, winner_of(known));
      // A commit may have come to it while that was compiled, and the other ranks launch it.
      if (const auto agreed = problems_.agreed(problem)) return load_or_warn(problem, *agreed);
      best.provisional = best.provisional || (known && provisions_.goes_on(*known));
      return configs_.to_publish(problem, std::move(best));
    }
    TuneOptions tuning = engine_->options().tuning;
    // Where launches are asked to measure again, they do so once: not after the problem has left.
    tuning.retune = tuning.retune && !problems_.measured_anew(problem);
    if (known && runtime::answers(*known, tuning, true)) {
      auto winner = configs_.winner(problem, known->result.winner().config);
      if (!winner)
        tuning.retune = true;
      else if (auto* ready = std::get_if<Launchable>(&*winner))
        return std::move(*ready);
      else
        engine_->wanted().warn_of(definition_, problem, std::get<Missing>(*winner),
                                  "the winner is missing, so the problem is tuned again");
    }
    runtime::TuneOutcome tuned;
    // Making the data at each launch would cost more than is gained.
    const auto use_untuned = [&](const Error& error) {
      engine_->log(LogLevel::warning,
                   format("{}; it is not tuned, and the untuned config is used", error.what()));
      return configs_.ready_or_warn(problem, configs_.untuned(problem));
    };
    try {
      tuned = runtime::tune_or_fail_again(*engine_, problems_, definition_, problem, tuning, true,
                                          {true, known});
    } catch (const runtime::OutOfMemory& error) {
      return use_untuned(error);
    } catch (const runtime::BenchLost& error) {
      return use_untuned(error);
    } catch (const runtime::SourceEdited&) {
      return Problems::Unmade{};  // a later launch tunes the source as it is then
    }
    // Waiting used up the budget, or it was stopped: what is known without measuring runs, and a
    // later launch asks again.
    if (tuned.ending != runtime::Ending::winner) return Problems::Unmade{};
    if (tuning.retune && runtime::is_measured_anew(tuned.result))
      problems_.note_measured_anew(problem);
    const Values& winner = tuned.result.winner().config;
    if (tuned.module) return loader_.adopt(problem, winner, std::move(tuned.module));
    return load_or_warn(problem, winner);
  }

  /// The ranks agree on no more problems, so they do not ask each other.
  Problems::Made not_agreed(std::span<const std::int64_t> problem) {
    if (!told_.exchange(true))
      engine_->log(LogLevel::warning,
                   format("kernel {}: its ranks have agreed on {} problems; all others use the "
                          "default config: let a bucket stand for many problems",
                          definition_.name, Problems::kMostAgreed));
    return load_or_warn(problem, configs_.default_config(problem));
  }

  /// Launches fail from now on if this config's binary is missing; a warning says so.
  Problems::Made load_or_warn(std::span<const std::int64_t> problem, const Values& config) {
    return configs_.ready_or_warn(problem, configs_.load(problem, config));
  }

  std::shared_ptr<detail::Engine> engine_;
  const std::shared_ptr<const KernelDefinition> kept_definition_;
  const KernelDefinition& definition_ = *kept_definition_;
  const bool fixed_;  ///< the program gave the one config: nothing is tuned or recorded
  mutable runtime::KernelLoader loader_;  ///< thread-safe
  runtime::ConfigLoader configs_;
  Problems problems_;
  runtime::Provisions provisions_;
  const Ready nothing_;
  runtime::CapturedStandIns captured_;
  std::atomic<bool> told_ = false;  ///< that no more problems are agreed on
};

}  // namespace

std::shared_ptr<detail::HandleCore> Runtime::core(KernelDefinition definition) const {
  auto handle = std::make_shared<KernelHandle>(
      engine_, runtime::as_served(std::move(definition), engine_->options().deterministic,
                                  engine_->device()->info()));
  engine_->serving().add(handle);
  return handle;
}

}  // namespace kiln
