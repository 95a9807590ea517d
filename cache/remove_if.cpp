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
/// the lock of a process that ends.
class Turn {
 public:
  explicit Turn(int directory) : fd_(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    using namespace std::chrono_literals;
    constexpr int kTries = 50;
    for (int tries = 0; tries < kTries; ++tries) {
      if (!fd_ || ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0) return;
      // A file system without such locks leaves removers beside each other.
      if (errno != EWOULDBLOCK && errno != EINTR) return;
      std::this_thread::sleep_for(1ms);
    }
    mine_ = false;
  }
  [[nodiscard]] bool mine() const { return mine_; }

 private:
  UniqueFd fd_;
  bool mine_ = true;
};

}  // namespace

Removal remove_if(FileSystem& fs, int directory, const std::string& name,
                  const std::function<bool(const std::string& name)>& is_meant) {
  errno = 0;
  if (!is_meant(name)) return errno == ENOENT ? Removal::absent : Removal::other;
  // A remover that was stopped in its turn must not stop others.
  const Turn turn(directory);
  if (!turn.mine()) return Removal::other;
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
