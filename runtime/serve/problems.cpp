#include "runtime/serve/problems.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "kiln/detail/format.hpp"
#include "runtime/serve/problems_sweep.hpp"

namespace kiln::runtime {

using detail::format;
using detail::Launchable;
using detail::Ready;

namespace {

Values values_of(std::span<const std::int64_t> problem) { return {problem.begin(), problem.end()}; }

bool is_being_made(ProblemState state) {
  return state == ProblemState::being_made || state == ProblemState::being_made_on_stand_in ||
         state == ProblemState::being_remade;
}

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
    if (Ready ready = table_.find(problem); ready && when == If::not_in_use) return ready;
    advance(problem, ProblemEvent::begin);
  }
  Made made;
  try {
    made = work();
  } catch (...) {
    const Sweep sweep(*this);
    std::lock_guard lock(mutex_);
    advance(problem, ProblemEvent::fail);
    keep_to_bound(problem);
    // One may have been chosen meanwhile.
    if (Ready ready = table_.find(problem); ready && when == If::not_in_use) return ready;
    throw;
  }
  return end(problem, std::move(made));
}

Problems::Outcome Problems::end(const Values& problem, Made made) {
  Sweep sweep(*this, std::holds_alternative<Launchable>(made));
  std::lock_guard lock(mutex_);
  if (auto* launchable = std::get_if<Launchable>(&made)) {
    advance(problem, ProblemEvent::publish);
    // The making knew nothing yet of what was chosen meanwhile.
    Ready ready = lives_.at(problem).chosen ? table_.find(problem) : put_in_use(*launchable, sweep);
    keep_to_bound(problem);
    return ready;
  }
  auto* missing = std::get_if<Missing>(&made);
  advance(problem, missing ? ProblemEvent::miss : ProblemEvent::leave_unmade);
  // One may have been chosen meanwhile.
  if (Ready ready = table_.find(problem)) return ready;
  if (!missing) return Unmade{};
  Missing lacking = *(lives_.at(problem).missing = std::move(*missing));
  keep_to_bound(problem);
  return lacking;
}

Problems::StandIn Problems::stand_in(std::span<const std::int64_t> problem, Standing standing,
                                     const Load& load) {
  if (Ready ready = table_.find(problem, standing)) return ready;
  const Values key = values_of(problem);
  return loaders_.run({standing, key}, [&]() -> StandIn {
    if (Ready ready = table_.find(key, standing)) return ready;
    // Destroyed without the lock, where it is not needed any more: that unloads a module.
    Loaded loaded = load();
    if (auto* missing = std::get_if<Missing>(&loaded)) return std::move(*missing);
    Sweep sweep(*this, true);
    std::lock_guard lock(mutex_);
    advance(key, ProblemEvent::stand_in);
    if (Ready ready = table_.find(key, standing)) return ready;
    Ready ready = publish(std::get<Launchable>(loaded), standing, sweep);
    keep_to_bound(key);
    return ready;
  });
}

Ready Problems::choose(Launchable chosen, bool built_anew) {
  Sweep sweep(*this, true);
  std::lock_guard lock(mutex_);
  const Ready before = table_.find(chosen.problem);
  Life& life = life_of(Values(chosen.problem.begin(), chosen.problem.end()));
  const bool kept = life.kept;
  advance(chosen.problem, ProblemEvent::choose);
  const Ready ready =
      built_anew ? publish(chosen, Standing::in_use, sweep) : put_in_use(chosen, sweep);
  if (ready == before) life.kept = kept;  // confirmed, not replaced
  keep_to_bound(ready->problem);
  return table_.find(ready->problem);  // which notes that it is used
}

bool Problems::choose_over(const Ready& seen, Launchable chosen) {
  Ready ready;  // outlives the sweep, in which it must not leave
  Sweep sweep(*this, true);
  std::lock_guard lock(mutex_);
  if (table_.find(chosen.problem) != seen) return false;
  advance(chosen.problem, ProblemEvent::choose);
  ready = put_in_use(chosen, sweep);
  keep_to_bound(ready->problem);
  return true;
}

