// Tells a process from its forks.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>
#include <thread>
#include <utility>

#include <sys/types.h>
#include <unistd.h>

namespace kiln::runtime {

/// The process in which the object was made. A fork has a copy of the object, but none of the
/// threads that were there: nothing may wait for them, and what they waited on must not be
/// destroyed.
class OwnProcess {
 public:
  bool is_forked() const noexcept { return ::getpid() != id_; }
  /// From now on that is this process.
  void renew() noexcept { id_ = ::getpid(); }

 private:
  std::atomic<pid_t> id_ = ::getpid();
};

/// Forgets a thread that does not exist in this fork. Its handle is not detached either: the system
/// may have given it to a thread of the fork's by now.
inline void forget_thread(std::thread& thread) noexcept {
  alignas(std::thread) std::byte place[sizeof(std::thread)];
  ::new (static_cast<void*>(place)) std::thread(std::move(thread));  // and is never destroyed
}

}  // namespace kiln::runtime
