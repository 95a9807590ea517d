#include "cache/file_system.hpp"

#include <cerrno>
#include <cstdio>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kiln::cache {

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
  if (::mkdirat(parent, name, 0700) != 0) return -1;
  struct stat status{};
  if (::fstatat(parent, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return -1;
  // Only an umask that takes the owner's own rights away needs mending.
  if (!S_ISDIR(status.st_mode) || (status.st_mode & 0700) == 0700) return 0;
  return ::fchmodat(parent, name, 0700, 0);
}

int FileSystem::create(int directory, const char* name) {
  const int fd = ::openat(directory, name,
                          O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0600);
  if (fd < 0) return -1;
  if (::fchmod(fd, 0600) == 0) return fd;
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
