// One search at a time: two would disturb each other's clocks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

/// Whose turn it is to tune. The thread that has it may take it again inside: a region that is
/// being tuned may launch what has to be tuned first. Thread-safe.
class TuningTurn {
 public:
  /// Gives the turn back at its end, on the thread that took it.
  class [[nodiscard]] Hold {
   public:
    Hold() = default;
    explicit Hold(TuningTurn& turn) : turn_(&turn) {}
    Hold(Hold&& other) noexcept : turn_(std::exchange(other.turn_, nullptr)) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(turn_, other.turn_);
      return *this;
    }
    ~Hold() {
      if (turn_) turn_->give_back();
    }
    explicit operator bool() const noexcept { return turn_ != nullptr; }

   private:
    TuningTurn* turn_ = nullptr;
  };

  /// Waits for the turn; not beyond the deadline, and not once `stop` is requested: then the hold
  /// is empty. A free turn is taken in any case.
  Hold take(const TimeLimit& deadline = {}, const std::stop_token& stop = {});
  /// Empty if another thread has the turn.
  Hold try_take();

  /// Threads that wait for it.
  int waiting() const noexcept { return waiting_; }
  /// Called when a thread begins to wait, on that thread; it must not take the turn. Before the
  /// first turn is taken.
  void when_wanted(std::function<void()> wanted) { wanted_ = std::move(wanted); }

  bool mine() const noexcept { return owner_ == std::this_thread::get_id(); }
  bool is_anothers() const noexcept {
    const std::thread::id owner = owner_;
    return owner != std::thread::id() && owner != std::this_thread::get_id();
  }

 private:
  Hold begin();
  void give_back();

  std::mutex mutex_;
  std::condition_variable_any free_;
  std::atomic<std::thread::id> owner_{};
  std::atomic<int> waiting_{0};
  std::function<void()> wanted_;
  int depth_ = 0;
};

}  // namespace kiln::runtime
