#include "kiln/handle.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <variant>

#include "cache/single_flight.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/key_builder.hpp"
#include "runtime/device/module_data.hpp"
#include "runtime/measure/device_workload.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/launch_checks.hpp"
#include "runtime/serve/problem_table.hpp"
#include "runtime/together/rank_work.hpp"
#include "runtime/tune/tuner.hpp"
#include "runtime/tune/tuning_session.hpp"

namespace kiln {

using detail::format;
using detail::ReadyKernel;

namespace {

/// What a program has for a variable does not fit it: another config would not help.
class WrongSymbol : public UserError {
 public:
  using UserError::UserError;
};

/// The same kernel with a space of one config.
KernelDefinition only(const KernelDefinition& kernel, std::span<const std::int64_t> config) {
  const auto& parameters = kernel.space.parameters();
  if (config.size() != parameters.size())
    throw UserError(format("kernel {}: a config of {} values was given, it has {} parameters",
                           kernel.name, config.size(), parameters.size()));
  DynamicSpace space;
  for (std::size_t i = 0; i < config.size(); ++i) {
    const Parameter& p = parameters[i];
    std::vector<std::string> names;
    if (!p.names.empty()) names.push_back(p.show(config[i]));
    space.parameter(p.name, {config[i]}, config[i], p.kind, std::move(names));
  }
  for (const Constraint& c : kernel.space.constraints()) space.where(c.reason, c.holds);
  KernelDefinition one = kernel;
  one.space = std::move(space);
  return one;
}

/// A handle's kernels, one per bucket. The device pointers in them are kept alive by the engine.
class KernelHandle final : public detail::HandleCore {
 public:
  KernelHandle(std::shared_ptr<detail::Engine> engine, KernelDefinition definition,
               bool chosen = false)
      : engine_(std::move(engine)), definition_(std::move(definition)), chosen_(chosen) {
    relations_ = runtime::relations_of(definition_);
  }

  const ReadyKernel* find(std::span<const std::int64_t> problem) const noexcept override {
    return table_.find(problem);
  }

  const ReadyKernel& make_ready(std::span<const std::int64_t> problem) override {
    const Values key(problem.begin(), problem.end());
    {
      std::lock_guard lock(outcomes_mutex_);
      // What was missing a moment ago is not looked for at every launch.
      if (const auto known = missing_.find(key);
          known != missing_.end() && engine_->options().mode != Mode::collect)
        throw MissingError(known->second);
    }
    if (const ReadyKernel* skipped = skipped_.find(problem)) return *skipped;
    const auto work = [&] { return obtain(problem); };
    if (engine_->options().mode == Mode::collect) {
      const Outcome outcome = flights_.run(key, work);
      return std::holds_alternative<Missing>(outcome) ? skip(problem) : ready_or_throw(outcome);
    }
    if (chosen_) return ready_or_throw(flights_.run(key, work));
    // Nor is another thread waited for that asks the ranks: it waits for this one's agreement.
    if (engine_->options().tuning.ranks && runtime::MeasuringTogether::here() && !agreed(problem))
      return current(problem);
    if (engine_->options().while_busy == WhileBusy::wait || engine_->options().tuning.ranks)
      return ready_or_throw(flights_.run(key, work));
    // While anything is being tuned, what has been served with the default need not look for more.
    if (engine_->busy())
      if (const ReadyKernel* interim = interim_.find(problem)) return *interim;
    if (const auto outcome = flights_.try_run(key, work)) return ready_or_throw(*outcome);
    return ready_or_throw(interim(problem));
  }

  std::optional<Missing> prepare(std::span<const std::int64_t> problem) override {
    if (table_.find(problem)) return {};
    const Outcome outcome =
        flights_.run(Values(problem.begin(), problem.end()), [&] { return obtain(problem); });
    if (const auto* missing = std::get_if<Missing>(&outcome)) return *missing;
    return {};
  }

  std::variant<ReadyKernel, Missing> ready(std::span<const std::int64_t> problem,
                                           std::span<const std::int64_t> config) override {
    return load(problem, config);
  }

  const ReadyKernel& current(std::span<const std::int64_t> problem) override {
    if (const ReadyKernel* ready = table_.find(problem)) return *ready;
    if (const ReadyKernel* ready = current_.find(problem)) return *ready;
    // Not into `table_`: a launch may still have to tune. With ranks a record alone is no choice.
    const auto known = engine_->options().tuning.ranks || chosen_
                           ? std::nullopt
                           : engine_->records().recall(definition_, problem);
    if (known) try {
        const Outcome winner = published(current_, load(problem, known->result.winner().config));
        if (const auto* ready = std::get_if<const ReadyKernel*>(&winner)) return **ready;
      } catch (const WrongSymbol&) {
        throw;
      } catch (const Error& error) {
        engine_->log(LogLevel::warning,
                     format("{} {}: the remembered winner cannot be used: {}", definition_.name,
                            definition_.describe_problem(problem), error.what()));
      }
    return ready_or_throw(published(current_, load(problem, default_config())));
  }

