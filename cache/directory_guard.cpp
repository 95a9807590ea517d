#include "cache/directory_guard.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kiln/detail/format.hpp"

namespace kiln::cache {
namespace {

std::optional<Failure> refusal(const struct stat& status, const std::string& path, Owner owner) {
  if (is_trusted(status, owner)) return std::nullopt;
  const unsigned mode = status.st_mode & 07777;
  const bool own = status.st_uid == ::geteuid();
  if (owner == Owner::self && !own) {
    Failure failure{
        detail::format("{} belongs to uid {}, not to uid {}", path, status.st_uid, ::geteuid()),
        "set KILN_CACHE_DIR to a directory of your own"};
    if ((mode & S_IWGRP) != 0 && (mode & S_IWOTH) == 0 && is_own_group(status.st_gid))
      failure.advice += detail::format(
          ", or KILN_CACHE_SHARED=group if you trust all members of group {}", status.st_gid);
    return failure;
  }
  if (owner == Owner::group && (mode & S_IWOTH) == 0)
    return Failure{detail::format("{} belongs to uid {} and group {}, and this process is not in "
                                  "that group",
                                  path, status.st_uid, status.st_gid),
                   "give it a group of this process, or set KILN_CACHE_DIR to another directory"};
  return Failure{
      detail::format("{} is writable by others (mode {:04o})", path, mode),
      detail::format("check its contents and run chmod {} on it, or set KILN_CACHE_DIR to a "
                     "directory of your own",
                     owner == Owner::group ? "o-w" : "go-w")};
}

/// Makes a folder above the store, and what is missing above that.
int make_parents(FileSystem& fs, const std::filesystem::path& path) {
  if (fs.make_parent(path.c_str()) == 0) return 0;
  if (errno != ENOENT || !path.has_parent_path() || path.parent_path() == path) return -1;
  if (make_parents(fs, path.parent_path()) != 0 && errno != EEXIST) return -1;
  return fs.make_parent(path.c_str());
}

/// Makes the store's folder by its absolute path, and what is missing above it.
int make_path(FileSystem& fs, const std::filesystem::path& path) {
  if (fs.make_directory(AT_FDCWD, path.c_str()) == 0) return 0;
  if (errno != ENOENT || !path.has_parent_path() || path.parent_path() == path) return -1;
  if (make_parents(fs, path.parent_path()) != 0 && errno != EEXIST) return -1;
  return fs.make_directory(AT_FDCWD, path.c_str());
}

}  // namespace

bool is_trusted(const struct stat& status, Owner owner) {
  if ((status.st_mode & S_IWOTH) != 0) return false;
  const bool own = status.st_uid == ::geteuid(), for_group = (status.st_mode & S_IWGRP) != 0;
  if (owner == Owner::group) return (own && !for_group) || is_own_group(status.st_gid);
  return !for_group && (own || owner == Owner::anyone);
}

GuardedDirectory open_guarded(int parent, const std::string& name, const std::string& path,
                              Owner owner) {
  UniqueFd fd(::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) {
    const int code = errno;
    if (code == ENOENT) return {};
    if (code != ENOTDIR && code != ELOOP) return {{}, call_failure("open", path, code)};
    struct stat status{};
    const bool link = ::fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
                      S_ISLNK(status.st_mode);
    return {{},
            link ? Failure{path + " is a symbolic link",
                           "set KILN_CACHE_DIR to the directory itself", code}
                 : Failure{path + " is not a directory",
                           "remove it, or set KILN_CACHE_DIR to a directory", code}};
  }
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0) return {{}, call_failure("fstat", path, errno)};
  if (auto failure = refusal(status, path, owner)) return {{}, std::move(failure)};
  return {std::move(fd), std::nullopt};
}

GuardedDirectory create_guarded(FileSystem& fs, int parent, const std::string& name,
                                const std::string& path, Owner owner) {
  GuardedDirectory directory = open_guarded(parent, name, path, owner);
  if (directory.fd || directory.failure) return directory;
  const int made =
      parent == AT_FDCWD ? make_path(fs, name) : fs.make_directory(parent, name.c_str());
  if (made != 0 && errno != EEXIST) return {{}, call_failure("mkdir", path, errno)};
  if (parent != AT_FDCWD && fs.sync(parent) != 0 && errno != EINVAL && errno != ENOTSUP)
    return {{}, call_failure("fsync", path, errno)};
  directory = open_guarded(parent, name, path, owner);
  if (!directory.fd && !directory.failure) directory.failure = call_failure("open", path, ENOENT);
  return directory;
}

std::optional<std::vector<std::string>> names_in(int directory) {
  std::vector<std::string> names;
  UniqueFd fd(::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  DIR* stream = ::fdopendir(fd.get());
  if (stream == nullptr) return std::nullopt;
  [[maybe_unused]] const int owned = fd.release();  // closedir closes it
  while (const dirent* item = ::readdir(stream)) names.emplace_back(item->d_name);
  ::closedir(stream);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace kiln::cache
