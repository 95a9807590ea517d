#include "runtime/tune/tuning_turn.hpp"

namespace kiln::runtime {

TuningTurn::Hold TuningTurn::take(const TimeLimit& deadline, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  const auto may_have_it = [this] { return !is_anothers(); };
  if (!may_have_it()) {
    ++waiting_;
    if (wanted_) wanted_();
    const bool free = deadline.at() ? free_.wait_until(lock, stop, *deadline.at(), may_have_it)
                                    : free_.wait(lock, stop, may_have_it);
    --waiting_;
    if (!free) return {};
  }
  return begin();
}

TuningTurn::Hold TuningTurn::try_take() {
  const std::lock_guard lock(mutex_);
  return is_anothers() ? Hold() : begin();
}

/// @pre the lock is held, and no other thread has the turn
TuningTurn::Hold TuningTurn::begin() {
  owner_ = std::this_thread::get_id();
  ++depth_;
  return Hold(*this);
}

void TuningTurn::give_back() {
  std::lock_guard lock(mutex_);
  if (--depth_ > 0) return;
  owner_ = std::thread::id();
  free_.notify_one();
}

}  // namespace kiln::runtime
