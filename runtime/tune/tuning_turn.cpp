#include "runtime/tune/tuning_turn.hpp"

#include <algorithm>

#include <unistd.h>

namespace kiln::runtime {

TuningTurn::Hold TuningTurn::take(const TimeLimit& deadline, const std::stop_token& stop,
                                  Kind kind) {
  std::unique_lock lock(mutex_);
  leave_to_parent();
  const auto free = [this] { return may_have_it(); };
  if (!free()) {
    ++waiting_;
    if (wanted_) wanted_();
    bool has = false;
    for (bool over = false; !has && !over; over = stop.stop_requested() || deadline.passed()) {
      // The thread that gets the turn next may lend it, at a time that is not known yet. So this
      // thread looks again.
      Clock::time_point until = Clock::now() + kPatience;
      if (const auto lent = lent_at()) until = std::min(until, *lent);
      if (deadline.at()) until = std::min(until, *deadline.at());
      has = free_.wait_until(lock, stop, until, free);
    }
    --waiting_;
    if (!has) return {};
  }
  return begin(kind);
}

TuningTurn::Hold TuningTurn::try_take(Kind kind) {
  const std::lock_guard lock(mutex_);
  leave_to_parent();
  return may_have_it() ? begin(kind) : Hold();
}

void TuningTurn::leave_to_parent() {
  if (!process_.is_forked()) return;
  process_.renew();
  // The thread that forked is the only one that is here as well, and is the fork's first. Ids of
  // the others may be those of the fork's own threads by now.
  const bool first = ::gettid() == ::getpid();
  std::erase_if(holders_, [first](const Holder& holder) {
    return !first || holder.thread != std::this_thread::get_id();
  });
  waiting_ = 0;
  set_owner();
}

bool TuningTurn::begin_work(const TimeLimit& deadline, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  Holder* holder = lent_by_this_thread();
  if (!holder) return true;
  const std::uint64_t id = holder->id;
  const auto back = [&] { return holders_.back().id == id; };
  holder->wants_back = true;
  const bool has = deadline.at() ? free_.wait_until(lock, stop, *deadline.at(), back)
                                 : free_.wait(lock, stop, back);
  holder = lent_by_this_thread();  // others have come and gone meanwhile
  holder->wants_back = false;
  if (!has) return false;
  holder->was_lent = false;
  holder->since = Clock::now();
  return true;
}

bool TuningTurn::end_work() {
  const std::lock_guard lock(mutex_);
  Holder* const holder = lent_by_this_thread();
  if (!holder) return true;
  const Clock::time_point now = Clock::now();
  if (!holder->was_lent) {
    constexpr int kTimes = 3;
    holder->patience = std::max(holder->patience, kTimes * (now - holder->since));
  }
  holder->since = now;
  return !holder->was_lent;
}

bool TuningTurn::may_have_it() const {
  if (holders_.empty() || holders_.back().thread == std::this_thread::get_id()) return true;
  const auto at = lent_at();
  return at && Clock::now() >= *at;
}

std::optional<Clock::time_point> TuningTurn::lent_at() const {
  if (holders_.empty()) return {};
  const Holder& holder = holders_.back();
  if (holder.kind == Kind::kept || holder.wants_back) return {};
  return holder.since + holder.patience;
}

TuningTurn::Hold TuningTurn::begin(Kind kind) {
  const std::thread::id self = std::this_thread::get_id();
  if (!holders_.empty() && holders_.back().thread != self) holders_.back().was_lent = true;
  holders_.push_back({.id = ++next_id_, .thread = self, .kind = kind, .since = Clock::now()});
  set_owner();
  return Hold(*this, next_id_);
}

/// What this thread has taken last, if that is lent; else null.
TuningTurn::Holder* TuningTurn::lent_by_this_thread() {
  const auto last = std::find_if(holders_.rbegin(), holders_.rend(), [](const Holder& h) {
    return h.thread == std::this_thread::get_id();
  });
  return last == holders_.rend() || last->kind == Kind::kept ? nullptr : &*last;
}

void TuningTurn::set_owner() {
  owner_ = holders_.empty() ? std::thread::id() : holders_.back().thread;
}

void TuningTurn::give_back(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(holders_, [id](const Holder& holder) { return holder.id == id; });
  set_owner();
  free_.notify_all();
}

}  // namespace kiln::runtime
