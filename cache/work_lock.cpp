#include "cache/work_lock.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/atomic_file.hpp"
#include "cache/process_identity.hpp"
#include "cache/remove_if.hpp"
#include "kiln/detail/format.hpp"

namespace kiln::cache {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::string_view kLockFormat = "kiln lock 1";
constexpr milliseconds kFirstPause{2}, kLongestPause{100};
constexpr off_t kMaxLock = 4096;

std::string count_text(std::uint64_t beats) { return detail::format("{:020d}\n", beats); }

std::string lock_text(const ProcessIdentity& self) {
  std::random_device random;
  return detail::format(
      "{}\nhost {}\nboot {}\nnamespace {}\npid {}\nstart {}\nword {:08x}{:08x}\nbeat {}",
      kLockFormat, self.host, self.boot, self.pid_namespace, self.pid, self.start, random(),
      random(), count_text(0));
}

ProcessIdentity holder_in(const std::string& text) {
  ProcessIdentity holder;
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kLockFormat) return holder;
  while (std::getline(lines, line)) {
    const auto space = line.find(' ');
    if (space == line.npos) continue;
    const std::string name = line.substr(0, space), value = line.substr(space + 1);
    if (name == "boot") holder.boot = value;
    if (name == "namespace") holder.pid_namespace = value;
    if (name == "pid") holder.pid = static_cast<pid_t>(std::atol(value.c_str()));
    if (name == "start") holder.start = std::strtoull(value.c_str(), nullptr, 10);
  }
  return holder;
}

/// What lies under a lock's name.
struct Look {
  enum class What { absent, lock, strange } what;
  std::string text;  ///< of locks; empty if its maker has not written it yet
};

Look look_at(int directory, const std::string& name, Owner owner) {
  // The file is opened again at each look, because only that makes NFS ask its server. The call
  // never waits for a FIFO's writer.
  const UniqueFd fd(
      ::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) return {errno == ENOENT ? Look::What::absent : Look::What::strange, {}};
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) || !is_trusted(status, owner) ||
      status.st_size > kMaxLock)
    return {Look::What::strange, {}};
  std::array<char, kMaxLock> buffer;
  const ssize_t size = ::read(fd.get(), buffer.data(), buffer.size());
  if (size < 0) return {Look::What::strange, {}};
  return {Look::What::lock, std::string(buffer.data(), static_cast<std::size_t>(size))};
}

/// Whether a holder counts as gone, judged by its file and by our own clock only.
class Watch {
 public:
  explicit Watch(const LockTimes& times) : times_(times) {}

  bool is_silent(const std::string& text, Clock::time_point now) {
    if (text != text_ || changed_ == Clock::time_point()) {
      text_ = text;
      changed_ = now;
    } else if (now - looked_ > std::max<Clock::duration>(times_.deadline / 2, kLongestPause * 4)) {
      // This process was stopped. The holder may have been, too: it gets the time for a beat.
      changed_ = std::max(changed_, now - times_.deadline + 2 * times_.beat);
    }
    looked_ = now;
    return now - changed_ >= times_.deadline;
  }
  Clock::time_point silent_from() const { return changed_ + times_.deadline; }

 private:
  const LockTimes& times_;
  std::string text_;
  Clock::time_point changed_, looked_;
};

}  // namespace

struct WorkLock::Held {
  Held(std::shared_ptr<FileSystem> fs, DiskLevel::SharedFd directory, std::string name, UniqueFd fd,
       std::string text)
      : fs_(std::move(fs)),
        directory_(std::move(directory)),
        name_(std::move(name)),
        fd_(std::move(fd)),
        text_(std::move(text)) {}

  ~Held() {
    thread_ = {};  // stops and joins
    struct stat own{};
    if (::fstat(fd_.get(), &own) != 0) return;
    remove_if(*fs_, directory_->get(), name_, [&](const std::string& name) {
      struct stat status{};
      return ::fstatat(directory_->get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
             status.st_dev == own.st_dev && status.st_ino == own.st_ino;
    });
  }

  /// False: no thread can be started.
  bool start(milliseconds beat) try {
    // Signals are for the program's own threads.
    sigset_t all, old;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &old);
    struct Restore {
      const sigset_t& mask;
      ~Restore() { ::pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } restore{old};
    thread_ = std::jthread([this, beat](const std::stop_token& stop) { run(stop, beat); });
    return true;
  } catch (const std::system_error&) {
    return false;
  }

  const pid_t pid = ::getpid();

 private:
  void run(const std::stop_token& stop, milliseconds beat) {
    const std::size_t offset = text_.size() - count_text(0).size();
    std::unique_lock lock(mutex_);
    for (std::uint64_t beats = 1;; ++beats) {
      wake_.wait_for(lock, stop, beat, [] { return false; });
      if (stop.stop_requested()) return;
      const std::string count = count_text(beats);
      if (::pwrite(fd_.get(), count.data(), count.size(), static_cast<off_t>(offset)) < 0) continue;
      // NFS sends what was written when any descriptor of the file is closed.
      UniqueFd(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 0));
    }
  }