void Problems::keep_choice(std::span<const std::int64_t> problem) {
  std::lock_guard lock(mutex_);
  if (const auto life = lives_.find(values_of(problem)); life != lives_.end())
    life->second.kept = true;
}

Ready Problems::kept_choice(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  const auto life = lives_.find(values_of(problem));
  return life != lives_.end() && life->second.kept ? table_.find(problem) : nullptr;
}

Ready Problems::put_in_use(Launchable& made, Sweep& sweep) {
  Ready ready = table_.find(made.problem);
  if (ready && ready->config == made.config && ready->provisional == made.provisional &&
      ready->untuned == made.untuned)
    return ready;
  return publish(made, Standing::in_use, sweep);
}

/// All that launches get comes from here.
Ready Problems::publish(Launchable& made, Standing standing, Sweep& sweep) {
  const Ready before = table_.find(made.problem, Standing::meanwhile);
  if (!before || before->config != made.config) {
    if (before && bound_.counters) bound_.counters->swaps.fetch_add(1, std::memory_order_relaxed);
    if (bound_.published) sweep.note(made, before.get());
  }
  return table_.publish(std::move(made), standing);
}

void Problems::reclaim() noexcept { const Sweep sweep(*this); }

Problems::Sweep::~Sweep() try {
  const ProblemBound& bound = problems_.bound_;
  std::shared_ptr<const void> freed = problems_.table_.reclaim();
  if (freed && bound.dispose) bound.dispose(std::move(freed));
  freed = {};  // before anybody is told
  if (published_)
    bound.published(published_->problem, published_->config,
                    published_->before ? &*published_->before : nullptr);
  if (publishes_ && bound.keep_all) bound.keep_all();
} catch (const std::bad_alloc&) {
  return;
}

void Problems::pin(std::span<const std::int64_t> problem) {
  std::lock_guard lock(mutex_);
  const auto [pinned, is_new] = pinned_.insert(values_of(problem));
  if (const auto found = lives_.find(*pinned); found != lives_.end()) found->second.pinned = true;
}

bool Problems::pinned(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  return pinned_.contains(values_of(problem));
}

Problems::Pin::Pin(Problems& problems, std::span<const std::int64_t> problem)
    : problems_(problems) {
  std::lock_guard lock(problems_.mutex_);
  pins_ = problems_.pins_.try_emplace(values_of(problem)).first;
  ++pins_->second;
}

Problems::Pin::~Pin() {
  std::lock_guard lock(problems_.mutex_);
  if (--pins_->second == 0) problems_.pins_.erase(pins_);
}

std::size_t Problems::evict(std::size_t most) {
  const Sweep sweep(*this);
  std::lock_guard lock(mutex_);
  return leave(unused(most, 1));
}

void Problems::keep_to_bound(const Values& newest) {
  if (bound_.most == 0 || lives_.size() <= std::max(bound_.most, sweep_at_)) return;
  // Several at a time, because the slots are written anew for them.
  const std::size_t several = bound_.most / 8;
  leave(unused(lives_.size() - (bound_.most - several), 2, &lives_.at(newest)));
  // Where most must stay they are not looked through again for each problem that comes.
  sweep_at_ = lives_.size() > bound_.most ? lives_.size() + several : 0;
}

std::vector<Values> Problems::unused(std::size_t most, std::size_t rounds, const Life* but) {
  std::vector<Values> found;
  for (std::size_t left = rounds * lives_.size(); left > 0 && found.size() < most; --left) {
    if (hand_ == lives_.end()) hand_ = lives_.begin();
    auto& [problem, life] = *hand_++;
    if (&life != but && !life.pinned && !life.kept && !life.leaving && !pins_.contains(problem) &&
        !is_being_made(life.state) && table_.use(problem) == ProblemTable::Use::none) {
      life.leaving = true;
      found.push_back(problem);
    }
  }
  for (const Values& problem : found) lives_.at(problem).leaving = false;
  if (bound_.release && !found.empty()) bound_.release(found);
  return found;
}

std::size_t Problems::leave(const std::vector<Values>& problems) {
  table_.remove(problems);
  for (const Values& problem : problems) {
    const auto life = lives_.find(problem);
    if (hand_ == life) ++hand_;
    lives_.erase(life);
  }
  if (count_) *count_ -= static_cast<std::int64_t>(problems.size());
  if (bound_.counters)
    bound_.counters->problems_evicted.fetch_add(problems.size(), std::memory_order_relaxed);
  return problems.size();
}

