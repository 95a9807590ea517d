#include "cache/remove_if.hpp"

#include <cerrno>
#include <chrono>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>

#include "cache/atomic_file.hpp"
#include "cache/unique_fd.hpp"

namespace kiln::cache {
namespace {

/// One remover at a time in a directory: a second one could remove the file that has taken the name
/// of what the first has aside, and the first would then put an older file back. The system ends
/// the turn of a process that ends.
class Turn {
 public:
  explicit Turn(int directory) : fd_(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    using namespace std::chrono_literals;
    const auto end = std::chrono::steady_clock::now() + 500ms;
    // A remover that was stopped in its turn, or a file system without such locks, leaves removers
    // beside each other.
    while (fd_ && ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 &&
           (errno == EWOULDBLOCK || errno == EINTR) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
  }
  /// Unlocks explicitly, because a process forked meanwhile has the descriptor, too.
  ~Turn() {
    if (fd_) ::flock(fd_.get(), LOCK_UN);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  UniqueFd fd_;
};

}  // namespace

Removal remove_if(FileSystem& fs, int directory, const std::string& name,
                  const std::function<bool(const std::string& name)>& is_meant) {
  const Turn turn(directory);
  errno = 0;
  if (!is_meant(name)) return errno == ENOENT ? Removal::absent : Removal::other;
  const std::string aside = AtomicFile::temporary_name();
  if (fs.rename(directory, name.c_str(), aside.c_str()) != 0)
    return errno == ENOENT ? Removal::absent : Removal::failed;
  if (is_meant(aside))
    return fs.remove(directory, aside.c_str()) == 0 ? Removal::removed : Removal::failed;
  if (fs.rename_new(directory, aside.c_str(), name.c_str()) == 0) return Removal::other;
  // On a file system without an exclusive rename, the older of two whole files is better than none.
  if (errno == EEXIST)
    fs.remove(directory, aside.c_str());
  else
    fs.rename(directory, aside.c_str(), name.c_str());
  return Removal::other;
}

}  // namespace kiln::cache
