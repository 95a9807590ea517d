#include "runtime/device/cuda/reaper.hpp"

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

/// Ready to be put into a list when memory cannot be had.
struct Reaper::Held {
  std::shared_ptr<const void> what;
  std::shared_ptr<State> state;
  Held* next = nullptr;
};

struct Reaper::State {
  std::mutex mutex;
  std::condition_variable changed;
  Held* released = nullptr;
  std::size_t held = 0;  ///< those in `released` and those that are being destroyed included
  bool started = false;
  bool ended = false;  ///< the reaper
};

Reaper::Reaper() : state_(std::make_shared<State>()) {}

Reaper::~Reaper() {
  const std::lock_guard lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_one();
}

void* Reaper::hold(std::shared_ptr<const void> what) {
  auto held = std::make_unique<Held>(Held{std::move(what), state_});
  const std::lock_guard lock(state_->mutex);
  if (!state_->started) {
    try {
      std::thread(run, state_).detach();
    } catch (const std::system_error& error) {
      throw EnvironmentError(detail::format(
          "the thread that unloads what graphs have used cannot be started: {}", error.what()));
    }
    state_->started = true;
  }
  ++state_->held;
  return held.release();
}

void Reaper::release(void* held) noexcept {
  auto* const mine = static_cast<Held*>(held);
  const std::shared_ptr<State> state = mine->state;  // the thread may destroy `mine` at once
  const std::lock_guard lock(state->mutex);
  mine->next = std::exchange(state->released, mine);
  state->changed.notify_one();
}

void Reaper::run(const std::shared_ptr<State>& state) noexcept {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock,
                        [&] { return state->released || (state->ended && state->held == 0); });
    if (!state->released) return;
    Held* list = std::exchange(state->released, nullptr);
    lock.unlock();
    std::size_t destroyed = 0;
    for (; list; ++destroyed) delete std::exchange(list, list->next);
    lock.lock();
    state->held -= destroyed;
  }
}

}  // namespace kiln::runtime
