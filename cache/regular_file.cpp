#include "cache/regular_file.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>

#include "kiln/detail/format.hpp"

namespace kiln::cache {

Failure file_failure(const char* call, const std::filesystem::path& path, int code) {
  Failure failure = call_failure(call, path.string(), code);
  if (code == ENOSPC || code == EDQUOT || code == EIO)
    failure.advice = "check the disk and the space left on it";
  else if (code != EMFILE && code != ENFILE)
    failure.advice = "check its name and its permissions";
  return failure;
}

std::variant<RegularFile, Failure> open_regular(const std::filesystem::path& path,
                                                const char* what) {
  RegularFile file{UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY))};
  // A socket cannot be opened at all.
  if (!file.fd && errno != ENXIO) return file_failure("open", path, errno);
  struct stat status{};
  if (file.fd && ::fstat(file.fd.get(), &status) != 0) return file_failure("fstat", path, errno);
  if (!S_ISREG(status.st_mode))
    return Failure{path.string() + (S_ISDIR(status.st_mode) ? " is a directory" : " is not a file"),
                   detail::format("name the file that holds {}", what)};
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
    return Failure{detail::format("{} is writable by others (mode {:04o})", path.string(),
                                  status.st_mode & 07777),
                   "check its contents and run chmod go-w on it"};
  file.size = static_cast<std::uint64_t>(status.st_size);
  return file;
}

}  // namespace kiln::cache
