// A process that traces another, so that what is killed cannot be reaped: as a sleep that nothing
// interrupts would have it.
#pragma once

#include <csignal>
#include <cstdlib>

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kiln::test {

/// Traces `process` until it is destroyed. Linux hides a traced process that has ended from its
/// parent until its tracer has seen it, which this one never does.
class Tracer {
 public:
  explicit Tracer(pid_t process) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    tracer_ = ::fork();
    if (tracer_ == 0) {
      const char traces = ::ptrace(PTRACE_SEIZE, process, nullptr, nullptr) == 0 ? 1 : 0;
      if (::write(ends[1], &traces, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    char traces = 0;
    traces_ = ::read(ends[0], &traces, 1) == 1 && traces != 0;
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Tracer() {
    ::kill(tracer_, SIGKILL);
    ::waitpid(tracer_, nullptr, 0);
  }
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// False where the system does not let it.
  bool traces() const { return traces_; }

 private:
  pid_t tracer_ = -1;
  bool traces_ = false;
};

}  // namespace kiln::test
