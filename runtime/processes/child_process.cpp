#include "runtime/processes/child_process.hpp"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <mutex>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kiln/detail/environment.hpp"
#include "kiln/detail/format.hpp"
#include "kiln/error.hpp"

namespace kiln::runtime {

namespace {

constexpr std::size_t kMostWords = 4096;
constexpr idtype_t kByDescriptor = static_cast<idtype_t>(3);  // P_PIDFD

/// Owns a descriptor above 2: the child needs 0 to 2 for itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {
    if (fd_ < 0 || fd_ > 2) return;
    fd_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
    ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

[[noreturn]] void fail(const char* call, const std::filesystem::path& executable, int code) {
  throw EnvironmentError(
      detail::format("{} failed for {}: {}", call, executable.string(), std::strerror(code)));
}

struct SpawnSettings {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  SpawnSettings() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
};

struct Reaped {
  enum class State { now, not_yet, by_others };
  State state;
  siginfo_t info{};
};

/// Takes the status of a child that has ended, without waiting. `process`: its descriptor; -1: the
/// kernel has none.
Reaped reap(int process, pid_t id, int more = 0) {
  Reaped found{};
  const auto ask = [&](idtype_t type, int which) {
    int code;
    while ((code = ::waitid(type, static_cast<id_t>(which), &found.info,
                            WEXITED | WNOHANG | more)) != 0 &&
           errno == EINTR)
      continue;
    return code;
  };
  int code = process >= 0 ? ask(kByDescriptor, process) : -1;
  if (process < 0 || (code != 0 && errno == EINVAL)) code = ask(P_PID, id);
  found.state = code != 0                ? Reaped::State::by_others
                : found.info.si_pid == 0 ? Reaped::State::not_yet
                                         : Reaped::State::now;
  return found;
}

/// Children that were killed and did not end in time, by their descriptors.
class Unreaped {
 public:
  static Unreaped& of_process() {
    static auto* const unreaped = new Unreaped;  // never destroyed
    return *unreaped;
  }
  void keep(int process) {
    if (process < 0) return;
    const std::lock_guard lock(mutex_);
    kept_.push_back(process);
  }
  void look() {
    // Another thread may hold the lock; in a fork that thread does not exist.
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    std::erase_if(kept_, [](int process) {
      siginfo_t info{};
      const int code =
          ::waitid(kByDescriptor, static_cast<id_t>(process), &info, WEXITED | WNOHANG);
      if (code == 0 && info.si_pid == 0) return false;
      ::close(process);
      return true;
    });
  }

 private:
  Unreaped() = default;

  std::mutex mutex_;
  std::vector<int> kept_;
};

}  // namespace

bool sent_by_others(int signal) noexcept {
  return signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP ||
         signal == SIGQUIT;
}

ChildProcess::ChildProcess(const std::filesystem::path& executable, int inherited,
                           bool background) {
  Unreaped::of_process().look();
  int ends[2], pipe[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail("socketpair", executable, errno);
  Descriptor here(ends[0]), there(ends[1]);
  if (::pipe2(pipe, O_CLOEXEC) != 0) fail("pipe2", executable, errno);
  Descriptor words(pipe[0]), written(pipe[1]);
  if (here.get() < 0 || there.get() < 0 || words.get() < 0 || written.get() < 0 ||
      ::fcntl(here.get(), F_SETFL, O_NONBLOCK) != 0 ||
      ::fcntl(words.get(), F_SETFL, O_NONBLOCK) != 0)
    fail("fcntl", executable, errno);

  SpawnSettings settings;
  auto& actions = settings.actions;
  ::posix_spawn_file_actions_adddup2(&actions, there.get(), 0);
  ::posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, written.get(), 2);
  if (inherited >= 0) ::posix_spawn_file_actions_adddup2(&actions, inherited, 3);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, inherited >= 0 ? 4 : 3);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&settings.attributes, &none);
  ::posix_spawnattr_setsigdefault(&settings.attributes, &all);
  ::posix_spawnattr_setpgroup(&settings.attributes, 0);
  ::posix_spawnattr_setflags(
      &settings.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::string path = executable.string(), parent = std::to_string(::getpid());
  char* const arguments[] = {path.data(), parent.data(), nullptr};
  const int code = ::posix_spawn(&id_, path.c_str(), &actions, &settings.attributes, arguments,
                                 detail::whole_environment());
  if (code != 0) fail("posix_spawn", executable, code);
  // It has one thread until it is sent something, and the others inherit this.
  if (const sched_param any{}; background) ::sched_setscheduler(id_, SCHED_IDLE, &any);
  // When a waitpid(-1) of the program has reaped the child, its id may be given to another process.
  process_ = static_cast<int>(::syscall(SYS_pidfd_open, id_, 0));
  channel_ = here.release();
  errors_ = words.release();
}

