// Tells a process from its forks.
#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace kiln::runtime {

/// The process in which the object was made. A fork has a copy of the object, but none of the
/// threads that were there: nothing may wait for them, and what they waited on must not be
/// destroyed.
class OwnProcess {
 public:
  bool is_forked() const noexcept { return ::getpid() != id_; }

 private:
  const pid_t id_ = ::getpid();
};

}  // namespace kiln::runtime
