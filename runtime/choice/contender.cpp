#include "runtime/choice/contender.hpp"

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/choice/cublaslt.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"
#include "runtime/serve/not_for_problem.hpp"
#include "runtime/serve/tune_one.hpp"
#include "runtime/together/beside_agreement.hpp"
#include "runtime/tune/candidates.hpp"
#include "runtime/tune/deterministic.hpp"

namespace kiln::runtime {

using detail::Access;
using kiln::detail::format;

namespace {

class CallableCall final : public ChoiceCall {
 public:
  CallableCall(const detail::AlternativeDescription& what, Values problem, Values knobs,
               Workspaces& workspaces)
      : what_(what),
        problem_(std::move(problem)),
        knobs_(std::move(knobs)),
        workspaces_(workspaces),
        size_{what.workspace ? what.workspace(knobs_, problem_) : 0, 0} {}

  void reserve(Stream stream) const override { workspaces_.reserve(stream, size_); }

  void operator()(Stream stream, void** args) const override {
    what_.call(knobs_, problem_, stream, workspaces_.of(stream, size_).scratch, args);
  }

 private:
  const detail::AlternativeDescription& what_;
  const Values problem_, knobs_;
  Workspaces& workspaces_;
  const WorkspaceSize size_;
};

/// Knobs of a callable have at most this many configs: all of them are listed for each problem,
/// also by a launch, and tried.
constexpr double kMostKnobConfigs = 10'000;

class Callable final : public Contender {
 public:
  Callable(const DeviceInfo& device, const detail::AlternativeDescription& what,
           Workspaces& workspaces)
      : Contender(what), device_(device), workspaces_(workspaces) {}

  std::vector<std::string> parameters() const override {
    std::vector<std::string> names;
    for (const Parameter& knob : what().knobs.parameters()) names.push_back(knob.name);
    return names;
  }

  Entrance enter(Span problem) override {
    if (std::string why = unsupported(problem, device_); !why.empty()) return {{}, std::move(why)};
    Entrance entrance;
    const DynamicSpace& knobs = what().knobs;
    double configs = 1;
    for (const Parameter& knob : knobs.parameters())
      configs *= static_cast<double>(knob.values_on(device_.target.kind).size());
    if (configs > kMostKnobConfigs)
      return {{},
              format("its knobs have {:.3g} configs, constraints not counted, and {:.0f} are the "
                     "most that a callable may have: tune it as a kiln::Function",
                     configs, kMostKnobConfigs)};
    const Values& first = knobs.default_config(device_.target);
    const auto add = [&](const Values& config) {
      if (!knobs.violated(config, problem, device_.limits)) entrance.candidates.push_back(config);
    };
    add(first);
    // All combinations, as an odometer counts.
    Values config;
    std::vector<std::size_t> place(knobs.parameters().size(), 0);
    const auto values = [&](std::size_t i) -> const std::vector<std::int64_t>& {
      return knobs.parameters()[i].values_on(device_.target.kind);
    };
    for (std::size_t i = 0; i < place.size(); ++i) config.push_back(values(i).front());
    for (std::size_t digit = 0; digit < place.size();) {
      if (config != first) add(config);
      for (digit = 0; digit < place.size(); ++digit) {
        place[digit] = place[digit] + 1 < values(digit).size() ? place[digit] + 1 : 0;
        config[digit] = values(digit)[place[digit]];
        if (place[digit] != 0) break;
      }
    }
    if (entrance.candidates.empty()) entrance.why_not = "its constraints allow no knobs";
    return entrance;
  }

  std::shared_ptr<const ChoiceCall> ready(Span problem, Span candidate,
                                          const std::optional<Values>&) override {
    if (const Constraint* no = what().knobs.violated(candidate, problem, device_.limits))
      throw NotForProblem(format("alternative {}: {}", what().name, no->reason));
    return std::make_shared<CallableCall>(what(), Values(problem.begin(), problem.end()),
                                          Values(candidate.begin(), candidate.end()), workspaces_);
  }

 private:
  const DeviceInfo& device_;
  Workspaces& workspaces_;
};

void prepare(ServedHandle& handle, Contender::Span problem) {
  if (const auto missing = handle.prepare(handle.definition().bucketed(problem)))
    throw MissingError(*missing);
}

class TemplateCall final : public ChoiceCall {
 public:
  TemplateCall(std::shared_ptr<ServedHandle> handle, Contender::Span problem)
      : handle_(std::move(handle)), problem_(problem) {
    prepare();
  }

  void operator()(Stream stream, void** args) const override {
    launch(*handle_, stream, problem_, args);
  }
  void stay() const override {
    std::call_once(stays_, [&] {
      pin_.emplace(handle_->problems(), handle_->definition().bucketed(problem_));
    });
    prepare();  // again: it may have left before
  }

 private:
  void prepare() const { runtime::prepare(*handle_, problem_); }