ChildProcess::~ChildProcess() { end(End::now); }

void ChildProcess::read_errors() {
  char buffer[4096];
  while (errors_ >= 0) {
    const ssize_t count = ::read(errors_, buffer, sizeof buffer);
    if (count > 0) {
      words_.append(buffer, static_cast<std::size_t>(count));
      if (words_.size() > kMostWords) words_.erase(0, words_.size() - kMostWords);
    } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      ::close(std::exchange(errors_, -1));
    } else if (errno == EAGAIN) {
      return;
    }
  }
}

bool ChildProcess::stopped() const {
  std::ifstream file(detail::format("/proc/{}/stat", id_));
  std::string text;
  std::getline(file, text);
  // The program's name stands in parentheses, and may contain any character.
  const auto name_end = text.rfind(") ");
  return name_end != text.npos && name_end + 2 < text.size() && text[name_end + 2] == 'T';
}

std::uint64_t ChildProcess::resident_bytes() const {
  std::ifstream file(detail::format("/proc/{}/statm", id_));
  std::uint64_t all = 0, resident = 0;
  if (!(file >> all >> resident)) return 0;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

void ChildProcess::kill() {
  killed_ = true;
  if (process_ >= 0) ::syscall(SYS_pidfd_send_signal, process_, SIGKILL, nullptr, 0);
  kill_group();
}

/// Until the child is reaped, no other group can have its id. A waitpid(-1) of another thread may
/// come in between, which leaves a moment in which a new group may have it.
void ChildProcess::kill_group() const {
  if (reap(process_, id_, WNOWAIT).state != Reaped::State::by_others) ::kill(-id_, SIGKILL);
}

std::string ChildProcess::end(End how) {
  if (!how_ended_.empty()) return {};
  begin_end(how);
  while (!has_ended()) {
    pollfd watched{end_descriptor(), POLLIN, 0};
    ::poll(&watched, 1, static_cast<int>(next_look().left() * 1000) + 1);
  }
  return how_ended_;
}

void ChildProcess::begin_end(End how) {
  if (channel_ >= 0) {
    ::close(std::exchange(channel_, -1));
    limit_ = TimeLimit(kSoonSeconds, Clock::now());
  }
  if (how == End::soon || killed_ || !how_ended_.empty()) return;
  kill();
  limit_ = TimeLimit(kKilledSeconds, Clock::now());
}

bool ChildProcess::has_ended() {
  if (!how_ended_.empty()) return true;
  if (reap(process_, id_, WNOWAIT).state == Reaped::State::now) kill_group();
  const Reaped found = reap(process_, id_);
  if (found.state == Reaped::State::not_yet) {
    pollfd watched{process_, POLLIN, 0};
    is_kept_ = process_ >= 0 && ::poll(&watched, 1, 0) > 0;
    if (!limit_.passed()) return false;
    if (!killed_) {
      begin_end(End::now);
      return false;
    }
    Unreaped::of_process().keep(std::exchange(process_, -1));
    how_ended_ = detail::format("was killed, and has not ended within {} s", kKilledSeconds);
  } else if (found.state == Reaped::State::by_others) {
    how_ended_ = "ended (a waitpid of this program has taken its status)";
  } else if (found.info.si_code == CLD_EXITED) {
    how_ended_ = detail::format("ended with exit code {}", found.info.si_status);
  } else {
    if (!killed_) signal_ = found.info.si_status;
    const char* const name = ::sigabbrev_np(found.info.si_status);
    how_ended_ =
        detail::format("was ended by signal {} (SIG{})", found.info.si_status, name ? name : "?");
  }
  read_errors();
  close_all();
  Unreaped::of_process().look();
  return true;
}

TimeLimit ChildProcess::next_look() const {
  // Nothing else says that it can be reaped.
  constexpr double kMoment = 0.002;
  if (end_descriptor() >= 0 || limit_.left() < kMoment) return limit_;
  return {kMoment, Clock::now()};
}

void ChildProcess::close_all() {
  for (int* const descriptor : {&channel_, &errors_, &process_})
    if (*descriptor >= 0) ::close(std::exchange(*descriptor, -1));
}

}  // namespace kiln::runtime
