// One search at a time: two would disturb each other's clocks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/support/own_process.hpp"
#include "runtime/support/time_limit.hpp"

namespace kiln::runtime {

/// Whose turn it is to tune. The thread that has it may take it again inside: a region that is
/// being tuned may launch what has to be tuned first. Thread-safe.
class TuningTurn {
 public:
  enum class Kind {
    kept,
    /// Where a piece of its work (begin_work) takes longer than it may, or none begins, a thread
    /// that waits gets the turn meanwhile: what is tuned is the program's, and may wait for that
    /// thread.
    lent
  };
  /// A turn is lent after this, or after three times the longest piece of work, if that is more.
  static constexpr std::chrono::milliseconds kPatience{1000};

  /// Gives the turn back at its end, on the thread that took it.
  class [[nodiscard]] Hold {
   public:
    Hold() = default;
    Hold(TuningTurn& turn, std::uint64_t id) : turn_(&turn), id_(id) {}
    Hold(Hold&& other) noexcept : turn_(std::exchange(other.turn_, nullptr)), id_(other.id_) {}
    Hold& operator=(Hold&& other) noexcept {
      std::swap(turn_, other.turn_);
      std::swap(id_, other.id_);
      return *this;
    }
    ~Hold() {
      if (turn_) turn_->give_back(id_);
    }
    explicit operator bool() const noexcept { return turn_ != nullptr; }

   private:
    TuningTurn* turn_ = nullptr;
    std::uint64_t id_ = 0;
  };

  /// Waits for the turn; not beyond the deadline, and not once `stop` is requested: then the hold
  /// is empty. A free turn is taken in any case.
  Hold take(const TimeLimit& deadline = {}, const std::stop_token& stop = {},
            Kind kind = Kind::kept);
  /// Empty if another thread has the turn.
  Hold try_take(Kind kind = Kind::kept);

  /// Around a piece of work of the thread that took a turn of the kind `lent`; others need not, and
  /// nothing is done for them. Waits for the turn if it is lent just now. False: it did not come
  /// back by the deadline, or before a stop.
  bool begin_work(const TimeLimit& deadline = {}, const std::stop_token& stop = {});
  /// Whether no other thread had the turn since begin_work().
  bool end_work();

  /// Threads that wait for it.
  int waiting() const noexcept { return waiting_; }
  /// Called when a thread begins to wait, on that thread; it must not take the turn. Before the
  /// first turn is taken.
  void when_wanted(std::function<void()> wanted) { wanted_ = std::move(wanted); }

  bool mine() const noexcept { return owner_ == std::this_thread::get_id(); }
  bool is_anothers() const noexcept {
    if (process_.is_forked()) return false;  // nobody has taken it here yet
    const std::thread::id owner = owner_;
    return owner != std::thread::id() && owner != std::this_thread::get_id();
  }

 private:
  struct Holder {
    std::uint64_t id;
    std::thread::id thread;
    Kind kind;
    Clock::time_point since;  ///< when its work began or ended last
    Clock::duration patience = kPatience;
    bool was_lent = false;    ///< since begin_work()
    bool wants_back = false;  ///< its thread waits for it
  };

  // With the lock.
  /// In a fork, drops the holds of threads that do not exist here.
  void leave_to_parent();
  bool may_have_it() const;
  std::optional<Clock::time_point> lent_at() const;
  Hold begin(Kind kind);
  Holder* lent_by_this_thread();
  void set_owner();
  void give_back(std::uint64_t id);

  OwnProcess process_;
  std::mutex mutex_;
  std::condition_variable_any free_;
  std::atomic<std::thread::id> owner_{};  ///< of the last holder
  std::atomic<int> waiting_{0};
  std::function<void()> wanted_;
  /// The last one has the turn: the others have lent it, or their thread has taken it once more.
  std::vector<Holder> holders_;
  std::uint64_t next_id_ = 0;
};

}  // namespace kiln::runtime