  const std::shared_ptr<ServedHandle> handle_;
  const ProblemValues problem_;
  mutable std::once_flag stays_;
  mutable std::optional<Problems::Pin> pin_;  // last: it uses the handle's problems
};

/// A kernel with its space. Which config it runs with is the business of its own handle and
/// records, or of the ranks that have agreed on one.
class Template final : public Contender {
 public:
  Template(const Runtime& runtime, detail::Engine& engine,
           const detail::AlternativeDescription& what)
      : Contender(what),
        engine_(engine),
        device_(engine.device()->info()),
        definition_(as_served(*what.kernel, engine.options().deterministic, device_)),
        handle_(served(Access::core(runtime, valid(*what.kernel)))) {}

  /// Its own records depend on nothing else, apart from the device.
  std::string identity(Span) const override {
    return to_hex(engine_.records().definition(definition_));
  }

  std::shared_ptr<ServedHandle> kernel() const override { return handle_; }
  bool is_in_use(Span bucket) const override {
    return handle_->fixed() || handle_->problems().find(handle_->definition().bucketed(bucket));
  }

  Entrance enter(Span problem) override {
    if (std::string why = unsupported(problem, device_); !why.empty()) return {{}, std::move(why)};
    return {{Values{}}, {}};
  }

  void tune(Span problem, const TuneOptions* options, bool for_launch, TunedAlone& tuned) override {
    if (options && options->ranks) return tune_together(problem, *options, for_launch, tuned);
    const auto known = [&] { return handle_->known(handle_->definition().bucketed(problem)); };
    const auto before = known();
    if (options)
      handle_->tune(problem, options);
    else
      prepare(*handle_, problem);
    const auto after = known();
    tuned.complete = after && after->complete;
    tuned.changed = !after || !before || before->winner().config != after->winner().config;
  }

  std::shared_ptr<const ChoiceCall> ready(Span problem, Span,
                                          const std::optional<Values>& kernel) override {
    return std::make_shared<TemplateCall>(kernel ? fixed(*kernel) : handle_, problem);
  }

 private:
  static const KernelDefinition& valid(const KernelDefinition& kernel) {
    kernel.validate();
    return kernel;
  }
  std::shared_ptr<ServedHandle> served(const std::shared_ptr<detail::HandleCore>& core) const {
    return engine_.serving().find(*core);
  }

  /// Does not use the handle, which would put the result in use by itself, and which asks the ranks
  /// whenever a problem is new to it.
  void tune_together(Span problem, const TuneOptions& options, bool for_launch, TunedAlone& tuned) {
    const Values bucket = tell_if_it_throws(options, [&] {
      Values values = definition_.bucketed(problem);
      const Values base =
          detail::Tunable(definition_).default_config(values, device_.target, device_.limits);
      tuned.empty = empty(definition_.launch(base, values, device_.limits));
      if (tuned.empty) tuned.kernel = base;
      return values;
    });
    // A rank that throws instead tells the others in an exchange.
    if (tuned.empty) {
      announce_absence(options, "the kernel has nothing to launch");
      return;
    }
    const TuneResult result = tune_one(engine_, definition_, bucket, options, for_launch).result;
    // Thrown even if nothing may be measured, because another alternative can be used instead.
    if (ending_of(result, true) == Ending::unusable) throw NoneUsable(definition_, result);
    tuned.complete = result.complete;
    tuned.changed = !result.from_store;
    tuned.kernel = result.winner().config;
  }

  /// Its launches ask no other rank. A handle keeps what it has loaded, so it is one of today's
  /// source.
  std::shared_ptr<ServedHandle> fixed(const Values& config) {
    const Digest definition = engine_.records().definition(definition_);
    const std::lock_guard lock(mutex_);
    const auto known = fixed_.find(config);
    if (known != fixed_.end() && known->second.definition == definition)
      return known->second.handle;
    const Fixed made{definition, served(handle_->with_config(config))};
    return fixed_.insert_or_assign(config, made).first->second.handle;
  }

  detail::Engine& engine_;
  const DeviceInfo& device_;
  const KernelDefinition definition_;
  const std::shared_ptr<ServedHandle> handle_;
  std::mutex mutex_;
  struct Fixed {
    Digest definition;
    std::shared_ptr<ServedHandle> handle;
  };
  std::map<Values, Fixed> fixed_;  ///< by config
};

}  // namespace

std::unique_ptr<Contender> make_contender(const Runtime& runtime, const KernelDefinition& operation,
                                          const detail::AlternativeDescription& what,
                                          Workspaces& workspaces) {
  const std::shared_ptr<detail::Engine> engine = detail::Access::engine(runtime);
  const std::shared_ptr<Device>& device = engine->device();
  if (what.kernel) return std::make_unique<Template>(runtime, *engine, what);
  if (what.cublaslt) return make_cublaslt(device, operation, what, workspaces);
  return std::make_unique<Callable>(device->info(), what, workspaces);
}

}  // namespace kiln::runtime
