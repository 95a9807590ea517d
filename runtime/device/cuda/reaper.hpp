// Destroys on a thread of its own what ends in a callback of the driver, where the driver must not
// be called.
//
//   Reaper reaper;
//   driver.UserObjectCreate(&object, reaper.hold(module), Reaper::release, 1, flags);
#pragma once

#include <memory>

namespace kiln::runtime {

/// Thread-safe. The thread starts with the first hold(). It ends when the reaper has ended and all
/// that was held has been destroyed, and nobody waits for it: the reaper itself may be among that.
class Reaper {
 public:
  Reaper();
  ~Reaper();
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;

  /// Keeps `what` until release() is called with what this returns.
  /// @throws EnvironmentError when the thread cannot be started
  void* hold(std::shared_ptr<const void> what);
  /// Once for each hold(), on any thread, also after the reaper has ended. Neither allocates nor
  /// waits for what is being destroyed.
  static void release(void* held) noexcept;

 private:
  struct Held;
  struct State;
  static void run(const std::shared_ptr<State>& state) noexcept;

  std::shared_ptr<State> state_;
};

}  // namespace kiln::runtime
