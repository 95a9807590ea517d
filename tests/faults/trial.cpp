#include "trial.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <thread>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kiln::faults {
namespace {

std::int64_t now() {
  return std::chrono::duration_cast<milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Slow machines and sanitizers get more time.
double timeout_factor() {
  const char* text = std::getenv("KILN_TIMEOUT_FACTOR");
  const double factor = text == nullptr ? 1 : std::atof(text);
  return factor >= 1 ? factor : 1;
}

template <std::size_t N>
void copy(char (&to)[N], const std::string& text) {
  const std::size_t size = std::min(text.size(), N - 1);
  std::memcpy(to, text.data(), size);
  to[size] = '\0';
}

/// Forks; the child ends with this process, whatever ends it.
pid_t fork_child() {
  std::fflush(stdout);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) throw std::runtime_error("fork: " + std::string(std::strerror(errno)));
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
  }
  return pid;
}

}  // namespace

Trial::Trial(int number, Tally& tally, double seconds)
    : number_(number), tally_(tally), seconds_(seconds) {}

void Trial::next(const std::string& what, milliseconds deadline) {
  copy(tally_.at, what);
  tally_.allowed =
      static_cast<std::int64_t>(static_cast<double>(deadline.count()) * timeout_factor());
  progress();
  ++tally_.cases;
}

void Trial::progress() { tally_.deadline = now() + tally_.allowed; }

void Trial::say(const char* what, const std::string& detail) const {
  constexpr std::uint64_t kShown = 8;  // one cause often shows in a thousand cases
  if (tally_.wrong + tally_.lost + tally_.hangs > kShown) return;
  std::printf("  fault %d, %s: %s: %s\n", number_, tally_.at, what, detail.c_str());
  std::fflush(stdout);
}

bool Trial::right(bool holds, const std::string& what) {
  if (!holds) {
    ++tally_.wrong;
    say("wrong result", what);
  }
  return holds;
}

bool Trial::kept(bool holds, const std::string& what) {
  if (!holds) {
    ++tally_.lost;
    say("lost entry", what);
  }
  return holds;
}

void Trial::skip(const std::string& why) {
  copy(tally_.notes, why);
  tally_.skipped = true;
  throw Skipped{};
}

void Trial::without(const std::string& what) {
  const std::string before = tally_.notes;
  if (before.find(what) == before.npos)
    copy(tally_.notes, before.empty() ? "without " + what : before + "; without " + what);
}

Processes::~Processes() {
  for (const pid_t child : running_) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

pid_t Processes::start(const std::function<void()>& body) {
  const pid_t pid = fork_child();
  if (pid == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      trial_.right(false, std::string("exception: ") + error.what());
    } catch (...) {
      trial_.right(false, "exception");
    }
    std::fflush(stdout);
    ::_exit(0);
  }
  running_.push_back(pid);
  return pid;
}

void Processes::wait(pid_t child, int signal) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::erase(running_, child);
  const int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  trial_.right(by == signal && (by != 0 || WEXITSTATUS(status) == 0),
               "a process ended with signal " + std::to_string(by) + ", status " +
                   std::to_string(WIFEXITED(status) ? WEXITSTATUS(status) : -1));
}

void Processes::wait_all() {
  while (!running_.empty()) wait(running_.back());
}

void Processes::stop(pid_t child) {
  ::kill(child, SIGSTOP);
  int status = 0;
  while (::waitpid(child, &status, WUNTRACED) < 0 && errno == EINTR) {
  }
}

void Processes::kill(pid_t child) {
  ::kill(child, SIGKILL);
  wait(child, SIGKILL);
}

void Processes::run(Trial& trial, const std::function<void()>& body, int signal) {
  Processes processes(trial);
  processes.wait(processes.start(body), signal);
}

void await(const std::function<bool()>& holds) {
  while (!holds()) std::this_thread::sleep_for(milliseconds(1));
}

namespace {

/// In the child that tries a fault.
[[noreturn]] void try_in_child(const Fault& fault, Tally& tally, double seconds) {
  ::setpgid(0, 0);
  Trial trial(fault.number, tally, seconds);
  try {
    fault.try_it(trial);
  } catch (const Skipped&) {
  } catch (const std::exception& error) {
    trial.right(false, std::string("exception: ") + error.what());
  } catch (...) {
    trial.right(false, "exception");
  }
  std::fflush(stdout);
  ::_exit(0);
}

void watch(pid_t child, int number, Trial& trial, Tally& tally) {
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (now() > tally.deadline) {
      ++tally.hangs;
      std::printf("  fault %d, %s: hang: not done at its deadline\n", number, tally.at);
      ::kill(-child, SIGKILL);
      ::kill(child, SIGKILL);  // it may not have come to make its group
      ::waitpid(child, &status, 0);
      return;
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
  ::kill(-child, SIGKILL);  // what it may have left behind
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    trial.right(false, "the process that tries it ended with status " + std::to_string(status));
}

}  // namespace

bool try_all(const std::vector<Fault>& faults, double seconds) {
  std::uint64_t tried = 0, wrong = 0, lost = 0, hangs = 0;
  bool all = true;
  for (const Fault& fault : faults) {
    Shared<Tally> tally;
    Trial trial(fault.number, *tally, seconds);
    copy(tally->at, "before its first case");
    tally->deadline = now() + static_cast<std::int64_t>(10'000 * timeout_factor());
    const auto start = std::chrono::steady_clock::now();
    const pid_t child = fork_child();
    if (child == 0) try_in_child(fault, *tally, seconds);
    watch(child, fault.number, trial, *tally);
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    if (tally->skipped && tally->cases == 0 && tally->wrong + tally->lost + tally->hangs == 0) {
      std::printf("fault %2d  %-44s skipped: %s\n", fault.number, fault.name, tally->notes);
      std::fflush(stdout);
      continue;
    }
    std::printf(
        "fault %2d  %-44s %5llu cases, wrong %llu, lost %llu, hangs %llu  %5.1f s%s%s%s\n",
        fault.number, fault.name, static_cast<unsigned long long>(tally->cases),
        static_cast<unsigned long long>(tally->wrong), static_cast<unsigned long long>(tally->lost),
        static_cast<unsigned long long>(tally->hangs), took, tally->notes[0] != '\0' ? "  (" : "",
        tally->notes, tally->notes[0] != '\0' ? ")" : "");
    std::fflush(stdout);
    if (tally->cases == 0) {
      all = false;
      std::printf("  fault %d was not tried, and did not say why\n", fault.number);
    } else {
      ++tried;
    }
    wrong += tally->wrong;
    lost += tally->lost;
    hangs += tally->hangs;
  }
  std::printf("faults tried %llu, wrong results %llu, lost entries %llu, hangs %llu\n",
              static_cast<unsigned long long>(tried), static_cast<unsigned long long>(wrong),
              static_cast<unsigned long long>(lost), static_cast<unsigned long long>(hangs));
  return all && tried > 0 && wrong + lost + hangs == 0;
}

}  // namespace kiln::faults
