#include "runtime/serve/captures.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/detail/tunable.hpp"
#include "runtime/device/resource_check.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;

/// A launch that was captured before its problem was ready.
struct Captures::StandIn {
  std::weak_ptr<detail::RegionHandle> handle;
  const Launchable* captured;  ///< valid as long as the handle
  Launch launch;
  Values bucket, problem;
  void* node;  ///< null: the driver did not name it
};

/// Owned by the graph: its end may come on any thread, and later than the runtime's.
struct Captures::Captured {
  std::mutex mutex;
  Pins pins;
  std::vector<StandIn> stand_ins;
};

namespace {

void add(Pins& pins, std::shared_ptr<const void> pin) {
  if (std::find(pins.begin(), pins.end(), pin) == pins.end()) pins.push_back(std::move(pin));
}

std::string describe(const detail::Tunable& what, const Values& problem, const Values& config) {
  return format("{} {} with {}", what.name(), what.describe_problem(problem),
                what.space().describe(config));
}

/// Why a captured launch cannot become another one by other parameters of its node; empty: it can.
std::string obstacle(const Launchable& captured, const Launch& then, const Launchable& now,
                     const Launch& launch, const DeviceLimits& limits) {
  if (captured.loader || now.loader)
    return "the config in use has tensor maps, a workspace or steps, or the captured one has";
  if (empty(launch)) return "the config in use launches nothing for this problem";
  if (then.cluster != launch.cluster || then.cooperative != launch.cooperative ||
      then.programmatic != launch.programmatic)
    return "the config in use is launched with other attributes (cluster, cooperative, "
           "programmatic)";
  return launch_problem(launch, limits);
}

}  // namespace

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
  std::erase_if(known_, [](const Known& known) { return known.captured.expired(); });
  for (const Known& known : known_)
    if (known.graph == capture.graph && known.id == capture.id)
      if (auto captured = known.captured.lock()) return captured;
  auto captured = std::make_shared<Captured>();
  known_.push_back({capture.graph, capture.id, captured});
  device_->graphs()->retain(capture.graph, captured);
  return captured;
}

std::vector<std::shared_ptr<Captures::Captured>> Captures::of(const void* graph) {
  std::vector<std::shared_ptr<Captured>> found;
  const std::lock_guard lock(mutex_);
  for (const Known& known : known_)
    if (known.graph == graph)
      if (auto captured = known.captured.lock()) found.push_back(std::move(captured));
  return found;
}

void Captures::launch_stand_in(const std::weak_ptr<detail::RegionHandle>& handle,
                               const Launchable& stand_in, const Launch& launch,
                               std::span<const std::int64_t> problem, Stream stream, void** args) {
  const auto capture = device_->graphs()->capture(stream);
  if (!capture)
    throw counted("the capture of the stream has ended or failed while a launch was prepared");
  const std::shared_ptr<Captured> captured = of(*capture);
  StandIn recorded{handle, &stand_in, launch, stand_in.problem, {problem.begin(), problem.end()},
                   {}};
  {
    // Nothing can fail after the launch.
    const std::lock_guard lock(captured->mutex);
    runtime::add(captured->pins, stand_in.owner);
    captured->stand_ins.reserve(captured->stand_ins.size() + 1);
  }
  stand_in.start(stand_in, launch, problem, stream, args);
  provisional_.fetch_add(1, std::memory_order_relaxed);
  if (const auto after = device_->graphs()->capture(stream)) recorded.node = after->last_node;
  const std::lock_guard lock(captured->mutex);
  captured->stand_ins.push_back(std::move(recorded));
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
  for (auto& pin : pins) runtime::add(captured->pins, std::move(pin));
}

RefreshResult Captures::refresh(const InstantiatedGraph& graph) {
  if (!graph.graph || !graph.exec)
    throw UserError(format("Runtime::refresh: `{}` is null", graph.graph ? "exec" : "graph"));
  RefreshResult result;
  for (const auto& captured : of(graph.graph)) {
    const std::lock_guard lock(captured->mutex);
    std::vector<NodeChange> changes;
    std::vector<std::string> launches;  // of the changes
    for (const StandIn& stand_in : captured->stand_ins) {
      const auto handle = stand_in.handle.lock();
      if (!handle) {
        result.kept.push_back(
            {stand_in.node, "", "its handle is gone, and with it what is in use"});
        continue;
      }
      const detail::Tunable what = handle->what();
      std::string launched = describe(what, stand_in.problem, stand_in.captured->config);
      const Launchable* const now = handle->find(stand_in.bucket);
      const auto keep = [&](std::string why) {
        result.kept.push_back({stand_in.node, std::move(launched), std::move(why)});
      };
      if (!now || now->provisional) {
        keep("nothing tuned is in use for its problem yet");
        continue;
      }
      const DeviceLimits& limits = device_->info().limits;
      const Launch launch = what.launch(now->config, stand_in.problem, limits).value_or(Launch{});
      if (std::string why = obstacle(*stand_in.captured, stand_in.launch, *now, launch, limits);
          !why.empty()) {
        keep(std::move(why));
      } else if (!stand_in.node) {
        keep("the driver did not name its node");
      } else {
        runtime::add(captured->pins, now->owner);
        changes.push_back({stand_in.node, static_cast<const Module*>(stand_in.captured->loaded),
                           static_cast<const Module*>(now->loaded), launch});
        launches.push_back(std::move(launched));
      }
    }
    if (changes.empty()) continue;
    const std::vector<std::string> refused = device_->graphs()->change(graph, changes);
    for (std::size_t i = 0; i < refused.size(); ++i)
      if (refused[i].empty())
        ++result.refreshed;
      else
        result.kept.push_back({changes[i].node, launches[i], refused[i]});
  }
  return result;
}

}  // namespace kiln::runtime
