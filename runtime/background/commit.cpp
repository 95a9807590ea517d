#include <algorithm>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kiln/communicator.hpp"
#include "runtime/background/background_tuning.hpp"
#include "runtime/background/ballot.hpp"
#include "runtime/background/commit_loader.hpp"
#include "runtime/background/joint_commit.hpp"
#include "runtime/serve/engine.hpp"

namespace kiln::runtime {

using Change = CommitReport::Change;

namespace {

/// Publishes all that was found; with `share`, on all handles of its kernel that have launched its
/// problem.
CommitReport commit_alone(detail::Engine& engine, const std::vector<Proposal>& found, bool share,
                          std::uint64_t generation, const PublishOne& publish) {
  CommitReport report;
  Definitions definitions;
  CommitLoader loader(engine, definitions, found);
  for (const Proposal& one : found) {
    const auto handle = one.handle.lock();
    if (!handle) continue;
    const KernelChange kernel_change = loader.kernel_change_of(one, *handle);
    auto loaded = loader.load(kernel_change.change, {&handle, 1}, true);
    if (!loaded) {
      ++report.dropped;
      continue;
    }
    // Other handles of the kernel get it, too, unless they have found something themselves or their
    // rules forbid it.
    for (const auto& other : share ? loader.handles_of(kernel_change) : Handles()) {
      if (loader.has_proposal(*other, one.launchable.problem)) continue;
      if (auto more = loader.load(kernel_change.change, {&other, 1}, true))
        std::move(more->begin(), more->end(), std::back_inserter(*loaded));
    }
    bool published = false;
    for (Proposal& ready : *loaded) published = publish(ready) || published;
    if (published) report.changes.push_back(kernel_change.change);
  }
  std::ranges::sort(report.changes, {}, [](const Change& c) {
    return std::tie(c.kernel, c.types, c.problem, c.config);
  });
  report.changes.erase(std::unique(report.changes.begin(), report.changes.end()),
                       report.changes.end());
  report.generation = generation + (report.changes.empty() ? 0 : 1);
  report.digest = digest_of(report);
  return report;
}

}  // namespace

CommitReport BackgroundTuning::commit(const CommitOptions& options) {
  const std::unique_lock alone(committing_);
  const bool ranks = engine_.options().tuning.ranks != nullptr;
  std::vector<Proposal> found;
  std::vector<Unfound> unfound;
  Definitions definitions;
  bool has_loader = false;
  {
    const std::lock_guard lock(jobs_->mutex);
    if (ranks) {
      std::set<std::pair<const void*, Values>> own;
      for (const Proposal& its : jobs_->found) own.emplace(its.place, its.launchable.problem);
      for (const auto& [place, one] : jobs_->unsettled)
        if (!own.contains(place)) unfound.push_back({one.handle, place.second, one.given_up});
    }
    found.swap(jobs_->found);
    if (std::string why_not; ranks && !options.wait) has_loader = has_thread(why_not);
  }
  const PublishOne publish_one = [this](Proposal& one) {
    const auto handle = one.handle.lock();
    return handle && publish(handle, std::move(one.launchable), one.seen);
  };
  Committed committed;
  try {
    if (ranks)
      committed = commit_with_ranks(engine_,
                                    {found, unfound, definitions, jobs_->pending.all(), generation_,
                                     options.wait, has_loader},
                                    publish_one);
    else
      committed.report = commit_alone(engine_, found, options.wait, generation_, publish_one);
  } catch (...) {
    const std::lock_guard lock(jobs_->mutex);
    for (Proposal& one : found)
      if (jobs_->unsettled.contains({one.place, one.launchable.problem}))
        jobs_->found.push_back(std::move(one));
    throw;
  }
  // This comes first, whatever fails from here on: the other ranks go on from it.
  if (!committed.report.changes.empty()) ++generation_;
  all_settled_ = committed.settled;
  if (ranks) {
    jobs_->pending.replace(committed.pending);
    if (jobs_->pending.any_waiting()) {
      const std::lock_guard lock(jobs_->mutex);
      if (std::string why_not; has_thread(why_not)) times_->interrupt();
    }
    times_->notify();
  }
  settle(found, unfound, committed.pending, definitions);
  settle_given_up(alone);
  return std::move(committed.report);
}

/// After a commit: of what it has decided, but not published, what is in use stays.
void BackgroundTuning::settle(const std::vector<Proposal>& found,
                              const std::vector<Unfound>& unfound,
                              const std::vector<PendingChange>& pending, Definitions& definitions) {
  const CommitLoader loader(engine_, definitions, {});
  const Places pending_places = places_of(pending);
  const auto keep = [this](const std::shared_ptr<ServedHandle>& handle, const Values& problem) {
    if (unsettled(handle.get(), problem)) keep_in_use(handle, problem);
  };
  for (const Proposal& one : found)
    if (const auto handle = one.handle.lock();
        handle && !pending_places.contains(loader.place(*handle, one.launchable.problem)))
      keep(handle, one.launchable.problem);
  for (const Unfound& one : unfound) {
    const auto handle = one.handle.lock();
    if (!handle) continue;
    if (one.pending) stop_looking(handle.get(), one.problem);
    // A launch may just be putting it in use.
    if (one.settled && handle->find(one.problem)) keep(handle, one.problem);
  }
}

/// What was found for the problem elsewhere is to be put in use.
void BackgroundTuning::stop_looking(const void* handle, const Values& problem) {
  const std::lock_guard lock(jobs_->mutex);
  std::erase_if(jobs_->waiting,
                [&](const Job& job) { return job.problem == problem && job.place == handle; });
  jobs_->count = jobs_->waiting.size();
}

/// A handle is held only for a moment at a time: with the last one the engine goes, and its end
/// must be that of the runtime, which waits for this thread.
bool BackgroundTuning::load_pending(Jobs& jobs, const MeasuringTimes& times,
                                    Definitions& definitions) noexcept {
  struct Place {
    std::weak_ptr<ServedHandle> handle;
    std::shared_ptr<const KernelDefinition> kernel;
  };
  const std::shared_ptr<Device> device = engine_.device();  // outlives what is loaded
  Handles held;                                             // outlives all uses of this object
  const auto let_go = [&] {
    held.clear();
    return !times.ended();
  };
  std::optional<PendingChange> taken;
  try {
    taken = jobs.pending.take();
    if (!taken) return false;
    const KernelChange& kernel_change = taken->kernel_change;
    CommitLoader loader(engine_, definitions, taken->loaded);
    std::vector<Place> places;
    held = handles_named(engine_, kernel_change.change);
    for (const auto& handle : held)
      if (!loader.is_at_hand(kernel_change.change, {&handle, 1}))
        places.push_back({handle, handle->kept_definition()});
    if (!let_go()) return true;
    std::optional loaded(taken->loaded);
    for (const auto& [place, kernel] : places) {
      if (definitions.of(engine_.records(), kernel) != kernel_change.definition) continue;
      if (const auto values = values_of(kernel_change.change, *kernel))
        engine_.builder().build(*kernel, values->config, engine_.device()->info().target);
      if (auto handle = place.lock()) held.push_back(std::move(handle));
      if (times.ended()) return true;
      if (!held.empty()) {
        auto its = loader.load(kernel_change.change, held, false);
        if (!its) {
          loaded.reset();
          break;
        }
        std::ranges::move(*its, std::back_inserter(*loaded));
      }
      if (!let_go()) return true;
    }
    jobs.pending.loaded(kernel_change, std::move(loaded));
    return true;
  } catch (const std::exception& error) {
    count_error();
    try {
      say(LogLevel::warning,
          std::string("a config that was found cannot be loaded: ") + error.what());
    } catch (...) {  // no memory
    }
  } catch (...) {
    count_error();
  }
  if (taken) jobs.pending.loaded(taken->kernel_change, std::nullopt);
  return taken.has_value();
}

}  // namespace kiln::runtime
