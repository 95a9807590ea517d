#include "runtime/serve/captures.hpp"

#include <optional>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/device/resource_check.hpp"
#include "runtime/serve/node_arguments.hpp"
#include "runtime/serve/provisional.hpp"
#include "runtime/support/foreign_exception.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;

/// A launch that refresh() may exchange.
struct Captures::CapturedLaunch {
  std::weak_ptr<detail::TunableHandle> handle;
  std::string described;  ///< kernel, problem and config: the handle may be gone when it is asked
  Launchable launched;
  Launch launch;
  Values bucket, problem;
  MappedPointers mapped;
  StreamOrder order;
  void* node = nullptr;  ///< null: the driver did not name it
  bool exchanged = false;
};

/// What a node is to launch instead, or why it cannot.
struct Captures::Exchange {
  std::string obstacle;
  Launch launch;
  NodeArguments arguments;
};

/// Owned by the graph: its end may come on any thread, and later than the runtime's.
struct Captures::Captured {
  std::mutex mutex;
  std::set<std::shared_ptr<const void>> pins;
  std::vector<CapturedLaunch> launches;
  std::atomic<std::size_t> provisional{0};  ///< of these; changed under the mutex
};

namespace {

std::string describe(const detail::Tunable& what, const Values& problem, const Values& config) {
  return format("{} {} with {}", what.name(), what.describe_problem(problem),
                what.space().describe(config));
}

/// Why new parameters of its node cannot turn a captured launch into another one; empty: they can.
std::string obstacle(const Launchable& captured, const Launch& then, const Launchable& now,
                     const Launch& launch, const DeviceLimits& limits) {
  if (std::string why = node_obstacle(captured, now); !why.empty()) return why;
  if (empty(launch)) return "the config in use launches nothing for this problem";
  if (then.cluster != launch.cluster || then.cooperative != launch.cooperative ||
      then.programmatic != launch.programmatic)
    return "the config in use is launched with other attributes (cluster, cooperative, "
           "programmatic)";
  return loaded_obstacle(static_cast<const Module*>(now.loaded)->resources(), launch, limits);
}

}  // namespace

Captures::Exchange Captures::exchange_of(const CapturedLaunch& then, const detail::Tunable& what,
                                         const Launchable& now) const {
  const DeviceLimits& limits = device_->info().limits;
  Exchange made;
  made.launch = what.launch(now.config, then.problem, limits).value_or(Launch{});
  made.obstacle = obstacle(then.launched, then.launch, now, made.launch, limits);
  if (made.obstacle.empty() && !then.node) made.obstacle = "the driver did not name its node";
  if (made.obstacle.empty())
    made.arguments = node_arguments(then.launched, now, then.problem, then.mapped, then.order);
  return made;
}

void Captures::add(const PinSource& source) {
  const std::lock_guard lock(sources_mutex_);
  sources_.insert(&source);
}

void Captures::remove(const PinSource& source) noexcept {
  const std::lock_guard lock(sources_mutex_);
  sources_.erase(&source);
}

CaptureError Captures::counted(const std::string& what) {
  errors_.fetch_add(1, std::memory_order_relaxed);
  return CaptureError(what);
}

bool Captures::records(Stream stream) const {
  Graphs* const graphs = device_->graphs();
  return graphs && graphs->capture(stream);
}

std::shared_ptr<Captures::Captured> Captures::of(const OngoingCapture& capture) {
  const std::lock_guard lock(mutex_);
  std::erase_if(graphs_, [](const auto& graph) { return graph.second.captured.expired(); });
  Graph& graph = graphs_[capture.graph];
  if (graph.id == capture.id)
    if (auto captured = graph.captured.lock()) return captured;
  auto captured = std::make_shared<Captured>();
  graph = {capture.id, captured};
  device_->graphs()->retain(capture.graph, captured);
  return captured;
}

std::shared_ptr<Captures::Captured> Captures::of(void* graph) {
  const std::lock_guard lock(mutex_);
  const auto found = graphs_.find(graph);
  return found == graphs_.end() ? nullptr : found->second.captured.lock();
}

void Captures::launch_refreshable(const std::weak_ptr<detail::TunableHandle>& handle,
                                  const Launchable& launchable, const Values& bucket,
                                  const Launch& launch, std::span<const std::int64_t> problem,
                                  Stream stream, void** args) {
  const auto capture = device_->graphs()->capture(stream);
  if (!capture)
    throw counted("the capture of the stream has ended or failed while a launch was prepared");
  const std::shared_ptr<Captured> captured = of(*capture);
  std::string described;
  if (const auto core = handle.lock())
    described = describe(core->what(), {problem.begin(), problem.end()}, launchable.config);
  CapturedLaunch recorded{handle,
                          described,
                          launchable,
                          launch,
                          bucket,
                          {problem.begin(), problem.end()},
                          mapped_pointers(launchable, args),
                          device_->order(stream)};
  {
    const std::lock_guard lock(captured->mutex);
    captured->pins.insert(launchable.owner);
  }
  launchable.start(launchable, launch, problem, stream, args);
  refreshable_.fetch_add(1, std::memory_order_relaxed);
  try {
    if (const auto after = device_->graphs()->capture(stream)) recorded.node = after->last_node;
  } catch (const EnvironmentError&) {
    // It is launched, only not named.
  }
  const std::lock_guard lock(captured->mutex);
  captured->launches.push_back(std::move(recorded));
  ++captured->provisional;
}

