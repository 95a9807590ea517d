#include "cache/file_system.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kiln::cache {
namespace {

constexpr uid_t kSameOwner = static_cast<uid_t>(-1);

/// The group to give to something new in a directory: the directory's, so that its members may
/// write to both. Nothing if it has that group already.
std::optional<gid_t> group_to_give(int directory, const char* path, gid_t own) {
  struct stat status{};
  const bool known = directory == AT_FDCWD
                         ? ::stat(std::filesystem::path(path).parent_path().c_str(), &status) == 0
                         : ::fstat(directory, &status) == 0;
  if (!known || status.st_gid == own || !is_own_group(status.st_gid)) return {};
  return status.st_gid;
}

}  // namespace

bool is_own_group(gid_t group) {
  if (group == ::getegid()) return true;
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(0, ::getgroups(0, nullptr))));
  const int count = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(0, count)));
  return std::find(groups.begin(), groups.end(), group) != groups.end();
}

Failure call_failure(const char* call, const std::string& path, int code) {
  std::string advice;
  switch (code) {
    case ENOSPC:
    case EDQUOT:
      advice = "free space there, or set KILN_CACHE_DIR to another file system";
      break;
    case EIO:
      advice = "check the disk, or set KILN_CACHE_DIR to another file system";
      break;
    case EMFILE:
    case ENFILE:
      advice = "raise the limit of open files (ulimit -n)";
      break;
    default:
      advice = "set KILN_CACHE_DIR to a directory that you can write to";
  }
  return {path + ": " + call + ": " + std::generic_category().message(code), advice, code};
}

int FileSystem::make_directory(int parent, const char* name) {
  const bool shared = sharing_ == StoreSharing::group;
  if (::mkdirat(parent, name, shared ? 0770 : 0700) != 0) return -1;
  struct stat status{};
  if (::fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return -1;
  if (!S_ISDIR(status.st_mode)) return 0;
  if (shared) {
    // What is made below has this group, too. A chown may clear the bit, so it is set last.
    if (const auto group = group_to_give(parent, name, status.st_gid);
        group && ::fchownat(parent, name, kSameOwner, *group, AT_SYMLINK_NOFOLLOW) != 0)
      return -1;
    return ::fchmodat(parent, name, 02770, 0);
  }
  // Only an umask that takes the owner's own rights away needs mending.
  return (status.st_mode & 0700) == 0700 ? 0 : ::fchmodat(parent, name, 0700, 0);
}

int FileSystem::make_parent(const char* path) {
  if (sharing_ == StoreSharing::user) return make_directory(AT_FDCWD, path);
  return ::mkdir(path, 0755);
}

int FileSystem::create(int directory, const char* name) {
  const int fd = ::openat(directory, name,
                          O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0600);
  if (fd < 0) return -1;
  const auto set_up = [&] {
    if (sharing_ == StoreSharing::user) return ::fchmod(fd, 0600);
    struct stat status{};
    if (::fstat(fd, &status) != 0) return -1;
    if (const auto group = group_to_give(directory, name, status.st_gid);
        group && ::fchown(fd, kSameOwner, *group) != 0)
      return -1;
    return ::fchmod(fd, 0660);
  };
  if (set_up() == 0) return fd;
  const int code = errno;
  ::unlinkat(directory, name, 0);
  ::close(fd);
  errno = code;
  return -1;
}

ssize_t FileSystem::read(int fd, void* data, std::size_t size) { return ::read(fd, data, size); }

ssize_t FileSystem::write(int fd, const void* data, std::size_t size) {
  return ::write(fd, data, size);
}

int FileSystem::sync(int fd) { return ::fsync(fd); }

int FileSystem::rename(int directory, const char* from, const char* to) {
  return ::renameat(directory, from, directory, to);
}

int FileSystem::rename_new(int directory, const char* from, const char* to) {
  if (::renameat2(directory, from, directory, to, RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return -1;
  // NFS and others know no such rename; a link is as exclusive.
  if (::linkat(directory, from, directory, to, 0) != 0) return -1;
  ::unlinkat(directory, from, 0);
  return 0;
}

int FileSystem::remove(int directory, const char* name) { return ::unlinkat(directory, name, 0); }

int FileSystem::touch(int fd) { return ::futimens(fd, nullptr); }

}  // namespace kiln::cache