  void use(std::span<const std::int64_t> problem, const Values& config) override {
    agree_on(problem, config);
    put_in_use(problem, config);
  }

  std::shared_ptr<detail::HandleCore> with_config(
      std::span<const std::int64_t> config) const override {
    auto handle = std::make_shared<KernelHandle>(engine_, only(definition_, config), true);
    std::lock_guard lock(symbols_mutex_);
    handle->symbols_ = symbols_;
    return handle;
  }
  bool chosen() const noexcept override { return chosen_; }

  const KernelDefinition& definition() const noexcept override { return definition_; }
  const detail::Engine& engine() const noexcept override { return *engine_; }

  TuneResult tune(std::span<const std::int64_t> problem, const TuneOptions* options) override {
    if (chosen_) return time_default(problem, options ? *options : engine_->options().tuning);
    TuneResult result =
        tune_or_fail_again(problem, options ? *options : engine_->options().tuning, false);
    agree_on(problem, result.winner().config);
    put_in_use(problem, result.winner().config);
    return result;
  }

  std::optional<TuneResult> known(std::span<const std::int64_t> problem) override {
    if (chosen_) return {};
    auto recall = engine_->records().recall(definition_, problem);
    if (!recall || !recall->same_space) return {};
    return std::move(recall->result);
  }

  Verification verify(std::span<const std::int64_t> problem, std::uint64_t seed) override {
    if (!definition_.workload || !(definition_.reference || definition_.check))
      throw UserError(
          format("kernel {}: {} missing, so it cannot be verified", definition_.name,
                 definition_.workload ? "`reference` and `check` are" : "`workload` is"));
    const ReadyKernel& ready = at(definition_.bucketed(problem));
    const auto& device = engine_->device();
    runtime::DeviceWorkload workload(definition_, problem, device, seed);
    const Stream stream = device->tuning_stream();
    const LaunchGeometry geometry = definition_.geometry(ready.config, problem);
    std::shared_ptr<const runtime::LoadedKernel> kernel = loaded_of(ready);
    std::shared_ptr<runtime::ModuleData> data;
    if (workload.has_variables()) {
      // What the program has in them stays: a module of its own is filled for this.
      const auto own = engine_->make_ready(definition_, problem, ready.config);
      if (const auto* missing = std::get_if<Missing>(&own)) throw MissingError(*missing);
      kernel = loaded_of(std::get<ReadyKernel>(own));
      data = workload.module_data(kernel, ready.config);
    }
    const auto verdict = workload.verify(stream, [&] {
      if (data) data->fill();
      if (!runtime::empty(geometry))
        device->launch_checked(*kernel, geometry, stream, workload.arguments());
    });
    return {verdict.right, verdict.max_error, verdict.why};
  }

  Symbol symbol(const ReadyKernel& ready, std::string_view name) const override try {
    const runtime::ModuleVariable found =
        runtime::find_variable(*engine_->device(), *loaded_of(ready), name);
    using Owner = std::pair<std::shared_ptr<runtime::Device>, std::shared_ptr<const void>>;
    return {found.name, found.address, found.bytes, engine_->device().get(),
            std::make_shared<const Owner>(engine_->device(), ready.owner)};
  } catch (const UserError& error) {
    throw UserError(format("kernel {}: {}", definition_.name, error.what()));
  }

  void set_symbol(std::string name, std::span<const std::byte> data) override {
    std::lock_guard lock(symbols_mutex_);
    std::erase_if(modules_, [](const auto& module) { return module.expired(); });
    for (const auto& module : modules_)
      if (const auto kernel = module.lock()) fill(*kernel, name, data);
    symbols_.insert_or_assign(std::move(name), std::vector<std::byte>(data.begin(), data.end()));
  }

 private:
  /// What a problem came to. The kernel lives as long as this handle.
  using Outcome = std::variant<const ReadyKernel*, Missing>;

  /// The kernel keeps its module.
  static std::shared_ptr<const runtime::LoadedKernel> loaded_of(const ReadyKernel& ready) {
    return {ready.owner, static_cast<const runtime::LoadedKernel*>(ready.loaded)};
  }

