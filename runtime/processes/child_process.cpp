#include "runtime/processes/child_process.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

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

}  // namespace

bool sent_by_others(int signal) noexcept {
  return signal == SIGKILL || signal == SIGTERM || signal == SIGINT || signal == SIGHUP ||
         signal == SIGQUIT;
}

ChildProcess::ChildProcess(const std::filesystem::path& executable, int inherited,
                           bool background) {
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

bool ChildProcess::ended_within(int milliseconds) {
  if (process_ >= 0) {
    pollfd watched{process_, POLLIN, 0};
    int ready = 0;
    while ((ready = ::poll(&watched, 1, milliseconds)) < 0 && errno == EINTR) continue;
    return ready > 0;
  }
  for (int waited = 0;; ++waited) {
    siginfo_t info{};
    if (::waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != 0)
      return true;
    if (waited >= milliseconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void ChildProcess::kill() {
  if (process_ >= 0)
    ::syscall(SYS_pidfd_send_signal, process_, SIGKILL, nullptr, 0);
  else if (!ended_within(0))
    ::kill(id_, SIGKILL);
}

std::string ChildProcess::end(End how) {
  if (channel_ < 0) return {};
  ::close(std::exchange(channel_, -1));
  const bool killed = how == End::now || !ended_within(1000);
  if (killed) kill();
  siginfo_t info{};
  int waited = -1;
  const auto wait_by = [&](idtype_t type, int id) {
    while ((waited = ::waitid(type, static_cast<id_t>(id), &info, WEXITED)) != 0 && errno == EINTR)
      continue;
  };
  if (process_ >= 0) wait_by(kByDescriptor, process_);
  if (process_ < 0 || (waited != 0 && errno == EINVAL)) wait_by(P_PID, id_);
  read_errors();
  if (errors_ >= 0) ::close(std::exchange(errors_, -1));
  if (process_ >= 0) ::close(std::exchange(process_, -1));
  if (waited != 0) return "ended (a waitpid of this program has taken its status)";
  if (info.si_code == CLD_EXITED) return detail::format("ended with exit code {}", info.si_status);
  if (!killed) signal_ = info.si_status;
  const char* const name = ::sigabbrev_np(info.si_status);
  return detail::format("was ended by signal {} (SIG{})", info.si_status, name ? name : "?");
}

}  // namespace kiln::runtime
