#include "runtime/background/commit_loader.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <variant>

#include "codegen/instance.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/support/foreign_exception.hpp"
#include "runtime/support/spans.hpp"

namespace kiln::runtime {

using detail::format;
using Change = CommitReport::Change;

namespace {

/// Values by name in the order of the fields; nothing where the names differ.
std::optional<Values> in_order(const std::map<std::string, std::int64_t>& named,
                               std::span<const std::string> names) {
  if (named.size() != names.size()) return {};
  Values values;
  for (const std::string& name : names) {
    const auto found = named.find(name);
    if (found == named.end()) return {};
    values.push_back(found->second);
  }
  return values;
}

std::vector<std::string> parameters_of(const KernelDefinition& kernel) {
  std::vector<std::string> parameters;
  for (const Parameter& p : kernel.space.parameters()) parameters.push_back(p.name);
  return parameters;
}

}  // namespace

Handles handles_named(const detail::Engine& engine, const Change& change) {
  Handles handles = engine.serving().handles();
  std::erase_if(handles, [&](const auto& handle) {
    const KernelDefinition& kernel = handle->definition();
    return handle->fixed() || kernel.name != change.kernel || kernel.types != change.types;
  });
  return handles;
}

const std::string& Definitions::of(RecordBook& records,
                                   const std::shared_ptr<const KernelDefinition>& kernel) {
  auto known = known_.find(kernel);
  if (known == known_.end())
    known = known_.emplace(kernel, to_hex(records.definition(*kernel))).first;
  return known->second;
}

std::optional<ChangeValues> values_of(const Change& change, const KernelDefinition& kernel) {
  auto problem = in_order(change.problem, kernel.problem_fields);
  auto config = in_order(change.config, parameters_of(kernel));
  if (!problem || !config) return {};
  return ChangeValues{*std::move(problem), *std::move(config)};
}

CommitLoader::CommitLoader(detail::Engine& engine, Definitions& definitions,
                           std::span<const Proposal> found, std::span<const Proposal> loaded)
    : engine_(engine), definitions_(definitions), found_(found) {
  for (const auto& proposals : {found, loaded})
    for (const Proposal& own : proposals)
      proposals_.emplace(std::pair(own.place, own.launchable.problem), &own);
}

Handles CommitLoader::handles_of(const KernelChange& kernel_change) const {
  Handles handles = handles_named(engine_, kernel_change.change);
  std::erase_if(handles, [&](const auto& handle) {
    return definitions_.of(engine_.records(), handle->kept_definition()) !=
           kernel_change.definition;
  });
  return handles;
}

KernelChange CommitLoader::place(const ServedHandle& handle, const Values& problem) const {
  const KernelDefinition& kernel = handle.definition();
  return {{kernel.name, kernel.types, detail::Tunable(kernel).named_problem(problem), {}},
          definitions_.of(engine_.records(), handle.kept_definition())};
}

std::vector<Entry> CommitLoader::entries() const {
  std::vector<Entry> own;
  for (const Proposal& found : found_)
    if (const auto handle = found.handle.lock()) {
      own.push_back(entry_of(*handle, found.launchable.problem));
      own.back().found = kernel_change_of(found, *handle).change.config;
    }
  return own;
}

Entry CommitLoader::entry_of(const ServedHandle& handle, const Values& problem) const {
  Entry entry{.place = place(handle, problem)};
  if (const detail::Ready ready = handle.find(problem))
    entry.in_use = detail::Tunable(handle.definition()).named_config(ready->config);
  return entry;
}

KernelChange CommitLoader::kernel_change_of(const Proposal& found,
                                            const ServedHandle& handle) const {
  KernelChange change = place(handle, found.launchable.problem);
  change.change.config = detail::Tunable(handle.definition()).named_config(found.launchable.config);
  return change;
}

std::shared_future<void> CommitLoader::build(
    const KernelChange& chosen, std::span<const std::shared_ptr<ServedHandle>> handles) {
  const auto lacking = std::ranges::find_if(
      handles, [&](const auto& handle) { return !is_at_hand(chosen.change, *handle); });
  if (lacking == handles.end()) return {};
  std::shared_future<void>& build = builds_[{chosen.definition, chosen.change.config}];
  if (build.valid()) return build;
  const KernelDefinition& kernel = (*lacking)->definition();
  const Values config = values_of(chosen.change, kernel)->config;
  // Neither the handle nor the program's functions are needed any more when it runs.
  const auto work = [&builder = engine_.builder(), target = engine_.device()->info().target, config,
                     part_of = SpanScope::here(),
                     kernel = std::make_shared<const KernelDefinition>(
                         codegen::definition_of_one(kernel, config))] {
    const SpanParent parent(part_of);
    builder.build(*kernel, config, target);
  };
  try {
    const auto task = std::make_shared<std::packaged_task<void()>>(work);
    Builder& builder = engine_.builder();
    builder.crew().submit(builder.builds_at_once(), [task](unsigned) { (*task)(); });
    build = task->get_future().share();
  } catch (const std::system_error&) {  // no thread: it is compiled by the one that waits for it
    build = std::async(std::launch::deferred, work).share();
  }
  return build;
}

std::optional<std::vector<Proposal>> CommitLoader::load(
    const Change& change, std::span<const std::shared_ptr<ServedHandle>> handles, bool provisional,
    const std::shared_future<void>& build) try {
  if (build.valid()) build.get();
  std::vector<Proposal> loaded;
  for (const auto& handle : handles) {
    const auto values = values_of(change, handle->definition());
    if (!values) return std::nullopt;
    const auto& [problem, config] = *values;
    if (handle->definition().space.violated(config, problem, handle->limits())) return std::nullopt;
    const detail::Ready seen = handle->find(problem);
    if (!seen || (provisional && !seen->provisional)) continue;
    loaded.push_back({handle, handle.get(), launchable(*handle, problem, config), seen});
  }
  return loaded;
} catch (const std::exception& error) {
  warn(change, error.what());
  return std::nullopt;
} catch (...) {
  warn(change, kForeignException);
  return std::nullopt;
}

/// A log is the program's, and its exceptions must not end a commit that other ranks are in.
void CommitLoader::warn(const Change& change, const char* why) noexcept try {
  engine_.log(LogLevel::warning,
              format("{}: a config that was found cannot be loaded: {}", change.kernel, why));
} catch (...) {
  ++engine_.workshop().telemetry().counters.background_errors;
}

std::vector<Proposal> CommitLoader::at_hand(
    const Change& change, std::span<const std::shared_ptr<ServedHandle>> handles) const {
  std::vector<Proposal> own;
  for (const auto& handle : handles)
    if (const auto values = values_of(change, handle->definition()))
      if (const auto* const launchable = at_hand(*handle, values->problem, values->config))
        own.push_back({handle, handle.get(), *launchable});
  return own;
}

bool CommitLoader::is_at_hand(const Change& change,
                              std::span<const std::shared_ptr<ServedHandle>> handles) const {
  return std::ranges::all_of(handles,
                             [&](const auto& handle) { return is_at_hand(change, *handle); });
}

bool CommitLoader::is_at_hand(const Change& change, const ServedHandle& handle) const {
  const auto values = values_of(change, handle.definition());
  return !values || !handle.find(values->problem) ||
         at_hand(handle, values->problem, values->config);
}

const detail::Launchable* CommitLoader::at_hand(const ServedHandle& handle, const Values& problem,
                                                const Values& config) const {
  const auto [begin, end] = proposals_.equal_range({&handle, problem});
  const auto own = std::find_if(begin, end, [&](const auto& one) {
    return !one.second->handle.expired() && one.second->launchable.config == config;
  });
  return own == end ? nullptr : &own->second->launchable;
}

detail::Launchable CommitLoader::launchable(ServedHandle& handle, const Values& problem,
                                            const Values& config) {
  if (const detail::Launchable* const own = at_hand(handle, problem, config)) return *own;
  Problems::Loaded made = handle.load_config(problem, config, nullptr);
  if (const auto* missing = std::get_if<Missing>(&made)) throw MissingError(*missing);
  return std::get<detail::Launchable>(std::move(made));
}

}  // namespace kiln::runtime