Problems::Life& Problems::life_of(const Values& problem) {
  const auto [life, is_new] = lives_.try_emplace(problem);
  if (is_new) life->second.pinned = pinned_.contains(problem);
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
    life.kept = false;
  }
}

ProblemState Problems::state(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  const auto found = lives_.find(values_of(problem));
  return found == lives_.end() ? ProblemState::unknown : found->second.state;
}

bool Problems::on_stand_in() const {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(lives_, [&](const auto& life) {
    const ProblemState state = life.second.state;
    return (state == ProblemState::on_stand_in || state == ProblemState::being_made_on_stand_in) &&
           !table_.find(life.first, Standing::best_known);
  });
}

std::optional<Missing> Problems::missing(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  const auto found = lives_.find(values_of(problem));
  return found == lives_.end() ? std::nullopt : found->second.missing;
}

std::optional<Values> Problems::agreed(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  const auto found = agreed_.find(values_of(problem));
  return found == agreed_.end() ? std::nullopt : found->second.config;
}

bool Problems::may_agree(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  return has_room_for(values_of(problem));
}

bool Problems::agree(std::span<const std::int64_t> problem, const Values& config, By by) {
  const Values key = values_of(problem);
  std::lock_guard lock(mutex_);
  if (by == By::all_ranks && !has_room_for(key)) return false;
  Agreed& agreement = agreed_[key];
  agreement.config = config;
  agreement.none = nullptr;
  if (by == By::all_ranks) count(agreement);
  return true;
}

bool Problems::remember_none(std::span<const std::int64_t> problem, std::exception_ptr why) {
  const Values key = values_of(problem);
  std::lock_guard lock(mutex_);
  if (!has_room_for(key)) return false;
  Agreed& agreement = agreed_[key];
  agreement.config.reset();
  agreement.none = std::move(why);
  count(agreement);
  return true;
}

void Problems::throw_if_none(std::span<const std::int64_t> problem) const {
  std::exception_ptr why;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = agreed_.find(values_of(problem)); found != agreed_.end())
      why = found->second.none;
  }
  if (why) std::rethrow_exception(why);
}

void Problems::agree_over(std::span<const std::int64_t> problem, const std::optional<Values>& seen,
                          const Values& config) {
  std::lock_guard lock(mutex_);
  Agreed& agreement = agreed_[values_of(problem)];
  if (seen == agreement.config || !agreement.config) {
    agreement.config = config;
    agreement.none = nullptr;
  }
  count(agreement);
}

bool Problems::has_room_for(const Values& problem) const {
  if (counted_ < kMostAgreed) return true;
  const auto found = agreed_.find(problem);
  return found != agreed_.end() && found->second.counts;
}

void Problems::count(Agreed& agreement) {
  if (!std::exchange(agreement.counts, true)) ++counted_;
}

bool Problems::measured_anew(std::span<const std::int64_t> problem) const {
  std::lock_guard lock(mutex_);
  return measured_anew_.contains(values_of(problem));
}

void Problems::note_measured_anew(std::span<const std::int64_t> problem) {
  std::lock_guard lock(mutex_);
  measured_anew_.insert(values_of(problem));
}

std::optional<TuningFailedError> Problems::failure(const Digest& request) const {
  std::lock_guard lock(mutex_);
  const auto found = failures_.find(request);
  return found == failures_.end() ? std::nullopt : std::optional(found->second);
}

void Problems::remember_failure(const Digest& request, const TuningFailedError& error) {
  std::lock_guard lock(mutex_);
  // Any one of them: a tuning that is asked for again fails once more.
  const std::size_t most = bound_.most != 0 ? bound_.most : kMostFailures;
  if (failures_.size() >= most) failures_.erase(failures_.begin());
  failures_.insert_or_assign(request, error);
}

void Problems::forget_failure(const Digest& request) {
  std::lock_guard lock(mutex_);
  failures_.erase(request);
}

}  // namespace kiln::runtime
