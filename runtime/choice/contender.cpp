#include "runtime/choice/contender.hpp"

#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/choice/cublaslt.hpp"
#include "runtime/serve/access.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

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

  void operator()(Stream stream, void** args) const override {
    what_.call(knobs_, problem_, stream, workspaces_.of(stream, size_).scratch, args);
  }

 private:
  const detail::AlternativeDescription& what_;
  const Values problem_, knobs_;
  Workspaces& workspaces_;
  const WorkspaceSize size_;
};

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

  std::shared_ptr<const ChoiceCall> ready(Span problem, Span candidate) override {
    if (const Constraint* no = what().knobs.violated(candidate, problem, device_.limits))
      throw UserError(format("alternative {}: {}", what().name, no->reason));
    return std::make_shared<CallableCall>(what(), Values(problem.begin(), problem.end()),
                                          Values(candidate.begin(), candidate.end()), workspaces_);
  }

 private:
  const DeviceInfo& device_;
  Workspaces& workspaces_;
};

class TemplateCall final : public ChoiceCall {
 public:
  TemplateCall(DynamicTuned handle, Contender::Span problem)
      : handle_(std::move(handle)), problem_(problem) {}

  void operator()(Stream stream, void** args) const override {
    handle_.launch(stream, problem_, args);
  }

 private:
  const DynamicTuned handle_;
  const ProblemValues problem_;
};

/// A kernel with its space. Which config it runs with is the business of its own handle and
/// records.
class Template final : public Contender {
 public:
  Template(const Runtime& runtime, detail::Engine& engine,
           const detail::AlternativeDescription& what)
      : Contender(what),
        device_(engine.device()->info()),
        records_(engine.records()),
        handle_(runtime.tuned(*what.kernel)) {}

  /// All that its own records depend on, its source among that.
  std::string identity(Span) const override { return records_.key(*what().kernel, {}).hex(); }

  Entrance enter(Span problem) override {
    if (std::string why = unsupported(problem, device_); !why.empty()) return {{}, std::move(why)};
    return {{Values{}}, {}};
  }

  TunedAlone tune(Span problem, const TuneOptions* options) override {
    const Values values(problem.begin(), problem.end());
    const auto before = handle_.known(values);
    if (options)
      handle_.tune(values, *options);
    else
      prepare(values);
    const auto after = handle_.known(values);
    if (!after) return {.complete = false, .changed = true};
    return {.complete = after->complete,
            .changed = !before || before->winner().config != after->winner().config};
  }

  std::shared_ptr<const ChoiceCall> ready(Span problem, Span) override {
    prepare(Values(problem.begin(), problem.end()));
    return std::make_shared<TemplateCall>(handle_, problem);
  }

 private:
  void prepare(const Values& problem) {
    if (const auto missing = handle_.prepare(problem)) throw MissingError(*missing);
  }

  const DeviceInfo& device_;
  RecordBook& records_;
  const DynamicTuned handle_;
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