  void fill(const runtime::LoadedKernel& kernel, const std::string& name,
            std::span<const std::byte> data) const try {
    runtime::Device& device = *engine_->device();
    runtime::write_variable(device, runtime::find_variable(device, kernel, name), data);
  } catch (const UserError& error) {
    throw WrongSymbol(format("kernel {}: {}", definition_.name, error.what()));
  }

  /// As Engine::make_ready, with what set_symbol() was given.
  std::variant<ReadyKernel, Missing> load(std::span<const std::int64_t> problem,
                                          std::span<const std::int64_t> config) {
    if (chosen_)
      if (const Constraint* broken =
              definition_.space.violated(config, problem, engine_->device()->info().limits))
        throw UserError(format("kernel {} with {} for {} breaks a constraint: {}", definition_.name,
                               definition_.space.describe(config),
                               definition_.describe_problem(problem), broken->reason));
    auto made = engine_->make_ready(definition_, problem, config);
    if (const auto* ready = std::get_if<ReadyKernel>(&made)) {
      const auto kernel = loaded_of(*ready);
      std::lock_guard lock(symbols_mutex_);
      for (const auto& [name, data] : symbols_) fill(*kernel, name, data);
      std::erase_if(modules_, [](const auto& module) { return module.expired(); });
      modules_.push_back(kernel);
    }
    return made;
  }

  const Values& default_config() const {
    return definition_.space.default_config(engine_->device()->info().target.kind);
  }

  static const ReadyKernel& ready_or_throw(const Outcome& outcome) {
    if (const auto* missing = std::get_if<Missing>(&outcome)) throw MissingError(*missing);
    return *std::get<const ReadyKernel*>(outcome);
  }

  static Outcome published(runtime::ProblemTable& table, std::variant<ReadyKernel, Missing> made) {
    if (auto* missing = std::get_if<Missing>(&made)) return std::move(*missing);
    return &table.publish(std::get<ReadyKernel>(std::move(made)));
  }

  /// By one thread at a time for a problem.
  Outcome obtain(std::span<const std::int64_t> problem) {
    if (const ReadyKernel* ready = table_.find(problem)) return ready;
    if (chosen_) return use_or_remember(problem, default_config());
    // An empty problem has nothing to be timed on; its bucket may still hold others.
    const bool nothing_to_do = runtime::empty(definition_.geometry(default_config(), problem));
    const bool untuned = engine_->options().mode != Mode::tune_now || nothing_to_do;
    TuneOptions tuning = engine_->options().tuning;
    if (tuning.ranks && !nothing_to_do) {
      // What this rank remembers is no choice yet: the others may remember something else. What
      // was agreed holds, also if this rank cannot load it at once: the others do not ask again.
      std::optional<Values> config = agreed(problem);
      if (!config) {
        config = engine_->tune(definition_, problem, tuning, true).winner().config;
        agree_on(problem, *config);
      }
      return use_or_remember(problem, *config);
    }
    const auto known = engine_->records().recall(definition_, problem);
    if (known && (known->same_space || untuned)) {
      try {
        Outcome winner = published(table_, load(problem, known->result.winner().config));
        if (std::holds_alternative<const ReadyKernel*>(winner)) return winner;
        engine_->warn_of(definition_, problem, std::get<Missing>(winner),
                         "the winner is missing, the default is used");
      } catch (const WrongSymbol&) {
        throw;
      } catch (const Error& error) {
        // What was remembered cannot be used any more: find out anew.
        engine_->log(LogLevel::warning,
                     format("{} {}: the remembered winner cannot be used: {}", definition_.name,
                            definition_.describe_problem(problem), error.what()));
        tuning.retune = true;
      }
    }
    if (!untuned) {
      const TuneResult result = tune_or_fail_again(problem, tuning, true);
      // The budget went in waiting: the default runs, and a later launch asks again.
      if (result.end == SearchEnd::seconds && result.winner().status == CandidateStatus::not_tried)
        return interim(problem);
      return &put_in_use(problem, result.winner().config);
    }
    return use_or_remember(problem, default_config());
  }

  /// Launches use this config from now on; without its binary they fail, and say so.
  Outcome use_or_remember(std::span<const std::int64_t> problem, const Values& config) {
    Outcome outcome = published(table_, load(problem, config));
    if (const auto* missing = std::get_if<Missing>(&outcome)) remember(problem, *missing);
    return outcome;
  }

  TuneResult time_default(std::span<const std::int64_t> problem, const TuneOptions& options) {
    const auto maker = engine_->maker(definition_, problem, options.seed);
    return runtime::time_default(engine_->workshop(), *maker, options);
  }