  const std::shared_ptr<FileSystem> fs_;
  const DiskLevel::SharedFd directory_;
  const std::string name_;
  const UniqueFd fd_;
  const std::string text_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread thread_;
};

WorkLock::WorkLock() = default;
WorkLock::WorkLock(WorkLock&&) noexcept = default;

WorkLock& WorkLock::operator=(WorkLock&& other) noexcept {
  release();
  held_ = std::move(other.held_);
  waited_ = other.waited_;
  was_left_ = other.was_left_;
  return *this;
}

WorkLock::~WorkLock() { release(); }

void WorkLock::release() noexcept {
  // A child of fork() has neither the lock nor the thread: what it copied must not be touched.
  if (held_ && held_->pid != ::getpid()) [[maybe_unused]]
    const Held* leaked = held_.release();
  held_.reset();
}

/// Nothing: another process has it.
std::optional<WorkLock::Outcome> WorkLock::create(DiskLevel& disk,
                                                  const DiskLevel::SharedFd& directory,
                                                  const std::string& name,
                                                  const ProcessIdentity& self, milliseconds beat) {
  FileSystem& fs = *disk.file_system();
  struct stat there{};
  if (::fstatat(directory->get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0) return {};
  // It is complete, and a group may read it, before others find it.
  const std::string aside = AtomicFile::temporary_name();
  UniqueFd fd(fs.create(directory->get(), aside.c_str()));
  if (!fd) return Outcome::unusable;
  std::string text = lock_text(self);
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = fs.write(fd.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  const bool written = rest.empty();
  if (!written || fs.rename_new(directory->get(), aside.c_str(), name.c_str()) != 0) {
    // A network file system may have done it at the first of two attempts.
    struct stat own{};
    const bool taken = written && errno == EEXIST;
    const bool is_own =
        taken && ::fstat(fd.get(), &own) == 0 &&
        ::fstatat(directory->get(), name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        there.st_dev == own.st_dev && there.st_ino == own.st_ino;
    fs.remove(directory->get(), aside.c_str());
    if (!is_own) return taken ? std::nullopt : std::optional(Outcome::unusable);
  }
  // From here on the destructor removes the file.
  held_ =
      std::make_unique<Held>(disk.file_system(), directory, name, std::move(fd), std::move(text));
  if (held_->start(beat)) return Outcome::held;
  held_.reset();
  return Outcome::unusable;
}

WorkLock::Outcome WorkLock::acquire(DiskLevel& disk, const std::string& hex, const LockTimes& times,
                                    const std::function<bool()>& ready,
                                    const std::function<bool()>& give_up) {
  release();
  waited_ = was_left_ = false;
  const DiskLevel::SharedFd directory = disk.locks(true);
  if (!directory) return Outcome::unusable;
  const ProcessIdentity self = ProcessIdentity::of_this_process();
  const std::string name = hex + kExtension;
  const Clock::time_point end = Clock::now() + times.longest;
  std::minstd_rand jitter(std::random_device{}());
  Watch watch(times);
  milliseconds pause = kFirstPause;
  bool try_to_create = true, was_absent = false;
  const auto end_of_wait = [&]() -> std::optional<Outcome> {
    if (ready()) return Outcome::ready;
    if (give_up && give_up()) return Outcome::given_up;
    return {};
  };
  for (;;) {
    if (try_to_create) {
      if (const auto outcome = create(disk, directory, name, self, times.beat)) return *outcome;
      try_to_create = false;
    }
    const Look look = look_at(directory->get(), name, disk.owner());
    const Clock::time_point now = Clock::now();
    if (look.what == Look::What::strange || now >= end) return Outcome::unusable;
    if (look.what == Look::What::absent) {
      if (const auto outcome = end_of_wait()) return *outcome;
      // Another waiter may just be taking it over: the holder has ended only if the file stays
      // away.
      if (waited_ && was_absent) return Outcome::released;
      was_absent = true;
      try_to_create = !waited_;
    } else {
      was_absent = false;
      if (is_dead(holder_in(look.text), self) ||
          (watch.is_silent(look.text, now) && times.deadline.count() > 0)) {
        const Removal removal =
            remove_if(*disk.file_system(), directory->get(), name, [&](const std::string& file) {
              const Look again = look_at(directory->get(), file, disk.owner());
              return again.what == Look::What::lock && again.text == look.text;
            });
        if (removal == Removal::failed) return Outcome::unusable;
        try_to_create = removal == Removal::removed;
        was_left_ = was_left_ || try_to_create;
        if (try_to_create) continue;
      }
      if (times.deadline.count() <= 0) return Outcome::unusable;
      if (const auto outcome = end_of_wait()) return *outcome;
    }
    if (try_to_create) continue;
    waited_ = true;
    // Processes that wait for the same entry must not all look at the same moments.
    const Clock::duration swing = pause / 4 * static_cast<int>(jitter() % 5) / 4;
    Clock::time_point next = now + pause - swing;
    if (look.what == Look::What::lock) next = std::min(next, watch.silent_from());
    std::this_thread::sleep_until(std::min(next, end));
    pause = std::min(pause * 3 / 2, kLongestPause);
  }
}

}  // namespace kiln::cache