std::size_t Captures::provisional_nodes() const {
  std::vector<std::shared_ptr<Captured>> all;  // the last owner of one may let go of its pins
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [_, graph] : graphs_)
    if (const auto& captured = all.emplace_back(graph.captured.lock()))
      count += captured->provisional;
  return count;
}

void Captures::retain(Stream stream) {
  Graphs* const graphs = device_->graphs();
  const auto capture = graphs ? graphs->capture(stream) : std::nullopt;
  if (!capture)
    throw UserError(
        "Runtime::retain: the stream is not being captured; call it before the capture ends");
  Pins pins;
  {
    const std::lock_guard lock(sources_mutex_);
    for (const PinSource* source : sources_) source->add_to(pins);
  }
  const std::shared_ptr<Captured> captured = of(*capture);
  const std::lock_guard lock(captured->mutex);
  captured->pins.insert(pins.begin(), pins.end());
}

RefreshResult Captures::refresh(const InstantiatedGraph& graph) {
  if (!graph.graph || !graph.exec)
    throw UserError(format("Runtime::refresh: `{}` is null", graph.graph ? "exec" : "graph"));
  RefreshResult result;
  const std::shared_ptr<Captured> captured = of(graph.graph);
  if (!captured) return result;
  const std::lock_guard lock(captured->mutex);
  std::vector<NodeChange> changes;
  std::vector<std::string> descriptions;  // of the changes
  std::vector<CapturedLaunch*> changed;   // by these
  for (CapturedLaunch& then : captured->launches) {
    const auto keep = [&](std::string launch, std::string why) {
      result.kept.push_back({then.node, std::move(launch), std::move(why)});
    };
    const auto handle = then.handle.lock();
    if (!handle) {
      keep(then.described, "its handle is gone, and with it what is in use");
      continue;
    }
    const detail::Tunable what = handle->what();
    std::string launched = describe(what, then.problem, then.launched.config);
    const detail::Ready now = handle->find(then.bucket);
    if (!now || now->provisional) {
      keep(std::move(launched), "nothing final is in use for its problem yet");
      continue;
    }
    try {
      Exchange exchange = exchange_of(then, what, *now);
      if (!exchange.obstacle.empty()) {
        keep(std::move(launched), std::move(exchange.obstacle));
        continue;
      }
      captured->pins.insert(now->owner);
      if (auto& owner = exchange.arguments.workspace_owner) captured->pins.insert(std::move(owner));
      changes.push_back({then.node, static_cast<const Module*>(then.launched.loaded),
                         static_cast<const Module*>(now->loaded), exchange.launch,
                         std::move(exchange.arguments.arguments)});
      descriptions.push_back(std::move(launched));
      changed.push_back(&then);
    } catch (const DeviceLost&) {
      throw;
    } catch (const std::exception& error) {  // of the kernel's functions, for this problem
      keep(std::move(launched), error.what());
    } catch (...) {
      keep(std::move(launched), kForeignException);
    }
  }
  if (changes.empty()) return result;
  const std::vector<std::string> refused = device_->graphs()->change(graph, changes);
  for (std::size_t i = 0; i < refused.size(); ++i)
    if (refused[i].empty()) {
      ++result.refreshed;
      if (!std::exchange(changed[i]->exchanged, true)) --captured->provisional;
    } else {
      result.kept.push_back({changes[i].node, descriptions[i], refused[i]});
    }
  return result;
}

void CapturedStandIns::start_noted(const Launchable& ready, const Launch& launch,
                                   std::span<const std::int64_t> problem, Stream stream,
                                   void** args) {
  const auto& self = static_cast<const Noted&>(ready);
  self.captures->launch_refreshable(self.handle, *self.stand_in, self.Launchable::problem, launch,
                                    problem, stream, args);
}

detail::Ready CapturedStandIns::of(const detail::Ready& stand_in,
                                   std::span<const std::int64_t> bucket,
                                   std::weak_ptr<detail::TunableHandle> handle) {
  if (!stand_in->loaded) return stand_in;  // it launches nothing: mode collect
  // A provisional one would note the launch a second time, for the problem that it was loaded for.
  const detail::Ready launched = unwrapped(stand_in);
  auto noted = std::make_shared<Noted>(Noted{*launched, launched, &captures_, std::move(handle)});
  noted->problem.assign(bucket.begin(), bucket.end());
  noted->start = start_noted;
  return noted;
}

}  // namespace kiln::runtime
