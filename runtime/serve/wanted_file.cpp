#include "runtime/serve/wanted_file.hpp"

#include <chrono>
#include <cstddef>
#include <map>
#include <thread>
#include <tuple>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace kiln::runtime {

namespace {

/// A process that is stopped while it holds the lock must not keep others from ending.
constexpr std::chrono::seconds kLongestWait{5};

/// A lock on the folder, since the file itself is replaced. Without one, later writers win.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0 &&
           std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  const int fd_;
};

auto order(const WantedInstance& w) {
  return std::tie(w.is_choice, w.kernel, w.types, w.target, w.problem, w.config);
}

}  // namespace

bool InstanceOrder::operator()(const WantedInstance& a, const WantedInstance& b) const {
  return order(a) < order(b);
}

void add_to_manifest(const std::filesystem::path& file, const Manifest& wanted) {
  const FolderLock lock(file.has_parent_path() ? file.parent_path() : ".");
  Manifest all;
  if (std::filesystem::exists(file)) all = Manifest::read(file);
  std::map<WantedInstance, std::size_t, InstanceOrder> places;
  for (std::size_t i = 0; i < all.wanted.size(); ++i) places.try_emplace(all.wanted[i], i);
  bool changed = false;
  for (const WantedInstance& instance : wanted.wanted) {
    const auto [place, first] = places.try_emplace(instance, all.wanted.size());
    if (first)
      all.wanted.push_back(instance);
    else
      all.wanted[place->second].launches += instance.launches;
    changed = changed || first || instance.launches > 0;
  }
  if (changed) all.write(file);
}

}  // namespace kiln::runtime