  /// Launches that do nothing, in place of what is missing.
  const ReadyKernel& skip(std::span<const std::int64_t> problem) {
    ReadyKernel nothing;
    nothing.problem.assign(problem.begin(), problem.end());
    nothing.config = default_config();
    nothing.start = [](const ReadyKernel&, const LaunchGeometry&, Stream, void**) {};
    return skipped_.publish(std::move(nothing));
  }

  /// The default, until the problem is made ready.
  Outcome interim(std::span<const std::int64_t> problem) {
    if (const ReadyKernel* interim = interim_.find(problem)) return interim;
    return interim_flights_.run(Values(problem.begin(), problem.end()), [&]() -> Outcome {
      if (const ReadyKernel* interim = interim_.find(problem)) return interim;
      return published(interim_, load(problem, default_config()));
    });
  }

  /// As Engine::tune. What failed fails again at once with the same error, until the kernel's
  /// source or the options change, or the caller asks for a retry.
  TuneResult tune_or_fail_again(std::span<const std::int64_t> problem, const TuneOptions& options,
                                bool for_launch) {
    // The other ranks come to the agreement, whatever failed here.
    if (engine_->with_ranks(options).ranks)
      return engine_->tune(definition_, problem, options, for_launch);
    const Digest request = request_digest(problem, options);
    if (options.retune && !for_launch) {
      engine_->builder().forget_failures();
    } else {
      std::lock_guard lock(outcomes_mutex_);
      if (const auto failed = failed_.find(request); failed != failed_.end()) throw failed->second;
    }
    try {
      return engine_->tune(definition_, problem, options, for_launch);
    } catch (const TuningFailedError& error) {
      std::lock_guard lock(outcomes_mutex_);
      failed_.insert_or_assign(request, error);
      throw;
    }
  }

  Digest request_digest(std::span<const std::int64_t> problem, const TuneOptions& options) {
    detail::KeyBuilder key("tuning", 1);
    for (const std::int64_t value : problem) key.add("problem", value);
    if (const auto source = engine_->builder().kernel_source(definition_))
      key.add("source", *source);
    return key.add("strategy", options.strategy)
        .add("seed", static_cast<std::int64_t>(options.seed))
        .add("evaluations", static_cast<std::int64_t>(options.max_evaluations))
        .add("limits", format("{} {}", options.max_seconds, options.target_seconds))
        .add("cold", std::int64_t{options.cold_cache})
        .finish()
        .digest;
  }

  std::optional<Values> agreed(std::span<const std::int64_t> problem) {
    std::lock_guard lock(outcomes_mutex_);
    const auto found = agreed_.find(Values(problem.begin(), problem.end()));
    return found == agreed_.end() ? std::nullopt : std::optional(found->second);
  }
  void agree_on(std::span<const std::int64_t> problem, const Values& config) {
    if (!engine_->options().tuning.ranks) return;
    std::lock_guard lock(outcomes_mutex_);
    agreed_.insert_or_assign(Values(problem.begin(), problem.end()), config);
  }

  void remember(std::span<const std::int64_t> problem, const Missing& missing) {
    {
      std::lock_guard lock(outcomes_mutex_);
      missing_.insert_or_assign(Values(problem.begin(), problem.end()), missing);
    }
    engine_->warn_of(definition_, problem, missing, "nothing can be launched");
  }

  const ReadyKernel& put_in_use(std::span<const std::int64_t> problem, const Values& config) {
    if (const ReadyKernel* ready = table_.find(problem); ready && ready->config == config)
      return *ready;
    return ready_or_throw(published(table_, load(problem, config)));
  }

  std::shared_ptr<detail::Engine> engine_;
  const KernelDefinition definition_;
  const bool chosen_;  ///< the one config of the space was chosen: nothing is tuned or recorded
  runtime::ProblemTable table_;
  runtime::ProblemTable interim_;  ///< defaults, for launches while a problem is made ready
  runtime::ProblemTable skipped_;  ///< what is missing, in mode collect
  runtime::ProblemTable current_;  ///< what `current` found, where nothing was made ready
  cache::SingleFlight<Values, Outcome> flights_, interim_flights_;
  std::mutex outcomes_mutex_;  ///< of those below
  std::map<Values, Missing> missing_;
  std::map<Digest, TuningFailedError> failed_;  ///< by request_digest()
  std::map<Values, Values> agreed_;             ///< with ranks: what they chose together
  mutable std::mutex symbols_mutex_;            ///< of those below
  std::map<std::string, std::vector<std::byte>> symbols_;
  std::vector<std::weak_ptr<const runtime::LoadedKernel>> modules_;
};

}  // namespace

std::shared_ptr<detail::HandleCore> Runtime::core(KernelDefinition definition) const {
  return std::make_shared<KernelHandle>(engine_, std::move(definition));
}

}  // namespace kiln
