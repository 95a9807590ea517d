#include "kiln/handle.hpp"

#include <mutex>

#include "kiln/detail/format.hpp"
#include "runtime/device_workload.hpp"
#include "runtime/engine.hpp"
#include "runtime/problem_table.hpp"
#include "runtime/tuner.hpp"
#include "runtime/type_names.hpp"

namespace kiln {

using detail::format;
using detail::ReadyKernel;

namespace {

/// `given` is as device_name() spells it. A pointer to writable elements may be passed where the
/// kernel only reads.
bool accepts(std::string_view expected, std::string_view given) {
  constexpr std::string_view kConst = "const ";
  return expected == given || (given.ends_with('*') && expected.starts_with(kConst) &&
                               expected.substr(kConst.size()) == given);
}

/// A handle's kernels, one per bucket. The device pointers in them are kept alive by the engine.
class KernelHandle final : public detail::HandleCore {
 public:
  KernelHandle(std::shared_ptr<detail::Engine> engine, KernelDefinition definition)
      : engine_(std::move(engine)), definition_(std::move(definition)) {}

  const ReadyKernel* find(std::span<const std::int64_t> problem) const noexcept override {
    return table_.find(problem);
  }

  const ReadyKernel& prepare(std::span<const std::int64_t> problem) override {
    std::lock_guard lock(mutex_);
    if (const ReadyKernel* ready = table_.find(problem)) return *ready;
    const Values& default_config =
        definition_.space.default_config(engine_->device()->info().target.kind);
    // An empty problem has nothing to be timed on; its bucket may still hold others.
    const bool untuned = engine_->options().mode == Mode::untuned ||
                         runtime::empty(definition_.geometry(default_config, problem));
    TuneOptions tuning = engine_->options().tuning;
    const auto known = engine_->recall(definition_, problem);
    if (known && (known->same_space || untuned)) {
      try {
        return table_.publish(
            engine_->make_ready(definition_, problem, known->result.winner().config));
      } catch (const Error& error) {
        // What was remembered cannot be used any more: find out anew.
        engine_->log(LogLevel::warning,
                     format("{} {}: the remembered winner cannot be used: {}", definition_.name,
                            definition_.describe_problem(problem), error.what()));
        tuning.retune = true;
      }
    }
    if (untuned) return table_.publish(engine_->make_ready(definition_, problem, default_config));
    return use(problem, engine_->tune(definition_, problem, tuning, true));
  }

  const KernelDefinition& definition() const noexcept override { return definition_; }

  TuneResult tune(std::span<const std::int64_t> problem, const TuneOptions* options) override {
    std::lock_guard lock(mutex_);
    TuneResult result =
        engine_->tune(definition_, problem, options ? *options : engine_->options().tuning);
    use(problem, result);
    return result;
  }

  std::optional<TuneResult> known(std::span<const std::int64_t> problem) override {
    auto recall = engine_->recall(definition_, problem);
    if (!recall || !recall->same_space) return {};
    return std::move(recall->result);
  }

  Verification verify(std::span<const std::int64_t> problem, std::uint64_t seed) override {
    if (!definition_.workload || !definition_.reference)
      throw UserError(format("kernel {}: `{}` is missing, so it cannot be verified",
                             definition_.name, definition_.workload ? "reference" : "workload"));
    const ReadyKernel& ready = at(definition_.bucketed(problem));
    const auto& device = engine_->device();
    runtime::DeviceWorkload workload(definition_, problem, device, seed);
    const Stream stream = device->tuning_stream();
    const auto verdict = workload.verify(stream, [&] {
      ready.launch(definition_.geometry(ready.config, problem), stream, workload.arguments());
    });
    return {verdict.right, verdict.max_error, verdict.why};
  }

 private:
  const ReadyKernel& use(std::span<const std::int64_t> problem, const TuneResult& result) {
    const Values& winner = result.winner().config;
    if (const ReadyKernel* ready = table_.find(problem); ready && ready->config == winner)
      return *ready;
    return table_.publish(engine_->make_ready(definition_, problem, winner));
  }

  std::shared_ptr<detail::Engine> engine_;
  const KernelDefinition definition_;
  runtime::ProblemTable table_;
  std::mutex mutex_;
};

}  // namespace

std::shared_ptr<detail::HandleCore> Runtime::core(KernelDefinition definition) const {
  return std::make_shared<KernelHandle>(engine_, std::move(definition));
}

Verification DynamicTuned::verify(const Values& problem, std::uint64_t seed) const {
  return core_->verify(problem, seed);
}

DynamicTuned Runtime::tuned(const KernelDefinition& definition) const {
  definition.validate();
  return DynamicTuned(core(definition));
}

void DynamicTuned::launch(Stream stream, const Values& problem, void** args) const {
  const KernelDefinition& d = core_->definition();
  // Without a bucket nothing is allocated here.
  const bool direct = !d.bucket && problem.size() == d.problem_fields.size();
  const ReadyKernel& ready = direct ? core_->at(problem) : core_->at(d.bucketed(problem));
  ready.launch(d.geometry(ready.config, problem), stream, args);
}

namespace {

/// The bucket of a problem that has something to do.
Values bucket_to_tune(const KernelDefinition& d, const Values& problem) {
  Values bucket = d.bucketed(problem);
  if (runtime::empty(d.geometry(d.space.default_config(), problem)))
    throw UserError(format("kernel {} for {}: the grid is empty, there is nothing to tune", d.name,
                           d.describe_problem(problem)));
  return bucket;
}

}  // namespace

TuneResult DynamicTuned::tune(const Values& problem) const {
  return core_->tune(bucket_to_tune(core_->definition(), problem), nullptr);
}

TuneResult DynamicTuned::tune(const Values& problem, const TuneOptions& options) const {
  return core_->tune(bucket_to_tune(core_->definition(), problem), &options);
}

std::optional<TuneResult> DynamicTuned::known(const Values& problem) const {
  return core_->known(core_->definition().bucketed(problem));
}

Values DynamicTuned::config(const Values& problem) const {
  return core_->at(core_->definition().bucketed(problem)).config;
}

void DynamicTuned::check_arguments(const std::vector<std::string>& types) const {
  const KernelDefinition& d = core_->definition();
  if (types.size() != d.arguments.size())
    throw UserError(format("kernel {}: {} arguments given, the signature {} has {}", d.name,
                           types.size(), d.signature(), d.arguments.size()));
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (!accepts(d.arguments[i], types[i]) &&
        !accepts(runtime::canonical_type(d.arguments[i]), runtime::canonical_type(types[i])))
      throw UserError(format("kernel {}: argument {} is `{}`, the signature has `{}`", d.name, i,
                             types[i], d.arguments[i]));
  }
}

}  // namespace kiln
