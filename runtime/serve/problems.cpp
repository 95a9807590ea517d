#include "runtime/serve/problems.hpp"

#include <utility>

#include "kiln/detail/format.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;

namespace {

Values values_of(std::span<const std::int64_t> problem) { return {problem.begin(), problem.end()}; }

}  // namespace

Problems::Outcome Problems::make(std::span<const std::int64_t> problem, const Work& work, If when) {
  const Values key = values_of(problem);
  return makers_.run(key, [&] { return work_alone(key, work, when); });
}

std::optional<Problems::Outcome> Problems::try_make(std::span<const std::int64_t> problem,
                                                    const Work& work, If when) {
  const Values key = values_of(problem);
  return makers_.try_run(key, [&] { return work_alone(key, work, when); });
}

Problems::Outcome Problems::work_alone(const Values& problem, const Work& work, If when) {
  {
    std::lock_guard lock(mutex_);
    if (const Launchable* ready = table_.find(problem); ready && when == If::not_in_use)
      return ready;
    advance(problem, ProblemEvent::begin);
  }
  Made made;
  try {
    made = work();
  } catch (...) {
    std::lock_guard lock(mutex_);
    advance(problem, ProblemEvent::fail);
    throw;
  }
  return end(problem, std::move(made));
}

Problems::Outcome Problems::end(const Values& problem, Made made) {
  std::lock_guard lock(mutex_);
  if (auto* launchable = std::get_if<Launchable>(&made)) {
    advance(problem, ProblemEvent::publish);
    // The making knew nothing yet of what was chosen meanwhile.
    return lives_.at(problem).chosen ? table_.find(problem) : &put_in_use(*launchable);
  }
  auto* missing = std::get_if<Missing>(&made);
  advance(problem, missing ? ProblemEvent::miss : ProblemEvent::give_up);
  // One may have been chosen meanwhile.
  if (const Launchable* ready = table_.find(problem)) return ready;
  if (!missing) return GaveUp{};
  return *(lives_.at(problem).missing = std::move(*missing));
}

Problems::StandIn Problems::stand_in(std::span<const std::int64_t> problem, Standing standing,
                                     const Load& load) {
  if (const Launchable* ready = table_.find(problem, standing)) return ready;
  const Values key = values_of(problem);
  return loaders_.run({standing, key}, [&]() -> StandIn {
    if (const Launchable* ready = table_.find(key, standing)) return ready;
    // Destroyed without the lock, where it is not needed any more: that unloads a module.
    Loaded loaded = load();
    if (auto* missing = std::get_if<Missing>(&loaded)) return std::move(*missing);
    std::lock_guard lock(mutex_);
    advance(key, ProblemEvent::stand_in);
    if (const Launchable* ready = table_.find(key, standing)) return ready;
    return &table_.publish(std::get<Launchable>(std::move(loaded)), standing);
  });
}

const Launchable& Problems::choose(Launchable chosen) {
  std::lock_guard lock(mutex_);
  advance(chosen.problem, ProblemEvent::choose);
  return put_in_use(chosen);
}

const Launchable& Problems::put_in_use(Launchable& made) {
  const Launchable* ready = table_.find(made.problem);
  if (ready && ready->config == made.config && ready->provisional == made.provisional)
    return *ready;
  return table_.publish(std::move(made));
}

Problems::Life& Problems::life_of(const Values& problem) {
  const auto [life, is_new] = lives_.try_emplace(problem);
  if (is_new && count_) ++*count_;
  return life->second;
}

void Problems::advance(const Values& problem, ProblemEvent event) {
  Life& life = life_of(problem);
  const std::optional<ProblemState> after = next(life.state, event);
  if (!after)
    throw InternalError(format("event '{}' cannot happen to a problem that is '{}'",
                               to_string(event), to_string(life.state)));
  life.state = *after;
  if (event == ProblemEvent::begin || event == ProblemEvent::choose) {
    life.missing.reset();
    life.chosen = event == ProblemEvent::choose;
  }
}

ProblemState Problems::state(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  const auto found = lives_.find(values_of(problem));
  return found == lives_.end() ? ProblemState::unknown : found->second.state;
}

std::optional<Missing> Problems::missing(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  const auto found = lives_.find(values_of(problem));
  return found == lives_.end() ? std::nullopt : found->second.missing;
}

std::optional<Values> Problems::agreed(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  const auto found = lives_.find(values_of(problem));
  return found == lives_.end() ? std::nullopt : found->second.agreed;
}

void Problems::agree(std::span<const std::int64_t> problem, const Values& config) {
  std::lock_guard lock(mutex_);
  life_of(values_of(problem)).agreed = config;
}

std::optional<TuningFailedError> Problems::failure(const Digest& request) const {
  std::lock_guard lock(mutex_);
  const auto found = failures_.find(request);
  return found == failures_.end() ? std::nullopt : std::optional(found->second);
}

void Problems::remember_failure(const Digest& request, const TuningFailedError& error) {
  std::lock_guard lock(mutex_);
  failures_.insert_or_assign(request, error);
}

}  // namespace kiln::runtime
