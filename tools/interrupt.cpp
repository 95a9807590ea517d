#include "tools/interrupt.hpp"

#include <csignal>
#include <ctime>

#include "tools/terminal.hpp"

namespace kiln::tools {

namespace {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

Interrupt::Interrupt() {
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  waiter_ = std::jthread([this, set](std::stop_token over) {
    // Waits in short steps: nothing else wakes it when the work is done.
    const timespec step{0, 50'000'000};
    while (!over.stop_requested()) {
      const int caught = sigtimedwait(&set, nullptr, &step);
      if (caught < 0) continue;
      if (signal_.exchange(caught) != 0) {
        std::signal(caught, SIG_DFL);
        pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
        std::raise(caught);
      }
      say_error("interrupted: finishing the work under way (interrupt again to end at once)");
      source_.request_stop();
    }
  });
}

Interrupt::~Interrupt() {
  waiter_.request_stop();
  waiter_.join();
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace kiln::tools
